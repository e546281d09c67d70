"""Stacks of grammar states, interned, and what may come next on top of each.

A thread is one way to read the text so far: (reader, its state, where each tag leads). Stacks are
linked cells, so equal stacks are one object, pushing is a look-up, and stacks share what lies
below.
"""

from collections.abc import Callable, Collection

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.costs import Costs
from umbel.grammar.pushdown.leaves import Leaf
from umbel.grammar.pushdown.reading import DEAD, Reader
from umbel.grammar.pushdown.recorded import RecordedHead
from umbel.grammar.pushdown.restrict import without_tags
from umbel.grammar.pushdown.rules import UNREACHABLE, Head, RuleState, Sequence
from umbel.grammar.pushdown.space import ReadingSpace

Thread = tuple[Reader, int, "Follow"]
Threads = dict[Thread, None]  # an ordered set

# A state's heads with their readers, its calls, and whether some head's text may be empty.
Bound = tuple[tuple[tuple[Reader, Head | RecordedHead], ...], tuple[Sequence, ...], bool]

_MAX_CLOSURE = 20_000  # stacks passed without reading text: left recursion never ends
MAX_THREADS = 1_000


class Follow(dict[int, "Stack"]):
    """tag -> the stack when the leaf has ended with it; filled as it is asked. Compared by
    identity.

    closing: the tags that closing costs look at, None: all.
    """

    __slots__ = ("_below", "_follow", "_stacks", "closing")

    is_recorded = False

    def __init__(
        self,
        stacks: "Stacks",
        below: "Stack",
        follow: Callable[[int], Sequence],
        closing: Collection[int] | None,
    ) -> None:
        self._stacks = stacks
        self._below = below
        self._follow = follow
        self.closing = closing

    def __missing__(self, tag: int) -> "Stack":
        return self.setdefault(tag, self._stacks.push(self._follow(tag), self._below))

    # Unlike a dict, it is compared by identity: quickly, since threads are looked up all the time.
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    @property
    def open(self) -> "Follow":
        """Where tags lead whatever the leaf has read: all that any text allows."""
        return self

    def records(self, tag: int) -> bool:
        """Whether the text that the leaf has read matters to what follows the tag."""
        return False

    def after(self, value: int) -> "Follow":
        """The follow of the thread when the leaf has read one more byte."""
        return self

    def after_text(self, text: bytes) -> "Follow":
        """As `after`, for all of a text."""
        return self


class RecordedFollow(Follow):
    """Where tags lead depends on the text that the leaf has read, which is a part of the thread."""

    __slots__ = ("_family", "_head", "_open", "text")

    is_recorded = True

    def __init__(
        self,
        stacks: "Stacks",
        below: "Stack",
        head: RecordedHead,
        text: bytes = b"",
        first: "RecordedFollow | None" = None,
    ) -> None:
        super().__init__(stacks, below, lambda tag: head.follow(tag, text), head.closing)
        self.text = text
        self._head = head
        # All follows of the head above `below` by text, and where its tags lead whatever the text.
        if first is None:
            self._family: dict[bytes, RecordedFollow] = {}
            self._open = Follow(stacks, below, lambda tag: head.follow(tag, None), head.closing)
        else:
            self._family, self._open = first._family, first._open

    def __missing__(self, tag: int) -> "Stack":
        return super().__missing__(tag) if self.records(tag) else self._open[tag]

    @property
    def open(self) -> Follow:
        return self._open

    def records(self, tag: int) -> bool:
        tags = self._head.tags
        return tags is None or tag in tags

    def after(self, value: int) -> "RecordedFollow":
        return self.after_text(bytes([value]))

    def after_text(self, text: bytes) -> "RecordedFollow":
        text = self.text + text
        found = self._family.get(text)
        if found is None:
            made = RecordedFollow(self._stacks, self._below, self._head, text, self)
            found = self._family.setdefault(text, made)
        return found


class Stack:
    """A state on top of another stack; the bottom has no state. Made by `Stacks.push` only."""

    __slots__ = ("_stacks", "below", "closure", "cost", "first_steps", "fixed_follow", "state")

    def __init__(self, stacks: "Stacks", state: RuleState | None, below: "Stack | None") -> None:
        self._stacks = stacks
        self.state = state
        self.below = below
        self.closure: tuple[tuple[Thread, ...], bool] | None = None  # what `close` has found
        self.fixed_follow: Follow | None = None  # of the heads whose only tag leads here
        self.first_steps: dict[int, Threads] = {}  # byte -> threads after it
        self.cost: int | None = None

    @property
    def heads(self) -> tuple[Thread, ...]:
        """The threads that start here, at the start states of their leaves."""
        return (self.closure or self.close())[0]

    @property
    def can_end(self) -> bool:
        """Whether the whole text may end here."""
        return (self.closure or self.close())[1]

    def close(self) -> tuple[tuple[Thread, ...], bool]:
        """`heads` and `can_end`."""
        self.closure = self._stacks.close(self)
        return self.closure

    def closing_cost(self) -> int:
        if self.cost is None:
            above: list[Stack] = []
            at: Stack | None = self
            while at is not None and at.cost is None:
                above.append(at)
                at = at.below
            total = 0 if at is None or at.cost is None else at.cost
            for stack in reversed(above):
                if stack.state is not None:
                    total += self._stacks.costs.state(stack.state)
                stack.cost = total
        assert self.cost is not None
        return self.cost


