"""Umbel: a structured-generation runtime.

Public names are resolved on first use, so that importing a leaf package (`umbel.grammar`,
`umbel.radix_cache`) never imports torch.
"""

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umbel.frontend_dsl import (
        Remote,
        assistant,
        best,
        connect,
        gen,
        image,
        program,
        select,
        system,
        tool,
        user,
    )
    from umbel.runtime.config import EngineConfig
    from umbel.runtime.engine import Engine
    from umbel.runtime.errors import UmbelError
    from umbel.runtime.outputs import Completion
    from umbel.runtime.params import SamplingParams

__version__ = "0.1.0"

_HOME = {
    "Completion": "umbel.runtime.outputs",
    "Engine": "umbel.runtime.engine",
    "EngineConfig": "umbel.runtime.config",
    "Remote": "umbel.frontend_dsl",
    "SamplingParams": "umbel.runtime.params",
    "UmbelError": "umbel.runtime.errors",
    "assistant": "umbel.frontend_dsl",
    "best": "umbel.frontend_dsl",
    "connect": "umbel.frontend_dsl",
    "gen": "umbel.frontend_dsl",
    "image": "umbel.frontend_dsl",
    "program": "umbel.frontend_dsl",
    "select": "umbel.frontend_dsl",
    "system": "umbel.frontend_dsl",
    "tool": "umbel.frontend_dsl",
    "user": "umbel.frontend_dsl",
}

__all__ = [
    "Completion",
    "Engine",
    "EngineConfig",
    "Remote",
    "SamplingParams",
    "UmbelError",
    "assistant",
    "best",
    "connect",
    "gen",
    "image",
    "program",
    "select",
    "system",
    "tool",
    "user",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'umbel' has no attribute {name!r}; it exports {__all__}")
    home = _HOME[name]
    if home not in sys.modules:
        _import_uncollected(home)
    return getattr(import_module(home), name)


def _import_uncollected(module: str) -> None:
    """Import without looking for garbage, and never look for it in what is there afterwards:
    modules are none, and to find that out took a fifth of an engine's start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import_module(module)
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
