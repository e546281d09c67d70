"""The HTTP server: OpenAI's surface and Umbel's own over one engine. A shell above the packages,
beside the command line.

Plain ASGI: `make_app(engine, settings)` gives an application, `serve` runs it until a signal.
"""

from umbel.server.app import make_app
from umbel.server.settings import ServerSettings

__all__ = ["ServerSettings", "make_app"]
