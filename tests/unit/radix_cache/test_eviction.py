"""Eviction and pins: what goes first, what stays, and that nothing leased ever goes."""

from umbel.radix_cache import AppendOutcome, Lease, Namespace, RadixCache, TokenKind
from umbel.radix_cache.pins import MAX_PINS

HERE = Namespace("model")
PROMPT, OUTPUT = TokenKind.PROMPT, TokenKind.OUTPUT


def _filled(cache: RadixCache, tokens: list[int], kind: TokenKind = PROMPT) -> Lease:
    lease = cache.lease(HERE)
    passed = lease.advance(tokens, 0, len(tokens))
    result = lease.append(tokens, passed, len(tokens), kind=kind)
    assert result.outcome is AppendOutcome.OK
    cache.commit_step()
    return lease


def _first_tokens(cache: RadixCache) -> list[int]:
    """The first token of each node below the root, ascending."""
    return sorted(view.tokens[0] for view in cache.snapshot() if view.tokens)


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = RadixCache(16, 4)
    for first in (1, 2, 3):
        _filled(cache, [first] * 4).release()
    _filled(cache, [1] * 4).release()

    assert cache.evict(1) == 1
    assert _first_tokens(cache) == [1, 3]
    cache.check()


def test_outputs_go_before_prompts_that_were_used_earlier() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 4, PROMPT).release()
    _filled(cache, [2] * 4, OUTPUT).release()

    cache.evict(1)

    assert _first_tokens(cache) == [1]


def test_a_long_leaf_is_trimmed_from_its_end() -> None:
    cache = RadixCache(300, 4)
    tokens = list(range(1000))
    _filled(cache, tokens).release()

    assert cache.evict(2) == 2
    assert cache.num_cached_blocks == 248
    lease = cache.lease(HERE)
    assert lease.advance(tokens, 0, 1000) == 992
    cache.check()


def test_children_go_before_their_parent() -> None:
    cache = RadixCache(16, 4)
    parent = _filled(cache, [1, 2, 3, 4])
    child = parent.fork()
    child.append([5], 0, 1, kind=OUTPUT)
    cache.commit_step()
    child.release()
    parent.release()

    cache.evict(1)
    cache.check()

    assert _first_tokens(cache) == [1]


def test_leased_blocks_are_never_evicted() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 9)
    _filled(cache, [2] * 4).release()

    assert cache.evict(100) == 1
    assert cache.clear() == 0
    assert (cache.num_free_blocks, cache.num_leased_blocks) == (13, 3)
    cache.check()


def test_appending_evicts_what_it_needs() -> None:
    cache = RadixCache(4, 4)
    _filled(cache, [1] * 12).release()

    _filled(cache, [2] * 8)

    assert (cache.num_leased_blocks, cache.num_cached_blocks) == (2, 2)
    assert cache.stats().total_evicted_blocks == 1
    cache.check()


def test_an_append_that_cannot_fit_changes_nothing() -> None:
    cache = RadixCache(4, 4)
    _filled(cache, [1] * 4)
    _filled(cache, [2] * 4).release()
    lease = cache.lease(HERE)
    before = cache.snapshot()

    result = lease.append([3] * 13, 0, 13, kind=PROMPT)

    assert result.outcome is AppendOutcome.NO_BLOCKS
    assert cache.snapshot() == before
    assert cache.stats().total_refused == 1
    cache.check()


def test_a_path_that_just_fits_the_pool_is_not_refused_for_a_copied_tail() -> None:
    cache = RadixCache(4, 4)
    parent = _filled(cache, [1] * 6)
    left, right = parent.fork(), parent.fork()
    left.append([2], 0, 1, kind=OUTPUT)
    right.append([3], 0, 1, kind=OUTPUT)
    cache.commit_step()
    parent.release()
    left.release()

    result = right.append([4] * 9, 0, 9, kind=OUTPUT)

    assert result.outcome is AppendOutcome.OK
    assert (right.num_tokens, cache.num_leased_blocks) == (16, 4)
    cache.check()


def test_a_tail_copied_twice_over_in_one_block_is_given_up_as_well() -> None:
    cache = RadixCache(3, 4)
    top = _filled(cache, [1, 2], PROMPT)
    middle = top.fork()
    middle.append([3], 0, 1, kind=OUTPUT)
    left, right = middle.fork(), middle.fork()
    cache.commit_step()
    left.append([4], 0, 1, kind=PROMPT)
    right.append([5], 0, 1, kind=PROMPT)
    cache.commit_step()
    for lease in (top, middle, left):
        lease.release()

    result = right.append([6] * 8, 0, 8, kind=PROMPT)

    assert result.outcome is AppendOutcome.OK
    assert cache.num_leased_blocks == 3
    cache.check()


