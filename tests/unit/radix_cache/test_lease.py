"""Leases: matching, appending, copy-on-write, forks and truncation, edge by edge."""

import pytest

from umbel.radix_cache import (
    AppendOutcome,
    BlockCopy,
    Lease,
    Namespace,
    RadixCache,
    RadixInvariantError,
    TokenKind,
)

HERE = Namespace("model")
PROMPT, OUTPUT = TokenKind.PROMPT, TokenKind.OUTPUT


def _filled(cache: RadixCache, tokens: list[int], kind: TokenKind = PROMPT) -> Lease:
    """A lease on `tokens`, all of them computed; nothing else may be pending."""
    lease = cache.lease(HERE)
    passed = lease.advance(tokens, 0, len(tokens))
    result = lease.append(tokens, passed, len(tokens), kind=kind)
    assert result.outcome is AppendOutcome.OK
    cache.commit_step()
    return lease


def _matched(cache: RadixCache, tokens: list[int], namespace: Namespace = HERE) -> int:
    lease = cache.lease(namespace)
    passed = lease.advance(tokens, 0, len(tokens))
    lease.release()
    return passed


def test_an_empty_lease_reads_nothing_and_leaves_nothing() -> None:
    cache = RadixCache(4, 4)
    lease = cache.lease(HERE)

    assert lease.advance([1, 2], 0, 2) == 0
    assert lease.append([1], 0, 0, kind=PROMPT).outcome is AppendOutcome.OK
    assert (lease.num_tokens, lease.block_table(), lease.slots(0, 0)) == (0, [], [])
    lease.release()
    assert cache.snapshot() == []


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 12, 13])
def test_a_path_takes_as_few_blocks_as_hold_it_and_is_found_again(num_tokens: int) -> None:
    cache = RadixCache(8, 4)
    tokens = list(range(num_tokens))
    lease = _filled(cache, tokens)

    assert cache.num_leased_blocks == -(-num_tokens // 4)
    assert lease.slots(0, num_tokens) == list(range(num_tokens))
    lease.release()
    assert _matched(cache, [*tokens, 99]) == num_tokens
    cache.check()


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 6, 8])
def test_appending_token_by_token_makes_one_node_of_one_run(num_tokens: int) -> None:
    cache = RadixCache(8, 4)
    lease = cache.lease(HERE)
    for token in range(num_tokens):
        lease.append([token], 0, 1, kind=OUTPUT)
        cache.commit_step()
        cache.check()

    assert [view.tokens for view in cache.snapshot()] == [[], list(range(num_tokens))]
    assert len(lease.slot_ranges(0, num_tokens)) == 1


def test_divergence_inside_a_block_copies_the_common_tail() -> None:
    cache = RadixCache(8, 4)
    first = _filled(cache, [1, 2, 3, 4, 5, 6, 7])
    second = cache.lease(HERE)

    passed = second.advance([1, 2, 3, 4, 5, 9], 0, 6)
    result = second.append([9], 0, 1, kind=PROMPT)

    assert passed == 5
    src, dst = first.block_table()[1], second.block_table()[1]
    assert result.copies == [BlockCopy(src, dst, num_tokens=1)]
    assert src != dst
    assert first.block_table()[0] == second.block_table()[0]
    cache.check()


def test_divergence_at_a_block_border_copies_nothing() -> None:
    cache = RadixCache(8, 4)
    _filled(cache, [1, 2, 3, 4, 5, 6])
    second = cache.lease(HERE)
    second.advance([1, 2, 3, 4, 9], 0, 5)

    assert second.append([9], 0, 1, kind=PROMPT).copies == []
    cache.check()


def test_the_first_child_goes_on_in_the_tail_and_the_second_gets_a_copy() -> None:
    cache = RadixCache(8, 4)
    parent = _filled(cache, [1, 2])
    left, right = parent.fork(), parent.fork()

    copies_left = left.append([3], 0, 1, kind=OUTPUT).copies
    copies_right = right.append([4], 0, 1, kind=OUTPUT).copies

    assert copies_left == []
    assert copies_right == [BlockCopy(left.block_table()[0], right.block_table()[0], 2)]
    cache.check()


