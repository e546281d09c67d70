"""Draws what a run did: its tree of branches with the tokens computed, reused and forced."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree

from umbel.frontend_dsl.record import CallRecord, sum_usage
from umbel.frontend_dsl.state import State
from umbel.runtime.outputs import Usage

_VALUE_WIDTH = 48  # characters of a value that are shown


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the calls of a run, or of one of its parts."""

    num_calls: int
    num_failed_calls: int
    num_computed_tokens: int  # of prompts and scored choices, where no cache had them
    num_scored_tokens: int
    usage: Usage

    @classmethod
    def of(cls, calls: Sequence[CallRecord]) -> "Totals":
        return cls(
            num_calls=len(calls),
            num_failed_calls=sum(call.error is not None for call in calls),
            num_computed_tokens=sum(call.num_computed_tokens for call in calls),
            num_scored_tokens=sum(call.num_scored_tokens for call in calls),
            usage=sum_usage(call.usage for call in calls),
        )

    def __str__(self) -> str:
        usage = self.usage
        parts = [f"computed {self.num_computed_tokens}", f"reused {usage.num_cached_tokens}"]
        if usage.num_output_tokens:
            parts.append(f"output {usage.num_output_tokens}")
        if usage.num_forced_tokens:
            parts.append(f"forced {usage.num_forced_tokens}")
        return ", ".join(parts)


def totals(state: State) -> Totals:
    """Sums over `state` and all branches below it."""
    return Totals.of(_calls(_with_descendants(state)))


def draw(state: State, *, max_branches: int = 8) -> Tree:
    """The branch tree of a run for `rich`; of each branch's children at most `max_branches` are
    drawn.
    """
    branches = _with_descendants(state)
    title = Text(state.path, style="bold")
    if len(branches) > 1:
        title.append(f"  {len(branches)} branches", style="not bold")
    title.append(f"  {Totals.of(_calls(branches))}", style="not bold dim")
    tree = Tree(title)
    _fill(tree, state, max_branches)
    return tree


def _fill(tree: Tree, state: State, max_branches: int) -> None:
    for call in state.calls:
        tree.add(_describe(call))
    children = state.branches
    for child in children[:max_branches]:
        name = child.path.rpartition("/")[2]
        _fill(tree.add(Text(name, style="bold")), child, max_branches)
    hidden = [branch for child in children[max_branches:] for branch in _with_descendants(child)]
    if hidden:
        summary = Totals.of(_calls(hidden))
        tree.add(Text(f"... and {len(hidden)} more branches  {summary}", style="dim"))


def _describe(call: CallRecord) -> Text:
    line = Text(f"{call.kind} {call.name or ''}".rstrip(), style="cyan")
    if call.error is not None:
        return line.append(f"  failed: {call.error.cause}", style="red")
    value = call.text or ""
    shown = value if len(value) <= _VALUE_WIDTH else value[: _VALUE_WIDTH - 1] + "…"
    line.append(f" = {shown!r}", style="default")
    if value in call.distribution:
        line.append(f"  p={call.distribution[value]:.2f}", style="default")
    return line.append(f"  {Totals.of([call])}", style="dim")


def _calls(branches: Sequence[State]) -> list[CallRecord]:
    return [call for branch in branches for call in branch.calls]


def _with_descendants(state: State) -> list[State]:
    found = [state]
    for branch in found:
        found += branch.branches
    return found