class Stacks:
    """The stacks of one grammar for one vocabulary.

    is_careful: there may be texts of the grammar that no tokens spell, so see to it that none is
    begun.
    """

    def __init__(self, space: ReadingSpace, *, is_careful: bool) -> None:
        self.space = space
        self._is_careful = is_careful
        self.costs = Costs(space.leaf_cost)
        self._existence = Costs(space.leaf_exists)
        self._stacks: dict[tuple[RuleState, Stack], Stack] = {}
        self._expansions: dict[RuleState, Bound] = {}
        self.bottom = Stack(self, None, None)

    def __len__(self) -> int:
        return len(self._stacks)

    def forget(self) -> None:
        """Start anew: stacks in use stay valid, but are no longer found."""
        self._stacks.clear()
        self._expansions.clear()
        self.bottom = Stack(self, None, None)

    def push(self, states: Sequence, below: Stack) -> Stack:
        """The first state comes to lie on top."""
        for state in reversed(states):
            key = (state, below)
            found = self._stacks.get(key)
            if found is None:
                found = self._stacks.setdefault(key, Stack(self, state, below))
            below = found
        return below

    def close(self, stack: Stack) -> tuple[tuple[Thread, ...], bool]:
        """All heads that calls lead to from the top, and those below where states may end."""
        if stack.state is not None and stack.below is not None:
            below, state = stack.below, stack.state
            heads, calls, may_be_empty = self._expansions.get(state) or self._expanded(state)
            if not calls and not may_be_empty:
                if len(heads) == 1:
                    reader, head = heads[0]
                    return ((reader, reader.start, self._follow(below, head)),), False
                return tuple(
                    [(reader, reader.start, self._follow(below, head)) for reader, head in heads]
                ), False
        threads: Threads = {}
        behind: dict[Stack, None] = {}  # what follows heads that may be empty
        can_end = self._closure_of([stack], threads, behind)
        # Heads behind an empty leaf are met when that leaf is read: here only the end counts.
        while behind and not can_end:
            done = dict(behind)
            can_end = self._closure_of(list(done), {}, behind)
            if len(behind) == len(done):
                break
        return tuple(threads), can_end

    def _closure_of(
        self, pending: list[Stack], threads: Threads, behind: dict[Stack, None]
    ) -> bool:
        """Adds the heads to `threads`; says whether the bottom is reached."""
        can_end = False
        seen = set(pending)
        while pending:
            at = pending.pop()
            if at.state is None:
                can_end = True
                continue
            assert at.below is not None
            heads, calls, _ = self._expansions.get(at.state) or self._expanded(at.state)
            for reader, head in heads:
                follow = self._follow(at.below, head)
                threads[(reader, reader.start, follow)] = None
                tag = reader.tag(reader.start)
                if tag >= 0:
                    behind[follow[tag]] = None
            for call in calls:
                target = self.push(call, at.below)
                if target not in seen and (call == () or self._exists(call)):
                    seen.add(target)
                    pending.append(target)
            if len(seen) > _MAX_CLOSURE:
                raise UnsupportedGrammar(
                    f"the grammar calls rules more than {_MAX_CLOSURE} times without reading text: "
                    "it is left recursive or has too many alternatives",
                    keyword="recursion",
                )
        return can_end

    def _expanded(self, state: RuleState) -> Bound:
        expansion = state.expand()
        bound = []
        may_be_empty = False
        for head in expansion.heads:
            is_sure = not self._is_careful or (isinstance(head, Head) and head.is_sure)
            leaf = head.leaf if is_sure else self._possible(head)
            if leaf is not None:
                reader = self.space.reader(leaf)
                bound.append((reader, head))
                may_be_empty = may_be_empty or reader.tag(reader.start) >= 0
        made = (tuple(bound), expansion.calls, may_be_empty)
        return self._expansions.setdefault(state, made)

    def _follow(self, below: Stack, head: Head | RecordedHead) -> Follow:
        if isinstance(head, RecordedHead):
            return RecordedFollow(self, below, head)
        if head.leaf.num_tags > 1:
            return Follow(self, below, head.follow, head.closing)
        states = head.follow(0)
        target = self.push(states, below) if states else below
        fixed = target.fixed_follow
        if fixed is None:
            fixed = target.fixed_follow = Follow(self, target, _nothing, None)
            fixed[0] = target
        return fixed

    def _exists(self, states: Sequence) -> bool:
        """Whether tokens spell some text of the states."""
        if not self._is_careful:
            return True
        return sum(map(self._existence.state, states)) < UNREACHABLE

    def _possible(self, head: Head | RecordedHead) -> Leaf | None:
        """The leaf without the tags behind which no tokens complete the text; None: no tag left."""
        dead = []
        for tag in head.leaf.tags_in_use:
            then = head.follow(tag, None) if isinstance(head, RecordedHead) else head.follow(tag)
            if not self._exists(then):
                dead.append(tag)
        leaf = without_tags(head.leaf, dead) if dead else head.leaf
        if leaf is None or self.space.leaf_exists(leaf, None) >= UNREACHABLE:
            return None
        return leaf


def step_threads(threads: Collection[Thread], value: int) -> Threads:
    """All threads after one more byte; leaves that may end here hand over to what follows them."""
    after: Threads = {}
    for reader, state, follow in threads:
        target = reader.step(state, value)
        if target != DEAD:
            after[(reader, target, follow.after(value))] = None
            if reader.greedy:
                continue
        tag = reader.tag(state)
        if tag >= 0:
            after.update(_first_step(follow[tag], value))
    if len(after) > MAX_THREADS:
        raise UnsupportedGrammar(
            f"the text can be read in more than {MAX_THREADS} ways at once; "
            "make the grammar less ambiguous",
            keyword="ambiguity",
        )
    return after


def _first_step(stack: Stack, value: int) -> Threads:
    found = stack.first_steps.get(value)
    if found is None:
        found = stack.first_steps[value] = step_threads(stack.heads, value)
    return found


def _nothing(tag: int) -> Sequence:
    return ()
