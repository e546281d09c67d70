"""`best` while a program is traced: which branches are chosen is known when the graph runs."""

from collections.abc import Callable
from typing import Any

from umbel.frontend_dsl.choosing import check_best, checked_score, child_names, home_of
from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.numbers import TraceNumber
from umbel.frontend_dsl.tracing.recorder import Recording, TraceForks, TraceState


def trace_best(
    recording: Recording, branches: Any, count: int = 1, *, key: Callable[[Any], Any]
) -> TraceForks:
    """Records the choice; the branches that it gives have what all candidates have."""
    path, states = recording.path, list(branches)
    check_best(states, TraceState, count)
    scores = [_score(key(state), recording) for state in states]
    paths = tuple(state.path for state in states)
    roles = [path.get(("role", name)) for name in paths]
    if any(role != roles[0] for role in roles):
        raise LeaveTrace("best() chooses between branches with other messages open", path.site())
    home = home_of(paths)
    children = child_names(home, recording.state(home).count_forks(), min(count, len(states)))
    names, others = _names(states)
    for child in children:
        path.set(("best", child), (names, others))
        path.set(("role", child), (roles[0][0], True) if isinstance(roles[0], tuple) else None)
        for name in names:
            for fact in ("outcomes", "choices"):
                known = {path.get((fact, state.owner(name))) for state in states}
                path.set(
                    (fact, (child, nodes.inherited(name))), known.pop() if len(known) == 1 else None
                )
    path.add(nodes.Best(branch=home, candidates=paths, scores=tuple(scores), children=children,
                        names=names, **recording.where()))  # fmt: skip
    return TraceForks([recording.state(child) for child in children], recording)


def _names(states: list[TraceState]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The variables that all have, and those that some have."""
    names = sorted({name for state in states for name in state.all_names()})
    common = tuple(name for name in names if all(name in state for state in states))
    return common, tuple(n for n in names if n not in common and any(n in s for s in states))


def _score(value: Any, recording: Recording) -> nodes.Number | nodes.Literal:
    if isinstance(value, TraceNumber):
        return value.as_data()
    return nodes.Literal(checked_score(value))
