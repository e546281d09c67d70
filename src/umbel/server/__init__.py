"""The HTTP server: OpenAI's surface and Umbel's own over one engine. A shell above the packages,
beside the command line.

Plain ASGI: `make_app(engine, settings)` gives an application, `umbel.server.serving.serve` runs it
until a signal. Names are resolved on first use, so that reading settings never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umbel.server.app import make_app
    from umbel.server.settings import ServerSettings

_HOME = {"ServerSettings": "umbel.server.settings", "make_app": "umbel.server.app"}

__all__ = ["ServerSettings", "make_app"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'umbel.server' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
