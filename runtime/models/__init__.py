"""Model definitions: what a checkpoint says about itself, and the one decoder that computes it."""
