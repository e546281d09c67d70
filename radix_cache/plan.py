"""The attention plan of a step: which stretches of KV are read once for several runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from umbel.radix_cache.node import SlotRange
from umbel.radix_cache.tree import Lease

__all__ = [
    "AttentionPlan",
    "CutCost",
    "RunSpan",
    "Segment",
    "SlotRange",
    "Tail",
    "plan_attention",
]


@dataclass(slots=True)
class RunSpan:
    """Query rows at positions `start .. start + num_tokens - 1` of the lease's path."""

    lease: Lease
    start: int
    num_tokens: int


@dataclass(slots=True)
class Segment:
    """Positions `position ..`, in the slots of `ranges`, read once for all rows of two or more runs."""

    position: int
    ranges: list[SlotRange]
    run_idxs: list[int]

    @property
    def num_tokens(self) -> int:
        return sum(piece.length for piece in self.ranges)


@dataclass(slots=True)
class Tail:
    """What one run reads alone: positions `position .. start + num_tokens - 1`, causally."""

    position: int
    ranges: list[SlotRange]

    @property
    def num_tokens(self) -> int:
        return sum(piece.length for piece in self.ranges)


@dataclass(slots=True)
class AttentionPlan:
    """A run's segments, in the order of `segments`, cover its path from 0; its tail covers the rest."""

    segments: list[Segment]
    tails: list[Tail]  # one per run


@dataclass(frozen=True, slots=True)
class CutCost:
    """What reading a stretch apart costs, in tokens of KV that could be read instead."""

    row_tokens: float = 4.0
    segment_tokens: float = 64.0


def plan_attention(
    runs: Sequence[RunSpan], *, share: bool = True, cost: CutCost | None = None
) -> AttentionPlan:
    raise NotImplementedError
