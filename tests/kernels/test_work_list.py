"""The work list covers what the plan says, exactly once, whatever the plan and the cuts."""

import time
from collections import Counter

import numpy as np
import pytest
from attention_cases import Case, build
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.work_list import WIDE_TILE, WorkList, plan_work
from umbel.kernels.triton.work_split import (
    ALL_VISIBLE_END,
    KEY_BEGIN,
    KEY_END,
    NUM_ROWS,
    PAGE_OFFSET,
    PARTIAL,
    ROWS_BEGIN,
    DeviceRates,
    HeadShape,
)

LLAMA_8B = HeadShape(num_kv_heads=8, group=4, head_dim=128, element_bytes=2)
SIZE = 16  # of a block


@st.composite
def plans(
    draw: st.DrawFn,
) -> tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]]:
    """A forest of shared stretches whose key at position p has slot 1000 * stretch + p."""
    shared: list[KeyStretch] = []
    parents: list[int | None] = []
    for number in range(draw(st.integers(0, 4))):
        parent = draw(st.one_of(st.none(), st.integers(0, number - 1))) if number else None
        begin = 0 if parent is None else shared[parent].position + shared[parent].num_keys
        length = draw(st.integers(1, 60))
        shared.append(KeyStretch(begin, [(_slot(number, begin), length)], []))
        parents.append(parent)
    runs, tails = [], []
    for number in range(draw(st.integers(1, 6))):
        above = draw(st.one_of(st.none(), st.integers(0, len(shared) - 1))) if shared else None
        begin = 0 if above is None else shared[above].position + shared[above].num_keys
        num_own, num_rows = draw(st.integers(0, 40)), draw(st.integers(1, 90))
        runs.append(QueryRun(begin + num_own, num_rows))
        tails.append(KeyStretch(begin, [(_slot(100 + number, begin), num_own + num_rows)]))
        while above is not None:
            shared[above].run_idxs.append(number)
            above = parents[above]
    return runs, [stretch for stretch in shared if stretch.run_idxs], tails


def _slot(stretch: int, position: int) -> int:
    return 1600 * stretch + position


