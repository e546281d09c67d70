"""Imports of modules that bring torch with them."""

import gc
import sys
from importlib import import_module
from types import ModuleType


def import_uncollected(name: str) -> ModuleType:
    """The module, imported without looking for garbage meanwhile, nor ever again in what is there
    afterwards: modules are none, and finding that out over and over is a good part of a start.
    """
    if name in sys.modules:
        return import_module(name)  # another thread may still be at it: this waits
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        module = import_module(name)
        gc.freeze()
        return module
    finally:
        if was_enabled:
            gc.enable()
