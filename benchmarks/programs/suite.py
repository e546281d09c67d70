"""The workloads: those of the paper, then what programs also are."""

import sys

from benchmarks.programs import (
    chats,
    documents,
    endings,
    extraction,
    judge,
    questions,
    skeleton,
    summary,
    thought_tree,
    tool_agent,
    town,
    voting,
)
from benchmarks.programs.workload import Workload

SUITE: dict[str, Workload] = {
    "questions": questions.WORKLOAD,
    "endings": endings.WORKLOAD,
    "tool_agent": tool_agent.WORKLOAD,
    "town": town.WORKLOAD,
    "thought_tree": thought_tree.WORKLOAD,
    "skeleton": skeleton.WORKLOAD,
    "judge": judge.WORKLOAD,
    "extraction": extraction.WORKLOAD,
    "short_chat": chats.SHORT_WORKLOAD,
    "long_chat": chats.LONG_WORKLOAD,
    "documents": documents.WORKLOAD,
    "voting": voting.WORKLOAD,
    "summary": summary.WORKLOAD,
}


def chosen(only: str | None, num_cases: int | None) -> list[Workload]:
    """The workloads named in `only` ("NAME,..."; None: all), the first cases of each."""
    names = list(SUITE) if only is None else only.split(",")
    unknown = [name for name in names if name not in SUITE]
    if unknown:
        sys.exit(f"there is no program {unknown[0]!r}; there are {', '.join(SUITE)}")
    return [SUITE[name].first(num_cases) for name in names]
