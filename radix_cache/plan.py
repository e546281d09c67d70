"""The attention plan of a step: which stretches of KV are read once for several runs.

The active part of the tree is cut where nodes end and where runs start. A stretch that lies wholly
before the start of two or more runs may be read once for all of them, at the price of one more
partial result for each of their rows; a cost rule decides. Called by the scheduler once a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from umbel.radix_cache.node import Node, SlotRange
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
    """Positions `position ..` in the slots of `ranges`, read once for all rows of its runs."""

    position: int
    ranges: list[SlotRange]
    run_idxs: list[int]  # two or more, ascending

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
    """A run's segments, in the order of the list, cover its path from 0 on; its tail the rest.

    A tail is never empty: it begins at its run's first row at the latest.
    """

    segments: list[Segment]
    tails: list[Tail]  # one per run


@dataclass(frozen=True, slots=True)
class CutCost:
    """What reading a stretch apart costs, in tokens of KV that could be read in the same time.

    A partial result is written and read in float32, output and log-sum-exp for each query head:
    `8 * g * (D + 1)` bytes a row and KV head against `2 * D * b` bytes a token, which is 3 tokens
    for 3 query heads a KV head in float32 and 6 in bfloat16. `segment_tokens` stands for what any
    segment costs whatever its size: launching its work.
    """

    row_tokens: float = 6.0
    segment_tokens: float = 64.0


@dataclass(slots=True, eq=False)
class _Stretch:
    """Positions before the start of the same two or more runs, in one node or several in turn."""

    parts: list[tuple[Node, int, int]]  # with the positions start .. stop - 1 of each
    run_idxs: list[int]
    num_rows: int
    children: list["_Stretch"] = field(default_factory=list)
    num_readers: int = 0  # how many would read this stretch if it were not cut

    @property
    def num_tokens(self) -> int:
        return self.parts[-1][2] - self.parts[0][1]


def plan_attention(
    runs: Sequence[RunSpan], *, share: bool = True, cost: CutCost | None = None
) -> AttentionPlan:
    """Plan which KV each run reads: every position up to a row's own exactly once.

    `share=False`: every run reads its whole context by itself. All leases belong to one cache.
    Raises ValueError for a run without rows or beyond the end of its lease.
    """
    for run in runs:
        if run.start < 0 or run.num_tokens < 1 or run.start + run.num_tokens > run.lease.num_tokens:
            raise ValueError(
                f"{run.num_tokens} rows from position {run.start} are not valid: "
                f"expected at least one, within the {run.lease.num_tokens} tokens of the lease"
            )
    segments = _plan_segments(runs, cost or CutCost()) if share and len(runs) > 1 else []
    tail_starts = [0] * len(runs)
    for segment in segments:
        stop = segment.position + segment.num_tokens
        for idx in segment.run_idxs:
            tail_starts[idx] = stop
    tails = [
        Tail(position, run.lease.slot_ranges(position, run.start + run.num_tokens))
        for run, position in zip(runs, tail_starts, strict=True)
    ]
    return AttentionPlan(segments, tails)


def _plan_segments(runs: Sequence[RunSpan], cost: CutCost) -> list[Segment]:
    stretches = _shared_stretches(runs)
    for stretch in reversed(stretches):  # children before parents
        stretch.num_readers = _num_readers(stretch, cost)
    segments: list[Segment] = []
    inherited: dict[_Stretch, list[tuple[Node, int, int]]] = {}  # parts above that were not cut
    for stretch in stretches:  # parents before children
        whole = [*inherited.pop(stretch, ()), *stretch.parts]
        if _pays(stretch, whole[-1][2] - whole[0][1], cost):
            ranges: list[SlotRange] = []
            for node, start, stop in whole:
                node.add_ranges(start, stop, ranges)
            segments.append(Segment(whole[0][1], ranges, stretch.run_idxs))
            whole = []
        for child in stretch.children:
            inherited[child] = whole
    return segments


def _pays(stretch: _Stretch, num_tokens: int, cost: CutCost) -> bool:
    """Whether reading `num_tokens` once costs less than reading them with all that is below."""
    saved = (stretch.num_readers - 1) * num_tokens
    return saved > cost.segment_tokens + cost.row_tokens * stretch.num_rows


def _num_readers(stretch: _Stretch, cost: CutCost) -> int:
    """Runs and segments below that would read this stretch as well, if it is not read apart.

    Whether a child is cut is judged by its own length; with what it inherits it could only be cut
    more readily, so a cut that this count calls for never makes a plan dearer than no cut.
    """
    num_readers = len(stretch.run_idxs)
    for child in stretch.children:
        num_below = 1 if _pays(child, child.num_tokens, cost) else child.num_readers
        num_readers += num_below - len(child.run_idxs)
    return num_readers


def _shared_stretches(runs: Sequence[RunSpan]) -> list[_Stretch]:
    """All stretches with two or more runs, parents before their children."""
    runs_of: dict[Node, list[int]] = {}
    for idx, run in enumerate(runs):
        node = run.lease.node
        while node is not None and node.parent is not None:
            if node.start < run.start:
                runs_of.setdefault(node, []).append(idx)
            node = node.parent
    shared = [node for node, run_idxs in runs_of.items() if len(run_idxs) > 1]
    shared.sort(key=_start_of)
    stretches: list[_Stretch] = []
    last_of: dict[Node, _Stretch] = {}
    for node in shared:
        assert node.parent is not None
        above = last_of.get(node.parent)
        for stretch in _cut_at_starts(node, runs_of[node], runs):
            if above is not None and len(above.run_idxs) == len(stretch.run_idxs):
                above.parts.extend(stretch.parts)  # the same runs: theirs are among those above
            else:
                if above is not None:
                    above.children.append(stretch)
                stretches.append(stretch)
                above = stretch
            last_of[node] = above
    return stretches


def _start_of(node: Node) -> int:
    return node.start


def _cut_at_starts(node: Node, run_idxs: list[int], runs: Sequence[RunSpan]) -> list[_Stretch]:
    """The stretches of one node, cut where runs start, as long as two runs are left."""
    stretches: list[_Stretch] = []
    start, end = node.start, node.end
    stops = sorted({min(runs[idx].start, end) for idx in run_idxs})
    for stop in stops:
        run_idxs = [idx for idx in run_idxs if runs[idx].start >= stop]
        if len(run_idxs) < 2:
            break
        num_rows = sum([runs[idx].num_tokens for idx in run_idxs])
        stretches.append(_Stretch([(node, start, stop)], run_idxs, num_rows))
        start = stop
    return stretches
