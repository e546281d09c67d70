"""Umbel: a structured-generation runtime.

Public names are resolved on first use, so that importing a leaf package (`umbel.grammar`,
`umbel.radix_cache`) never imports torch.
"""

from typing import TYPE_CHECKING

from umbel.importing import import_uncollected

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
    return getattr(import_uncollected(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
