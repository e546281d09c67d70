"""`/v1/programs`: a serialized graph and its arguments."""

from typing import Any

import msgspec

from umbel.frontend_dsl.graph.nodes import Graph


class ProgramBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`graph` is what `umbel compile` writes; `arguments` are those of its parameters."""

    graph: Graph
    arguments: dict[str, Any] = {}
    model: str | None = None
    cache_salt: str | None = None
    timeout_s: float | None = None
