"""Which passes there are, and running them in order."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from umbel.frontend_dsl.graph.nodes import Graph
from umbel.frontend_dsl.passes.drop import drop_pure_tools, drop_unread
from umbel.frontend_dsl.passes.keep import NAME as KEEP
from umbel.frontend_dsl.passes.keep import keep_prefixes
from umbel.frontend_dsl.passes.order import order_instances, rank_calls
from umbel.frontend_dsl.passes.parallel import run_branches_apart
from umbel.frontend_dsl.passes.roll import roll_loops
from umbel.runtime.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class PassReport:
    """What a pass did to a graph."""

    name: str
    message: str


Pass = Callable[[Graph], tuple[Graph, str]]

PASSES: dict[str, Pass] = {
    "drop": drop_pure_tools,
    "roll": roll_loops,
    "parallel": run_branches_apart,
    "hoist": order_instances,
    "rank": rank_calls,
    KEEP: keep_prefixes,
}
BY_ENGINE = "tokenize"  # needs a tokenizer: `passes.tokenize`, when an engine is known
NAMES = (*PASSES, BY_ENGINE)


def optimized(
    graph: Graph, names: Collection[str] = NAMES, *, reads_result_only: bool = False
) -> tuple[Graph, list[PassReport]]:
    """`graph` after the passes of `names`. `reads_result_only`: nobody looks at the state after the
    run, so calls that do not matter for the result are dropped (with "drop").
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise InvalidRequest(f"unknown pass {unknown[0]!r}; there are {', '.join(NAMES)}")
    reports = []
    for name, run in PASSES.items():
        if name in names:
            chosen = drop_unread if name == "drop" and reads_result_only else run
            graph, message = chosen(graph)
            reports.append(PassReport(name, message))
    return msgspec.structs.replace(graph, passes=tuple(n for n in NAMES if n in names)), reports
