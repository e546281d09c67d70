"""The workloads: those of the paper, then what programs also are."""

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