def test_the_tail_is_free_again_when_the_child_that_used_it_is_evicted() -> None:
    cache = RadixCache(8, 4)
    parent = _filled(cache, [1, 2])
    child = parent.fork()
    child.append([3], 0, 1, kind=OUTPUT)
    cache.commit_step()
    child.release()
    cache.clear()

    other = parent.fork()

    assert other.append([4], 0, 1, kind=OUTPUT).copies == []
    cache.check()


def test_two_hundred_forks_share_the_prefix_and_keep_their_own_ends() -> None:
    cache = RadixCache(512, 4)
    parent = _filled(cache, list(range(10)))
    forks = [parent.fork() for _ in range(200)]
    for idx, fork in enumerate(forks):
        assert fork.append([100 + idx], 0, 1, kind=OUTPUT).outcome is AppendOutcome.OK
    cache.commit_step()
    cache.check()

    assert {tuple(fork.slots(0, 10)) for fork in forks} == {tuple(range(10))}
    assert len({fork.slots(10, 11)[0] for fork in forks}) == 200
    assert cache.num_leased_blocks == 3 + 199
    for lease in [parent, *forks]:
        lease.release()
    assert cache.num_leased_blocks == 0
    cache.check()


def test_forks_that_go_the_same_way_stay_in_one_node() -> None:
    cache = RadixCache(16, 4)
    left = _filled(cache, [1], OUTPUT)
    right = left.fork()
    for token in range(20):
        left.append([token], 0, 1, kind=OUTPUT)
        assert right.advance([token], 0, 1) == 1
        cache.commit_step()
    cache.check()

    assert cache.stats().num_nodes == 1


def test_a_split_moves_each_lease_to_the_part_it_ends_in() -> None:
    cache = RadixCache(16, 4)
    tokens = list(range(12))
    long = _filled(cache, tokens)
    short = cache.lease(HERE)
    short.advance(tokens, 0, 3)
    other = cache.lease(HERE)
    other.advance(tokens, 0, 6)
    slots = long.slots(0, 12)

    other.append([99], 0, 1, kind=PROMPT)
    cache.commit_step()
    cache.check()

    assert long.slots(0, 12) == slots
    assert short.slots(0, 3) == slots[:3]
    assert other.slots(0, 6) == slots[:6]
    assert other.slots(6, 7) != slots[6:7]


def test_truncating_moves_the_end_back_and_keeps_the_rest_cached() -> None:
    cache = RadixCache(16, 4)
    lease = _filled(cache, list(range(12)))

    lease.truncate(4)

    assert (lease.num_tokens, cache.num_leased_blocks, cache.num_cached_blocks) == (4, 1, 2)
    assert _matched(cache, list(range(12))) == 12
    cache.check()


def test_truncating_to_nothing_and_starting_again_works() -> None:
    cache = RadixCache(16, 4)
    lease = _filled(cache, [1, 2, 3])

    lease.truncate(0)
    lease.append([9], 0, 1, kind=PROMPT)
    cache.commit_step()
    cache.check()

    assert _matched(cache, [9]) == 1
    assert _matched(cache, [1, 2, 3]) == 3


def test_truncating_beyond_the_end_raises() -> None:
    lease = _filled(RadixCache(4, 4), [1, 2])

    with pytest.raises(ValueError, match="expected 0 to 2 tokens"):
        lease.truncate(3)


def test_appending_what_the_tree_has_raises() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1, 2, 3])
    other = cache.lease(HERE)

    with pytest.raises(ValueError, match=r"token 1 at position 0 .* advance"):
        other.append([1], 0, 1, kind=PROMPT)
    other.advance([1], 0, 1)
    with pytest.raises(ValueError, match="token 2 at position 1"):
        other.append([2], 0, 1, kind=PROMPT)


def test_a_released_lease_cannot_be_used_but_can_be_released_again() -> None:
    lease = _filled(RadixCache(4, 4), [1, 2])
    lease.release()
    lease.release()

    with pytest.raises(ValueError, match="released"):
        lease.fork()


def test_reading_beyond_the_end_raises() -> None:
    lease = _filled(RadixCache(4, 4), [1, 2])

    with pytest.raises(ValueError, match="the path has 2 tokens"):
        lease.slots(0, 3)


