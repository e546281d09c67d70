"""Stacks of places in rules: where one rule goes on, and below it the rule that used it."""

from collections.abc import Iterable

from umbel.grammar.cfg.tables import Tables


class Frame:
    """A stack: where one rule goes on (`state`), and what lies below. Interned by the parser."""

    __slots__ = ("below", "depth", "state")

    def __init__(self, state: int, below: "Frame | None") -> None:
        self.state = state
        self.below = below
        self.depth: int = 0 if below is None else below.depth + 1


def order(frame: Frame) -> tuple[int, int]:
    return frame.depth, frame.state


def with_returns(tables: Tables, frames: Iterable[Frame]) -> tuple[tuple[Frame, ...], bool]:
    """The stacks after any number of returns from finished rules, and whether all may be
    finished.
    """
    stacks: dict[Frame, None] = {}
    ends = False
    for frame in sorted(frames, key=order):
        stack: Frame | None = frame
        while stack is not None and stack not in stacks:
            stacks[stack] = None
            if not tables.is_final[stack.state]:
                break
            stack = stack.below
        else:
            ends = ends or stack is None
    return tuple(stacks), ends
