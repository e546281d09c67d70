"""Imports of modules that bring torch with them, in a fifth less time."""

import gc
import sys
from importlib import import_module
from types import ModuleType


def import_uncollected(name: str) -> ModuleType:
    """The module, imported without looking for garbage meanwhile, nor ever again in what is there
    afterwards: modules are none, and to find that out took a fifth of an engine's start.
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
