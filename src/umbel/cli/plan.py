"""`umbel plan`: what a model can do on a device, before anything runs (see docs/roofline.md)."""

from umbel.runtime.roofline.command import add_arguments, run

HELP = "what can this model do on this device: bounds, knee, batch, cost"

__all__ = ["HELP", "add_arguments", "run"]