def test_nothing_crosses_a_namespace() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1, 2, 3]).release()
    others = [Namespace("other"), Namespace("model", "lora"), Namespace("model", None, "tenant")]

    assert [_matched(cache, [1, 2, 3], namespace) for namespace in others] == [0, 0, 0]
    assert _matched(cache, [1, 2, 3], Namespace("model")) == 3
    assert cache.stats().num_namespaces == 1


def test_an_empty_namespace_is_dropped() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1, 2, 3]).release()

    cache.clear()

    assert cache.stats().num_namespaces == 0
    assert cache.snapshot() == []


def test_without_reuse_nothing_is_matched_and_nothing_is_kept() -> None:
    cache = RadixCache(16, 4, enable_reuse=False)
    first, second = _filled(cache, [1, 2, 3, 4, 5]), _filled(cache, [1, 2, 3, 4, 5])
    cache.check()

    assert not set(first.block_table()) & set(second.block_table())
    assert second.advance([6], 0, 1) == 0
    first.release()
    assert (cache.num_cached_blocks, cache.num_leased_blocks) == (0, 2)
    second.release()
    assert cache.num_free_blocks == 16
    cache.check()


def test_without_reuse_forks_may_append_the_same_token_apart() -> None:
    cache = RadixCache(16, 4, enable_reuse=False)
    first = _filled(cache, [1, 2])
    second = first.fork()
    first.append([3], 0, 1, kind=OUTPUT)

    result = second.append([3], 0, 1, kind=OUTPUT)

    assert result.copies == [BlockCopy(first.block_table()[0], second.block_table()[0], 2)]
    cache.check()
    first.release()
    second.release()
    assert cache.num_free_blocks == 16
    cache.check()


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0)])
def test_a_cache_without_room_raises(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        RadixCache(num_blocks, block_size)


def test_check_names_the_invariant_that_is_broken() -> None:
    cache = RadixCache(8, 4)
    lease = _filled(cache, [1, 2, 3, 4, 5])
    assert lease.node is not None

    lease.node.blocks.pop()

    with pytest.raises(RadixInvariantError, match="its blocks do not cover its tokens"):
        cache.check()


@pytest.mark.parametrize("enable_reuse", [True, False])
def test_what_is_matched_can_be_known_without_a_lease(enable_reuse: bool) -> None:
    cache = RadixCache(64, 4, enable_reuse=enable_reuse)
    paths = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 9], [1, 2, 3, 4, 5, 7, 8], [2, 2]]
    leases = [_filled(cache, path) for path in paths]
    pending = cache.lease(HERE)
    passed = pending.advance([2, 2, 5], 0, 3)
    pending.append([2, 2, 5], passed, 3, kind=OUTPUT)
    before, totals = cache.snapshot(), cache.stats()

    for tokens in [*paths, [], [1], [1, 2, 3, 4, 6], [1, 2, 3, 9, 9], [3], [2, 2, 5, 5]]:
        num_matched = cache.num_matched(tokens, HERE)
        assert (cache.snapshot(), cache.stats()) == (before, totals)
        assert num_matched == _matched(cache, tokens)
        totals = cache.stats()
    assert cache.num_matched([2, 2, 5], HERE) == (3 if enable_reuse else 0)
    assert cache.num_matched([1, 2], Namespace("other")) == 0
    for lease in leases:
        lease.release()
    cache.check()


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_the_next_slot_is_where_the_next_token_goes(block_size: int) -> None:
    cache = RadixCache(24, block_size)
    leases = [_filled(cache, [100 * n + i for i in range(n + 2)]) for n in range(3)]
    assert cache.lease(HERE).next_slot() is None
    num_told = 0

    for token in range(12):
        for lease in leases:
            told = lease.next_slot()
            end = lease.num_tokens
            if lease.append([token], 0, 1, kind=OUTPUT).outcome is not AppendOutcome.OK:
                continue
            assert told in (None, lease.slots(end, end + 1)[0])
            num_told += told is not None
        cache.commit_step()

    assert num_told > 20 if block_size > 1 else num_told > 10
    branch = leases[2].fork()
    leases[2].truncate(2)
    assert leases[2].next_slot() is None  # inside of a node
    branch.release()
