"""Steps on a device: padding, replays, and what is planned before the plan comes."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from unit.runtime.tiny_model import GEMMA3, write_model

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.work_list import WorkList, list_pages, plan_work
from umbel.kernels.triton.work_split import DeviceRates, HeadShape
from umbel.kernels.triton.work_tensors import LaunchShape
from umbel.runtime.config import EngineConfig
from umbel.runtime.device.executor import StepExecutor
from umbel.runtime.device.graphs import StepGraphs, StepShape, row_buckets
from umbel.runtime.device.group import OneRank
from umbel.runtime.device.machine import HostMachine
from umbel.runtime.device.rank import Rank, load_rank
from umbel.runtime.device.step_input import NOT_WRITTEN, StepInput, pack_step, unpack_step
from umbel.runtime.device.work_planner import WorkPlanner

BLOCK = 4
NUM_BLOCKS = 64
HEADS = HeadShape(num_kv_heads=2, group=2, head_dim=16, element_bytes=4)


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    source = write_model(tmp_path_factory.mktemp("gemma"), **GEMMA3)
    config = EngineConfig(dtype="float32", block_size=BLOCK, max_step_tokens=40)
    return load_rank(config, source, HostMachine(), OneRank())


def executor_of(rank: Rank, *, use_graphs: bool) -> StepExecutor:
    executor = StepExecutor(
        rank.decoder,
        HostMachine(),
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK,
        max_rows=40,
        use_graphs=use_graphs,
    )
    executor.pool.fill_(torch.nan)  # what no row may see
    return executor


class Sequences:
    """Requests of one pool, each with blocks of its own behind a common first block."""

    def __init__(self, rank: Rank, lengths: list[int]) -> None:
        self._planner = WorkPlanner(HEADS, block_size=BLOCK, windows=rank.decoder.windows)
        self._rng = random.Random(len(lengths))
        self._room = (NUM_BLOCKS - 1) // len(lengths) * BLOCK
        self.lengths = [0] * len(lengths)
        self.prompt = [lengths, [BLOCK] * len(lengths)]

    def feed(self, counts: list[int], *, wanted: str = "last") -> StepInput:
        """A step that appends so many tokens to each."""
        runs = [QueryRun(length, count) for length, count in zip(self.lengths, counts, strict=True)]
        tails = [
            KeyStretch(0, [(BLOCK + idx * self._room, run.end)]) for idx, run in enumerate(runs)
        ]
        lasts = np.cumsum(counts) - 1
        self.lengths = [run.end for run in runs]
        return StepInput(
            token_ids=_ints([self._rng.randrange(259) for _ in range(sum(counts))]),
            positions=_ints([p for run in runs for p in range(run.start, run.end)]),
            slots=_ints(
                [
                    tails[idx].ranges[0][0] + p
                    for idx, run in enumerate(runs)
                    for p in range(run.start, run.end)
                ]
            ),
            wanted=_ints(list(lasts) if wanted == "last" else []),
            works=self._planner.plan(runs, [], tails),
        )


def _ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_padding_and_replays_change_nothing(rank: Rank) -> None:
    padded, exact = (executor_of(rank, use_graphs=use) for use in (True, False))
    sequences = Sequences(rank, [5, 1, 9, 2, 3])
    steps = [sequences.feed([5, 1, 9, 2, 3])] + [sequences.feed([1] * 5) for _ in range(12)]

    for step in steps:
        got, wanted = padded.execute(step), exact.execute(step)

        assert got.shape == wanted.shape == (5, 259)
        assert bool(wanted.isfinite().all())
        # Rows of a product may be summed in another order when there are more of them.
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(padded.pool, exact.pool, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert padded.graphs is not None
    assert padded.graphs.num_replayed >= 9
    assert 1 <= len(padded.graphs) <= 3


def test_a_step_without_wanted_logits_and_query_only_rows_write_what_they_say(rank: Rank) -> None:
    executor = executor_of(rank, use_graphs=True)
    sequences = Sequences(rank, [6])

    assert executor.execute(sequences.feed([6], wanted="none")).shape == (0, 259)
    before = executor.pool.clone()
    step = sequences.feed([1])
    step.slots[:] = NOT_WRITTEN
    step.positions[:] = 5  # the last cached position again
    step.works = WorkPlanner(HEADS, block_size=BLOCK, windows=rank.decoder.windows).plan(
        [QueryRun(5, 1)], [], [KeyStretch(0, [(BLOCK, 6)])]
    )

    assert bool(executor.execute(step).isfinite().all())
    assert torch.equal(executor.pool.nan_to_num(), before.nan_to_num())


def test_larger_steps_than_foreseen_get_more_room_and_forget_what_was_captured(rank: Rank) -> None:
    executor = executor_of(rank, use_graphs=True)
    exact = executor_of(rank, use_graphs=False)
    sequences = Sequences(rank, [1, 1])
    prompt = sequences.feed([3, 3])
    for one in (executor, exact):
        one.execute(prompt)
    assert executor.graphs is not None
    for _ in range(3):
        step = sequences.feed([1, 1])
        torch.testing.assert_close(executor.execute(step), exact.execute(step))
    assert len(executor.graphs) == 1

    step = sequences.feed([1, 1])
    for work in step.works:
        work.pages = np.concatenate([work.pages, np.zeros(1 << 13, np.int32)])
    torch.testing.assert_close(executor.execute(step), exact.execute(step))

    assert len(executor.graphs) == 0


class CountingMachine(HostMachine):
    def __init__(self) -> None:
        super().__init__()
        self.num_captured = 0

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.num_captured += 1
        return super().capture(compute)


def shape_of(num_rows: int) -> StepShape:
    launch = LaunchShape(num_narrow=num_rows, num_wide=0, narrow_tile=16, has_partials=False)
    return StepShape(num_rows, (launch,))


def test_a_shape_is_captured_when_it_comes_again_and_the_oldest_goes() -> None:
    machine = CountingMachine()
    graphs = StepGraphs(machine, 512, max_graphs=3)

    results = [float(graphs.run(shape_of(1), lambda i=i: torch.tensor(float(i)))) for i in range(3)]  # type: ignore[misc]  # bound now

    assert results == [0.0, 1.0, 1.0]  # the second was captured, the third replays it
    assert (machine.num_captured, graphs.num_replayed, len(graphs)) == (1, 2, 1)
    for num_rows in (2, 4, 8):
        for _ in range(2):
            graphs.run(shape_of(num_rows), lambda: torch.zeros(1))
    assert (machine.num_captured, len(graphs)) == (4, 3)
    graphs.run(shape_of(1), lambda: torch.zeros(1))
    assert machine.num_captured == 4  # forgotten: computed, to be captured the next time


@pytest.mark.parametrize("max_rows", [1, 2, 7, 64, 100, 512, 2000])
def test_every_number_of_rows_up_to_the_largest_has_a_bucket_near_it(max_rows: int) -> None:
    graphs = StepGraphs(HostMachine(), max_rows)
    largest = row_buckets(max_rows)[-1]

    assert largest == min(max_rows, 512)
    for num_rows in range(1, largest + 1):
        bucket = graphs.bucket(num_rows)
        assert bucket is not None
        assert num_rows <= bucket <= min(largest, max(num_rows + 8, num_rows * 1.25 + 4))
    assert graphs.bucket(largest + 1) is None


@st.composite
def steps_of_work(draw: st.DrawFn) -> tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]]:
    """A shared stretch and tails in ranges of blocks, as a radix tree gives them."""
    num_runs = draw(st.integers(1, 6))
    prefix = draw(st.integers(0, 5)) * BLOCK if num_runs > 1 else 0
    shared = [KeyStretch(0, [(400, prefix)], list(range(num_runs)))] if prefix else []
    runs, tails = [], []
    for idx in range(num_runs):
        own, rows = draw(st.integers(0, 25)), draw(st.sampled_from([1, 1, 1, 3, 40]))
        first = draw(st.integers(1, own + rows))
        ranges = [(1000 * idx + prefix, first)]
        if first < own + rows:
            ranges.append((1000 * idx + 504 + first % BLOCK + prefix, own + rows - first))
        runs.append(QueryRun(prefix + own, rows))
        tails.append(KeyStretch(prefix, ranges))
    return runs, shared, tails


def assert_equal_work(got: WorkList, wanted: WorkList) -> None:
    for name in WorkList.__dataclass_fields__:
        assert np.array_equal(getattr(got, name), getattr(wanted, name)), name


@settings(max_examples=40, deadline=None)
@given(steps_of_work(), steps_of_work(), st.booleans())
def test_what_is_laid_out_early_is_what_would_be_planned(
    first: tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]],
    other: tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]],
    goes_on: bool,
) -> None:
    windows: list[int | None] = [None, 7]
    planner = WorkPlanner(HEADS, block_size=BLOCK, windows=windows)
    planner.plan(*first)
    planner.prepare_next()
    runs, shared, tails = other
    if goes_on:  # each run decodes one more token, wherever its slot is
        runs = [QueryRun(run.start + 1, run.num_rows) for run in first[0]]
        shared = first[1]
        tails = [KeyStretch(t.position, [*t.ranges, (_next_slot(t), 1)]) for t in first[2]]

    got = planner.plan(runs, shared, tails)

    for work, window in zip(got, windows, strict=True):
        wanted = plan_work(
            runs,
            shared,
            tails,
            heads=HEADS,
            block_size=BLOCK,
            rates=DeviceRates(),
            window=window,
        )
        assert_equal_work(work, wanted)
        assert np.array_equal(list_pages([*shared, *tails], BLOCK), wanted.pages)
    is_decode = all(run.num_rows == 1 for run in first[0])
    assert planner.num_foreseen == (goes_on and is_decode) or not goes_on


def _next_slot(tail: KeyStretch) -> int:
    """After the last token: the next slot of its block, or the first of another block."""
    slot, length = tail.ranges[-1]
    last = slot + length - 1
    return last + 1 if (last + 1) % BLOCK else 3000


@settings(max_examples=30, deadline=None)
@given(steps_of_work(), st.integers(0, 3))
def test_a_step_survives_its_way_to_another_rank(
    plan: tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]], num_copies: int
) -> None:
    works = WorkPlanner(HEADS, block_size=BLOCK, windows=[None, 5]).plan(*plan)
    columns = [np.arange(count, dtype=np.int32) - 1 for count in (5, 5, 5, 2)]
    copies = [(_ints([1, 2][:i]), _ints([3, 4][:i])) for i in range(num_copies)]
    step = StepInput(*columns, copies=copies, works=works)

    got = unpack_step(pack_step(step))

    for name in ("token_ids", "positions", "slots", "wanted"):
        assert np.array_equal(getattr(got, name), getattr(step, name))
    assert [[a.tolist() for a in pair] for pair in got.copies] == [
        [a.tolist() for a in pair] for pair in copies
    ]
    for ours, theirs in zip(got.works, works, strict=True):
        assert_equal_work(ours, theirs)


def test_copies_are_done_in_order_before_the_step(rank: Rank) -> None:
    executor = executor_of(rank, use_graphs=True)
    executor.pool[:] = torch.arange(executor.pool.shape[2]).view(1, 1, -1, 1, 1)
    none = _ints([])
    step = StepInput(
        none, none, none, none, copies=[(_ints([0, 1]), _ints([4, 5])), (_ints([5]), _ints([0]))]
    )

    assert executor.execute(step).shape == (0, 259)

    assert executor.pool[1, 1, :6, 0, 3].tolist() == [1, 1, 2, 3, 0, 1]


def test_a_large_copy_gets_the_room_it_needs(rank: Rank, tmp_path: Path) -> None:
    executor = executor_of(rank, use_graphs=False)
    executor.pool[:] = torch.arange(executor.pool.shape[2]).view(1, 1, -1, 1, 1)
    half = executor.pool.shape[2] // 2
    none = _ints([])
    pair = (_ints(list(range(half))), _ints(list(range(half, 2 * half))))

    executor.execute(StepInput(none, none, none, none, copies=[pair]))

    assert executor.pool[0, 0, half:, 0, 0].tolist() == list(range(half))
