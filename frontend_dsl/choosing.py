"""`best`: go on from the branches that rate highest."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from umbel.frontend_dsl.branch import Branch
from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.operations import ForkPoint
from umbel.frontend_dsl.state import Forks, State
from umbel.runtime.errors import InvalidRequest


def best(branches: Iterable[State], count: int = 1, *, key: Callable[[State], Any]) -> Forks:
    """The `count` best of `branches`, best first, by the number that `key(branch)` gives; of equal
    ones the earlier. All of them if there are no more.

    Each is a new branch that goes on from what the chosen one has so far, which itself stays as it
    is. Waits for what `key` reads, and raises its error. Raises `InvalidRequest` for branches of
    different runs, and for a key that is no number.
    """
    site = Site.here()
    states = list(branches)
    check_best(states, State, count)
    scores = [checked_score(key(state)) for state in states]
    chosen = [states[index]._branch for index in best_of(scores, count)]
    execution = chosen[0].execution
    if any(state._branch.execution is not execution for state in states):
        raise InvalidRequest("best() takes branches of one run")
    path = home_of([state.path for state in states])
    home = next(branch for branch in execution.branches if branch.path == path)
    execution.require_open(home)
    home.num_forks += 1
    names = child_names(path, home.num_forks, len(chosen))
    children = [execution.new_branch(b, name) for b, name in zip(chosen, names, strict=True)]
    fork_each(chosen, children, site)
    return Forks([State(child) for child in children])


def fork_each(parents: Sequence[Branch], children: Sequence[Branch], site: Site) -> None:
    """Let each of `children` go on from its parent."""
    of_parent: dict[Branch, list[Branch]] = {}
    for parent, child in zip(parents, children, strict=True):
        of_parent.setdefault(parent, []).append(child)
    for parent, below in of_parent.items():
        parent.add(ForkPoint(below, site))


def best_of(scores: Sequence[float], count: int) -> list[int]:
    """Indices of the highest scores, highest first; of equal ones the earlier."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])[:count]


def home_of(paths: Sequence[str]) -> str:
    """The branch that all `paths` stand below, by their names: what is chosen is named there."""
    above = [path.split("/")[:-1] for path in paths]
    depth = 0
    for names in zip(*above, strict=False):
        if len(set(names)) > 1:
            break
        depth += 1
    return "/".join(above[0][:depth]) or paths[0].partition("/")[0]


def child_names(home: str, number: int, width: int) -> tuple[str, ...]:
    return tuple(f"{home}/best{number}[{index}]" for index in range(width))


def check_best(states: Sequence[object], kind: type, count: object) -> None:
    """Raise `InvalidRequest` for what `best` does not take."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidRequest(f"best(..., {count!r}) is not valid: expected a count of 1 or more")
    if not states:
        raise InvalidRequest("best() of no branches: give it at least one")
    odd = next((state for state in states if not isinstance(state, kind)), None)
    if odd is not None:
        raise InvalidRequest(f"best() takes branches, not {odd!r}")
    if len({id(getattr(state, "_branch", state)) for state in states}) != len(states):
        raise InvalidRequest("best() was given a branch twice")


def checked_score(score: Any) -> float:
    if isinstance(score, bool) or not isinstance(score, int | float) or math.isnan(score):
        raise InvalidRequest(
            f"the key of best() gave {score!r}; expected a number, as in "
            "key=lambda branch: branch.meta('good').distribution['yes']"
        )
    return score
