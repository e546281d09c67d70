"""Pending tokens: shared inside a step, never copied, never matched if the step did not happen."""

from umbel.radix_cache import AppendOutcome, Lease, Namespace, RadixCache, TokenKind

HERE = Namespace("model")
PROMPT, OUTPUT = TokenKind.PROMPT, TokenKind.OUTPUT


def _started(cache: RadixCache, tokens: list[int]) -> tuple[Lease, int]:
    """A lease on `tokens`, pending where they are new, and how many of them were not."""
    lease = cache.lease(HERE)
    passed = lease.advance(tokens, 0, len(tokens))
    assert lease.append(tokens, passed, len(tokens), kind=PROMPT).outcome is AppendOutcome.OK
    return lease, passed


def test_equal_prompts_of_one_step_are_appended_once() -> None:
    cache = RadixCache(16, 4)
    first, _ = _started(cache, [1, 2, 3, 4, 5])

    second, passed = _started(cache, [1, 2, 3, 4, 5])

    assert passed == 5
    assert second.slots(0, 5) == first.slots(0, 5)
    assert (first.num_pending, second.num_pending) == (5, 5)
    cache.commit_step()
    assert (first.num_pending, second.num_pending) == (0, 0)
    cache.check()


def test_a_tail_that_is_only_just_computed_is_not_copied() -> None:
    cache = RadixCache(16, 4)
    _started(cache, [1, 2, 3])
    second = cache.lease(HERE)
    second.advance([1, 2, 9], 0, 3)
    before = cache.snapshot()

    refused = second.append([9], 0, 1, kind=PROMPT)

    assert (refused.outcome, refused.copies) == (AppendOutcome.PENDING_COPY, [])
    assert cache.snapshot() == before
    cache.commit_step()
    accepted = second.append([9], 0, 1, kind=PROMPT)
    assert accepted.outcome is AppendOutcome.OK
    assert len(accepted.copies) == 1
    cache.check()


def test_going_on_in_a_pending_tail_needs_no_copy() -> None:
    cache = RadixCache(16, 4)
    first, _ = _started(cache, [1, 2])
    first.fork().append([3], 0, 1, kind=OUTPUT)

    assert first.append([4], 0, 1, kind=OUTPUT).outcome is AppendOutcome.PENDING_COPY
    cache.check()


def test_a_release_before_the_commit_forgets_what_was_never_computed() -> None:
    cache = RadixCache(16, 4)
    lease, _ = _started(cache, [1, 2, 3, 4, 5])

    lease.release()

    assert cache.num_free_blocks == 16
    assert cache.snapshot() == []
    cache.commit_step()
    assert _started(cache, [1, 2, 3, 4, 5])[1] == 0
    cache.check()


def test_a_release_before_the_commit_keeps_the_computed_part_of_the_node() -> None:
    cache = RadixCache(16, 4)
    lease, _ = _started(cache, [1, 2, 3])
    cache.commit_step()
    lease.append([4, 5, 6], 0, 3, kind=PROMPT)

    lease.release()

    assert (cache.num_free_blocks, cache.num_cached_blocks) == (15, 1)
    assert _started(cache, [1, 2, 3, 4])[1] == 3
    cache.check()


def test_a_release_before_the_commit_keeps_what_another_lease_passed_over() -> None:
    cache = RadixCache(16, 4)
    first, _ = _started(cache, [1, 2, 3, 4, 5, 6])
    second = cache.lease(HERE)
    second.advance([1, 2, 3], 0, 3)

    first.release()
    cache.check()

    assert second.num_pending == 3
    cache.commit_step()
    assert _started(cache, [1, 2, 3, 4])[1] == 3


def test_a_discarded_step_moves_every_lease_back_to_its_computed_tokens() -> None:
    cache = RadixCache(16, 4)
    first, _ = _started(cache, [1, 2, 3, 4, 5])
    cache.commit_step()
    second = first.fork()
    third, _ = _started(cache, [7, 8])
    first.append([6], 0, 1, kind=PROMPT)
    second.append([9], 0, 1, kind=OUTPUT)

    cache.discard_step()
    cache.check()

    lengths = [lease.num_tokens for lease in (first, second, third)]
    assert lengths == [5, 5, 0]
    assert [view.tokens for view in cache.snapshot()] == [[], [1, 2, 3, 4, 5]]


def test_a_step_is_discarded_after_its_leases_were_released() -> None:
    cache = RadixCache(16, 4)
    lease, _ = _started(cache, [1, 2, 3, 4, 5])
    lease.release()

    cache.discard_step()

    assert cache.num_free_blocks == 16
    cache.check()


def test_tokens_truncated_before_the_commit_are_forgotten() -> None:
    cache = RadixCache(16, 4)
    lease, _ = _started(cache, [1, 2, 3, 4, 5, 6])

    lease.truncate(3)
    cache.commit_step()
    cache.check()

    assert cache.num_leased_blocks == 1
    assert _started(cache, [1, 2, 3, 4])[1] == 3
