"""The cache against a naive model: leases are token lists, slots hold prefixes.

Copies and the writes of a step change an array of such contents as the runner changes KV, so that
reading the slots of a lease must give its prefixes, one after the other.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from umbel.radix_cache import AppendOutcome, BlockCopy, Lease, Namespace, RadixCache, TokenKind

NAMESPACES = (Namespace("model"), Namespace("model", tenant="other"))
CHUNKS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
PICKS = st.integers(0, 99)
Content = tuple[Namespace, tuple[int, ...]]


@dataclass(eq=False)
class _Held:
    """A live lease and the tokens that the model says it has."""

    lease: Lease
    namespace: Namespace
    tokens: list[int]

    def content(self, position: int) -> Content:
        return self.namespace, tuple(self.tokens[: position + 1])


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, 24), block_size=st.integers(1, 5), enable_reuse=st.booleans()
    )
    def start(self, num_blocks: int, block_size: int, enable_reuse: bool) -> None:
        self.cache = RadixCache(num_blocks, block_size, enable_reuse=enable_reuse)
        self.enable_reuse = enable_reuse
        self.contents: list[Content | None] = [None] * (num_blocks * block_size)
        self.copies: list[BlockCopy] = []
        self.appended: set[Content] = set()  # in this step
        self.held: list[_Held] = []

    @rule(namespace=st.sampled_from(NAMESPACES), tokens=CHUNKS, kind=st.sampled_from(TokenKind))
    def begin(self, namespace: Namespace, tokens: list[int], kind: TokenKind) -> None:
        self.held.append(_Held(self.cache.lease(namespace), namespace, []))
        self._extend(self.held[-1], tokens, kind)

    @precondition(lambda self: self.held)
    @rule(pick=PICKS, tokens=CHUNKS, kind=st.sampled_from(TokenKind))
    def extend(self, pick: int, tokens: list[int], kind: TokenKind) -> None:
        self._extend(self._pick(pick), tokens, kind)

    @precondition(lambda self: self.held)
    @rule(pick=PICKS)
    def fork(self, pick: int) -> None:
        held = self._pick(pick)
        self.held.append(_Held(held.lease.fork(), held.namespace, list(held.tokens)))

    @precondition(lambda self: self.held)
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        held = self._pick(pick)
        self.held.remove(held)
        held.lease.release()

    @precondition(lambda self: self.held)
    @rule(pick=PICKS, num_tokens=st.integers(0, 30))
    def truncate(self, pick: int, num_tokens: int) -> None:
        held = self._pick(pick)
        num_tokens = min(num_tokens, len(held.tokens))
        held.lease.truncate(num_tokens)
        del held.tokens[num_tokens:]

    @rule()
    def commit(self) -> None:
        self._run_step()
        self.cache.commit_step()
        self._end_step()

    @rule(is_written=st.booleans())
    def discard(self, is_written: bool) -> None:
        expected = [self._num_computed(held) for held in self.held]
        if is_written:  # a step may fail before or after its copies and writes
            self._run_step()

        self.cache.discard_step()

        if self.enable_reuse:
            assert [held.lease.num_tokens for held in self.held] == expected
        for held in self.held:
            del held.tokens[held.lease.num_tokens :]
        self._end_step()

    @rule(num_blocks=st.integers(0, 8))
    def evict(self, num_blocks: int) -> None:
        expected = min(num_blocks, self.cache.num_cached_blocks)

        assert self.cache.evict(num_blocks) == expected

    @rule()
    def clear(self) -> None:
        self.cache.clear()

        assert self.cache.num_cached_blocks == 0

    @precondition(lambda self: self.held)
    @rule(pick=PICKS, pin_id=st.integers(0, 5), num_more=st.integers(-4, 2))
    def pin(self, pick: int, pin_id: int, num_more: int) -> None:
        held = self._pick(pick)
        tokens = [*held.tokens, 1, 1][: max(len(held.tokens) + num_more, 0)]

        num_pinned = self.cache.pin(pin_id, tokens, held.namespace)

        least = min(len(tokens), self._num_computed(held)) if self.enable_reuse else 0
        assert least <= num_pinned <= len(tokens)

    @rule(pin_id=st.integers(0, 5))
    def unpin(self, pin_id: int) -> None:
        self.cache.unpin(pin_id)

    @rule()
    def drop_pin(self) -> None:
        had_pins = self.cache.stats().num_pins > 0

        assert self.cache.drop_pin() == had_pins

    @invariant()
    def structure_is_sound(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()
            blocks = (
                self.cache.num_free_blocks,
                self.cache.num_leased_blocks,
                self.cache.num_cached_blocks,
            )
            assert min(blocks) >= 0
            assert sum(blocks) == self.cache.num_blocks

    @invariant()
    def computed_tokens_are_in_their_slots(self) -> None:
        for held in getattr(self, "held", []):
            assert held.lease.num_tokens == len(held.tokens)
            num_computed = self._num_computed(held)
            for position, slot in enumerate(held.lease.slots(0, num_computed)):
                assert self.contents[slot] == held.content(position)

    def teardown(self) -> None:
        for held in getattr(self, "held", []):
            held.lease.release()
        if hasattr(self, "cache"):
            self.cache.unpin_all()
            assert self.cache.num_leased_blocks == 0
            self.cache.clear()
            self.cache.check()
            assert self.cache.num_free_blocks == self.cache.num_blocks

    def _pick(self, pick: int) -> _Held:
        return self.held[pick % len(self.held)]

    def _extend(self, held: _Held, tokens: list[int], kind: TokenKind) -> None:
        lease = held.lease
        wanted = held.tokens + tokens
        passed = lease.advance(tokens, 0, len(tokens))
        assert self._least_match(held, wanted) <= len(held.tokens) + passed <= len(wanted)
        held.tokens += tokens[:passed]
        if passed == len(tokens):
            return
        before = self.cache.snapshot()
        was_pending = lease.num_pending > 0
        result = lease.append(tokens, passed, len(tokens), kind=kind)
        if result.outcome is AppendOutcome.OK:
            held.tokens += tokens[passed:]
            self.copies += result.copies
            self.appended |= {
                held.content(position)
                for position in range(len(wanted) - len(tokens) + passed, len(wanted))
            }
        elif result.outcome is AppendOutcome.PENDING_COPY:
            assert was_pending
            assert self.cache.snapshot() == before
        else:
            is_alone = len(self.held) == 1 and self.cache.stats().num_pins == 0
            num_needed = -(-len(wanted) // self.cache.block_size)
            assert was_pending or not is_alone or num_needed > self.cache.num_blocks

    def _least_match(self, held: _Held, wanted: list[int]) -> int:
        """How far other leases' paths go along with `wanted`: the tree must know at least that."""
        if not self.enable_reuse:
            return 0
        longest = len(held.tokens)
        for other in self.held:
            if other.namespace == held.namespace:
                common = 0
                for left, right in zip(other.tokens, wanted, strict=False):
                    if left != right:
                        break
                    common += 1
                longest = max(longest, common)
        return longest

    def _num_computed(self, held: _Held) -> int:
        """By the model: the tokens before the first one that was appended in this step."""
        if not self.enable_reuse:  # equal prefixes are distinct then
            return held.lease.num_tokens - held.lease.num_pending
        for position in range(len(held.tokens)):
            if held.content(position) in self.appended:
                assert held.lease.num_pending == len(held.tokens) - position
                return position
        assert held.lease.num_pending == 0
        return len(held.tokens)

    def _run_step(self) -> None:
        """What the runner does: copies in order, then all writes, then reading whole contexts."""
        size = self.cache.block_size
        for copy in self.copies:
            src, dst = copy.src * size, copy.dst * size
            self.contents[dst : dst + copy.num_tokens] = self.contents[src : src + copy.num_tokens]
        for held in self.held:
            num_computed = self._num_computed(held)
            for position in range(num_computed, len(held.tokens)):
                slot = held.lease.slots(position, position + 1)[0]
                self.contents[slot] = held.content(position)
        for held in self.held:
            table = held.lease.block_table()
            assert len(table) == -(-len(held.tokens) // size)
            for position, slot in enumerate(held.lease.slots(0, len(held.tokens))):
                assert self.contents[slot] == held.content(position)
                paged = table[position // size] * size + position % size
                assert self.contents[paged] == held.content(position)

    def _end_step(self) -> None:
        self.copies.clear()
        self.appended.clear()


CacheMachine.TestCase.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
TestCache = CacheMachine.TestCase
