"""Graphs as JSON, and what a graph from somebody else may contain.

`from_json` is the only door for untrusted graphs. It checks every bound in one place, `check`,
before anything runs.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from umbel.frontend_dsl.calls import GenOptions, check_options
from umbel.frontend_dsl.graph.loops import check_loop
from umbel.frontend_dsl.graph.nodes import (
    VERSION,
    AnyNode,
    Arg,
    Best,
    Block,
    Choose,
    Decide,
    Fork,
    Generate,
    Graph,
    Loop,
    Ref,
    Say,
    blocks_of,
    templates_of,
)
from umbel.frontend_dsl.graph.values import MAX_OPS, check_op
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Bounds of a graph. Nodes, calls, branches and tokens count every turn of a loop and every
    arm.
    """

    max_bytes: int = 8 << 20
    max_nodes: int = 20_000
    max_depth: int = 160  # blocks inside blocks
    max_width: int = 4096  # children of one fork
    max_branches: int = 16_384
    max_choices: int = 1024
    max_turns: int = 1024  # of one loop
    max_calls: int = 65_536
    max_tokens: int = 16_000_000  # that all calls together may generate


DEFAULT_LIMITS = GraphLimits()
DEFAULT_MAX_TOKENS = 256  # of a gen that says nothing: that of SamplingParams
MAX_GIVEN_TOKENS = 4096  # of a max_tokens that is made of a value


def to_json(graph: Graph) -> bytes:
    return msgspec.json.encode(graph)


def from_json(data: bytes | str, limits: GraphLimits = DEFAULT_LIMITS) -> Graph:
    """The graph in `data`. Raises `InvalidRequest` for what is no graph, of another version, or
    beyond `limits`.
    """
    if len(data) > limits.max_bytes:
        raise InvalidRequest(
            f"the graph has {len(data)} bytes; at most {limits.max_bytes} are accepted"
        )
    try:
        graph = msgspec.json.decode(data, type=Graph)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"this is not a program graph: {error}") from error
    except RecursionError:
        raise InvalidRequest("the graph is nested too deeply to be read") from None
    check(graph, limits)
    return graph


def content_hash(graph: Graph) -> str:
    """Hex digest of all that decides what the graph does and says."""
    return hashlib.blake2b(to_json(graph), digest_size=16).hexdigest()


def check(graph: Graph, limits: GraphLimits = DEFAULT_LIMITS) -> None:
    """Raise `InvalidRequest` for the first bound that `graph` passes."""
    if graph.version != VERSION:
        raise InvalidRequest(
            f"the graph has version {graph.version}; this umbel runs version {VERSION}, "
            "so compile the program again"
        )
    counts: Counter[str] = Counter()
    stack: list[tuple[Block, int, int]] = [(graph.body, 1, 1)]
    while stack:
        block, depth, turns = stack.pop()
        _bound("max_depth", depth, limits.max_depth, "blocks inside blocks")
        for node in block:
            counts["max_nodes"] += turns
            _bound("max_nodes", counts["max_nodes"], limits.max_nodes, "nodes")
            _check_node(node, graph, limits)
            for name, amount in _cost(node, graph).items():
                counts[name] += amount * turns
                _bound(name, counts[name], getattr(limits, name), name[4:])
            if isinstance(node, Loop):
                inner = turns * (node.max_turns - node.start)
                stack += [(node.body, depth + 1, inner), (node.last, depth + 1, turns)]
            else:
                stack += [(body, depth + 1, turns) for body in blocks_of(node)]


def _cost(node: AnyNode, graph: Graph) -> dict[str, int]:
    if isinstance(node, Generate):
        if any(name == "max_tokens" for name, _ in node.given):
            return {"max_calls": 1, "max_tokens": MAX_GIVEN_TOKENS}
        default = graph.defaults.get("max_tokens", DEFAULT_MAX_TOKENS)
        tokens = node.options.get("max_tokens", default)
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
            raise InvalidRequest(
                f"gen({node.name!r}) at line {node.line} has max_tokens={tokens!r}; "
                "a graph needs a whole number there"
            )
        return {"max_calls": 1, "max_tokens": tokens}
    if isinstance(node, Choose):
        return {"max_calls": 1}
    return {"max_branches": len(node.children)} if isinstance(node, Fork | Best) else {}


def _check_node(node: AnyNode, graph: Graph, limits: GraphLimits) -> None:
    if not 0 <= node.file <= len(graph.files):
        raise InvalidRequest(f"a node names file {node.file} of {len(graph.files)}")
    if isinstance(node, Say) and node.token_ids is not None:
        raise InvalidRequest("a stored graph has no token ids: they belong to one tokenizer")
    if isinstance(node, Generate):
        _check_options(node, graph)
    elif isinstance(node, Fork):
        _bound("max_width", len(node.children), limits.max_width, "branches of one fork")
    elif isinstance(node, Best):
        _bound("max_width", len(node.candidates), limits.max_width, "branches to choose from")
    elif isinstance(node, Choose):
        _bound("max_choices", len(node.choices), limits.max_choices, "choices")
    elif isinstance(node, Loop):
        _bound("max_turns", node.max_turns - node.start, limits.max_turns, "turns of a loop")
        check_loop(node)
    parts = [part for template in templates_of(node) for part in template]
    if isinstance(node, Decide):
        parts.append(node.subject)
    for part in parts:
        ops = part.ops if isinstance(part, Ref | Arg) else ()
        _bound("max_ops", len(ops), MAX_OPS, "operations on a value")
        for op in ops:
            check_op(op)


def _bound(name: str, got: int, limit: int, what: str) -> None:
    if got > limit:
        raise InvalidRequest(f"the graph has {got} {what} or more; {name}={limit} is the bound")


def sampling_options(node: Generate) -> dict[str, Any]:
    """The options as `SamplingParams` takes them: keys of JSON objects are strings."""
    options = dict(node.options)
    bias = options.get("logit_bias")
    if isinstance(bias, dict):
        try:
            options["logit_bias"] = {int(key): value for key, value in bias.items()}
        except ValueError as error:
            raise InvalidRequest(f"logit_bias has a key that is no token id: {error}") from None
    return options


def _check_options(node: Generate, graph: Graph) -> None:
    try:
        check_options(graph.defaults)
        check_options(node.options, extra=GenOptions.__annotations__)
        check_options(dict(node.given), extra=GenOptions.__annotations__)
        SamplingParams(**{**graph.defaults, **sampling_options(node)})
    except (InvalidRequest, TypeError) as error:
        raise InvalidRequest(f"gen({node.name!r}) at line {node.line}: {error}") from error
