"""Draws what a run did: its tree of branches with the tokens computed, reused and forced."""

from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree

from umbel.frontend_dsl.record import CallRecord, sum_usage
from umbel.frontend_dsl.state import State
from umbel.runtime.outputs import Usage

_VALUE_WIDTH = 48  # characters of a value that are shown


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the calls of a run."""

    num_branches: int
    num_calls: int
    num_failed_calls: int
    usage: Usage

    @property
    def num_computed_tokens(self) -> int:
        """Prompt tokens that no cache had."""
        return self.usage.num_prompt_tokens - self.usage.num_cached_tokens


def totals(state: State) -> Totals:
    """Sums over `state` and all branches below it."""
    branches = _with_descendants(state)
    calls = [call for branch in branches for call in branch.calls]
    failed = sum(call.error is not None for call in calls)
    return Totals(len(branches), len(calls), failed, sum_usage(call.usage for call in calls))


def draw(state: State, *, max_branches: int = 8) -> Tree:
    """The branch tree of a run for `rich`; of each branch's children at most `max_branches` are
    drawn.
    """
    summary = totals(state)
    title = Text(state.path, style="bold")
    if summary.num_branches > 1:
        title.append(f"  {summary.num_branches} branches", style="not bold")
    title.append(f"  {_tokens(summary.usage)}", style="not bold dim")
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
        usage = sum_usage(call.usage for branch in hidden for call in branch.calls)
        tree.add(Text(f"... and {len(hidden)} more branches  {_tokens(usage)}", style="dim"))


def _describe(call: CallRecord) -> Text:
    line = Text(f"{call.kind} {call.name or ''}".rstrip(), style="cyan")
    if call.error is not None:
        return line.append(f"  failed: {call.error.cause}", style="red")
    value = call.text or ""
    shown = value if len(value) <= _VALUE_WIDTH else value[: _VALUE_WIDTH - 1] + "…"
    line.append(f" = {shown!r}", style="default")
    if value in call.distribution:
        line.append(f"  p={call.distribution[value]:.2f}", style="default")
    return line.append(f"  {_tokens(call.usage)}", style="dim")


def _tokens(usage: Usage) -> str:
    computed = usage.num_prompt_tokens - usage.num_cached_tokens
    parts = [f"computed {computed}", f"reused {usage.num_cached_tokens}"]
    parts.append(f"output {usage.num_output_tokens}")
    if usage.num_forced_tokens:
        parts.append(f"forced {usage.num_forced_tokens}")
    return ", ".join(parts)


def _with_descendants(state: State) -> list[State]:
    found = [state]
    for branch in found:
        found += branch.branches
    return found
