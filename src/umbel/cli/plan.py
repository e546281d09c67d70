"""`umbel plan`: what a model can do on a device, before anything runs (see docs/roofline.md)."""

from umbel.runtime.roofline.command import add_arguments, run

__all__ = ["add_arguments", "run"]