def seen_keys(work: WorkList, item: np.ndarray, row: int) -> list[tuple[int, int]]:
    """Position and slot of what the kernels let this row see in an item."""
    position = int(work.positions[row])
    begin, end = int(item[KEY_BEGIN]), min(int(item[KEY_END]), position + 1)
    if work.window is not None:
        begin = max(begin, position - work.window + 1)
    return [
        (n, int(work.pages[item[PAGE_OFFSET] + n // SIZE]) * SIZE + n % SIZE)
        for n in range(begin, end)
    ]


@settings(max_examples=60, deadline=None)
@given(
    plans(),
    st.one_of(st.none(), st.integers(1, 70)),
    st.one_of(st.none(), st.integers(1, 100)),
    st.sampled_from([1, 3, 8]),
)
def test_every_row_sees_each_of_its_keys_exactly_once(
    plan: tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]],
    window: int | None,
    chunk: int | None,
    group: int,
) -> None:
    runs, shared, tails = plan
    heads = HeadShape(num_kv_heads=2, group=group, head_dim=64, element_bytes=2)

    work = plan_work(
        runs,
        shared,
        tails,
        heads=heads,
        block_size=SIZE,
        rates=DeviceRates(),
        window=window,
        chunk=chunk,
    )

    seen: list[list[tuple[int, int]]] = [[] for _ in range(work.num_rows)]
    places: list[int] = []
    direct: Counter[int] = Counter()
    for items, tile in ((work.narrow, work.narrow_tile), (work.wide, WIDE_TILE)):
        for item in items:
            assert 0 < item[NUM_ROWS] * group <= tile
            assert item[KEY_BEGIN] < item[KEY_END]
            rows = work.rows[item[ROWS_BEGIN] :][: item[NUM_ROWS]]
            visible = min(item[KEY_END], item[ALL_VISIBLE_END])
            assert (work.positions[rows] >= visible - 1).all()
            for i, row in enumerate(rows.tolist()):
                seen[row] += seen_keys(work, item, row)
                if item[PARTIAL] < 0:
                    direct[row] += 1
                else:
                    places.append(int(item[PARTIAL]) + i)
    assert sorted(places) == list(range(work.num_partials))
    assert sorted(work.merge_list.tolist()) == sorted(places)
    merged = np.diff(work.merge_begin)
    assert all((direct[row] == 1) != (merged[row] > 0) for row in range(work.num_rows))
    for run_idx, run in enumerate(runs):
        above = [stretch for stretch in shared if run_idx in stretch.run_idxs]
        slots = [
            stretch.ranges[0][0] + i
            for stretch in sorted([*above, tails[run_idx]], key=lambda one: one.position)
            for i in range(stretch.num_keys)
        ]
        first_row = sum(one.num_rows for one in runs[:run_idx])
        for i in range(run.num_rows):
            last = run.start + i
            first = 0 if window is None else max(0, last - window + 1)
            expected = [(n, slots[n]) for n in range(first, last + 1)]
            assert sorted(seen[first_row + i]) == expected


def decode_plan(lengths: list[int]) -> tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]]:
    firsts = np.cumsum([0, *(-(-n // SIZE) * SIZE for n in lengths)])
    tails = [KeyStretch(0, [(int(first), n)]) for first, n in zip(firsts, lengths, strict=False)]
    return [QueryRun(n - 1, 1) for n in lengths], [], tails


def plan_decode(lengths: list[int]) -> WorkList:
    return plan_work(*decode_plan(lengths), heads=LLAMA_8B, block_size=SIZE, rates=DeviceRates())


def test_one_long_request_among_short_ones_is_cut_finely() -> None:
    work = plan_decode([65536] + [512] * 63)

    assert work.chunk <= 4096
    assert work.narrow[0, KEY_END] - work.narrow[0, KEY_BEGIN] == work.chunk


def test_a_full_batch_of_equal_requests_is_cut_no_finer_than_it_pays() -> None:
    assert plan_decode([4096] * 64).chunk >= 1024
    assert plan_decode([1024] * 256).num_partials == 0


def test_a_single_request_is_spread_over_the_device() -> None:
    work = plan_decode([32768])

    assert 132 <= len(work.narrow) * LLAMA_8B.num_kv_heads <= 2 * 264


def test_rows_of_a_shared_stretch_are_stacked_into_tiles_of_64() -> None:
    runs: list[tuple[int | None, int, int]] = [(0, 5, 1)] * 64
    case = Case(shared=[512], parents=[None], runs=runs, group=4, chunk=None, num_kv_heads=8)

    work = build(case).work

    assert work.narrow_tile == 64
    shared_items = work.narrow[work.narrow[:, NUM_ROWS] > 1]
    assert (shared_items[:, NUM_ROWS] == 16).all()
    assert len(work.wide) == 0


def test_a_later_range_gives_the_block_that_two_ranges_meet_in() -> None:
    tail = KeyStretch(0, [(0, 20), (36, 10)])  # position 20 lies in block 2, at offset 4

    work = plan_work(
        [QueryRun(29, 1)], [], [tail], heads=LLAMA_8B, block_size=SIZE, rates=DeviceRates()
    )

    assert work.pages.tolist() == [0, 2]


def test_slots_at_other_offsets_than_their_positions_are_refused() -> None:
    tail = KeyStretch(3, [(16, 10)])

    with pytest.raises(ValueError, match="slot 16 holds position 3"):
        plan_work(
            [QueryRun(12, 1)], [], [tail], heads=LLAMA_8B, block_size=SIZE, rates=DeviceRates()
        )


def test_planning_a_large_step_takes_milliseconds() -> None:
    lengths = np.random.default_rng(0).integers(100, 8192, 256).tolist()
    plan = decode_plan(lengths)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        plan_work(*plan, heads=LLAMA_8B, block_size=SIZE, rates=DeviceRates())
        times.append(time.perf_counter() - begin)

    assert min(times) < 0.02  # about 1.5 ms on an idle core
