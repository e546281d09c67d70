"""The engine's steps on an accelerator: weights, pool and metadata that stay on the device."""
