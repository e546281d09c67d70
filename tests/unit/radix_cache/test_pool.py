"""The block pool: consecutive blocks when it can, and never a block twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.radix_cache.pool import BlockPool


def test_a_large_allocation_is_one_run() -> None:
    pool = BlockPool(64)

    assert pool.allocate(40) == list(range(40))


def test_a_path_grows_into_the_block_after_its_last_one() -> None:
    pool = BlockPool(64)
    first = pool.allocate(1)
    pool.allocate(1)

    assert pool.allocate(2, after=first[-1]) == [first[0] + 1, first[0] + 2]


def test_paths_that_grow_in_turn_stay_consecutive() -> None:
    pool = BlockPool(64)
    paths = [pool.allocate(1) for _ in range(4)]
    for _ in range(7):
        for path in paths:
            path.extend(pool.allocate(1, after=path[-1]))

    assert all(path == list(range(path[0], path[0] + 8)) for path in paths)


def test_freed_neighbours_become_one_run_again() -> None:
    pool = BlockPool(8)
    blocks = pool.allocate(8)
    for block in (blocks[1], blocks[3], blocks[2], blocks[0]):
        pool.free([block])

    assert pool.runs() == [(0, 4)]
    assert pool.num_free == 4


def test_allocating_more_than_is_free_raises() -> None:
    pool = BlockPool(4)
    pool.allocate(3)

    with pytest.raises(ValueError, match="2 blocks wanted, 1 are free"):
        pool.allocate(2)


def test_freeing_a_block_twice_raises() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.free(blocks[:1])

    with pytest.raises(ValueError, match="freed twice"):
        pool.free(blocks)


def test_a_pool_without_blocks_raises() -> None:
    with pytest.raises(ValueError, match="num_blocks=0"):
        BlockPool(0)


@settings(deadline=None, max_examples=60)
@given(
    num_blocks=st.integers(1, 40),
    orders=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5), st.booleans()), max_size=60),
)
def test_the_free_runs_are_the_blocks_that_nobody_holds(
    num_blocks: int, orders: list[tuple[int, int, bool]]
) -> None:
    pool = BlockPool(num_blocks)
    held: list[list[int]] = []
    for num_wanted, pick, is_release in orders:
        if is_release and held:
            pool.free(held.pop(pick % len(held)))
        elif num_wanted <= pool.num_free:
            after = held[pick % len(held)][-1] if held else None
            held.append(pool.allocate(num_wanted, after=after))
            assert len(held[-1]) == num_wanted
        in_use = [block for blocks in held for block in blocks]
        free = [block for start, stop in pool.runs() for block in range(start, stop)]

        assert sorted(in_use + free) == list(range(num_blocks))
        assert pool.num_free == len(free) == sum(pool.is_free(b) for b in range(num_blocks))