def test_a_copy_that_is_not_made_yet_is_no_substitute_for_the_original() -> None:
    cache = RadixCache(4, 4)
    parent = _filled(cache, [1] * 6)
    slots = parent.slots(0, 6)
    left, right = parent.fork(), parent.fork()
    left.append([2], 0, 1, kind=OUTPUT)
    right.append([3], 0, 1, kind=OUTPUT)
    left.release()

    result = right.append([4] * 9, 0, 9, kind=OUTPUT)

    assert result.outcome is AppendOutcome.NO_BLOCKS
    cache.discard_step()
    assert parent.slots(0, 6) == right.slots(0, 6) == slots
    cache.check()


def test_a_cached_continuation_of_the_tail_gives_way_when_blocks_are_short() -> None:
    cache = RadixCache(1, 4)
    parent = _filled(cache, [1, 2])
    child = parent.fork()
    child.append([3], 0, 1, kind=OUTPUT)
    cache.commit_step()
    child.release()

    result = parent.append([4], 0, 1, kind=OUTPUT)

    assert (result.outcome, result.copies) == (AppendOutcome.OK, [])
    cache.check()


def test_the_part_of_a_node_that_nobody_covers_can_be_evicted() -> None:
    cache = RadixCache(16, 4)
    short = _filled(cache, [1] * 4)
    long = short.fork()
    long.append([2] * 8, 0, 8, kind=PROMPT)
    cache.commit_step()

    long.release()

    assert (cache.num_leased_blocks, cache.num_cached_blocks) == (1, 2)
    cache.check()


def test_the_eviction_queue_stays_small_when_a_leaf_is_used_often() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 4).release()
    for _ in range(1000):
        _filled(cache, [1] * 4).release()

    cache.check()


def test_a_pin_keeps_a_path_until_it_ends() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 8).release()

    assert cache.pin(7, [1] * 9, HERE) == 8
    assert (cache.evict(2), cache.stats().num_pins, cache.stats().num_pinned_tokens) == (0, 1, 8)
    cache.unpin(7)
    assert (cache.evict(2), cache.stats().num_pins, cache.stats().num_pinned_tokens) == (2, 0, 0)
    cache.check()


def test_a_pin_may_end_inside_a_node() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 16).release()

    assert cache.pin(7, [1] * 6, HERE) == 6
    assert (cache.clear(), cache.num_leased_blocks) == (2, 2)
    cache.check()


def test_a_pin_of_what_is_not_there_is_no_pin() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 8).release()

    assert (cache.pin(1, [2], HERE), cache.pin(2, [1], Namespace("another"))) == (0, 0)
    assert (cache.stats().num_pins, cache.num_leased_blocks) == (0, 0)
    cache.check()


def test_a_pin_without_reuse_is_no_pin() -> None:
    cache = RadixCache(16, 4, enable_reuse=False)
    lease = _filled(cache, [1] * 8)

    assert cache.pin(1, [1] * 8, HERE) == 0
    lease.release()
    assert cache.num_free_blocks == 16


def test_a_pin_does_not_keep_tokens_that_were_never_computed() -> None:
    cache = RadixCache(16, 4)
    lease = _filled(cache, [1] * 8)
    lease.append([2] * 4, 0, 4, kind=PROMPT)

    assert cache.pin(1, [1] * 8 + [2] * 4, HERE) == 8
    lease.release()
    cache.commit_step()
    assert (cache.num_leased_blocks, cache.num_free_blocks) == (2, 14)
    cache.check()


def test_a_pin_is_no_reuse() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 8).release()
    before = cache.stats().total_hit_tokens

    cache.pin(1, [1] * 8, HERE)

    assert cache.stats().total_hit_tokens == before


def test_the_longest_pin_is_dropped_first() -> None:
    cache = RadixCache(16, 4)
    for token in (1, 2, 3):
        _filled(cache, [token] * 4 * token).release()
        cache.pin(token, [token] * 4 * token, HERE)

    assert cache.drop_pin()
    assert (cache.evict(16), cache.num_leased_blocks) == (3, 3)
    assert (cache.drop_pin(), cache.drop_pin(), cache.drop_pin()) == (True, True, False)
    assert (cache.num_leased_blocks, cache.stats().total_dropped_pins) == (0, 3)
    cache.check()


def test_a_number_has_one_pin_and_unpinning_twice_is_nothing() -> None:
    cache = RadixCache(16, 4)
    _filled(cache, [1] * 8).release()
    cache.pin(1, [1] * 8, HERE)
    cache.pin(1, [1] * 4, HERE)

    assert (cache.stats().num_pins, cache.num_leased_blocks) == (1, 1)
    cache.unpin(1)
    cache.unpin(1)
    assert cache.num_leased_blocks == 0


def test_the_number_of_pins_is_bounded() -> None:
    cache = RadixCache(4, 4)
    _filled(cache, [1] * 8).release()

    for pin_id in range(MAX_PINS + 20):
        cache.pin(pin_id, [1] * (1 + pin_id % 8), HERE)

    assert cache.stats().num_pins == MAX_PINS
    cache.check()
    cache.unpin_all()
    assert (cache.num_leased_blocks, cache.stats().num_pinned_tokens) == (0, 0)
