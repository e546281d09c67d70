"""Where a text stands in a grammar: the set of its threads, interned, and how text moves it on."""

from collections.abc import Collection, Iterable

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.bounded_reader import BoundedReader
from umbel.grammar.pushdown.reading import DEAD, Mask
from umbel.grammar.pushdown.rules import UNREACHABLE, RuleState
from umbel.grammar.pushdown.space import ReadingSpace
from umbel.grammar.pushdown.stacks import MAX_THREADS, Stacks, Thread, Threads, step_threads
from umbel.grammar.pushdown.token_reader import TokenReader

_MAX_KEPT = 50_000  # configurations and stacks kept for one grammar; then all are forgotten


class Config:
    """All threads of one place, and whether the text may end here. Made by `Configs` only; identity
    is equality.

    The results of asking are kept here: `moves` by token id, the mask, costs. `closing_cost` and
    `worst_cost` are None until asked for.
    """

    __slots__ = ("can_end", "closing_cost", "mask", "moves", "threads", "worst_cost")

    def __init__(self, threads: tuple[Thread, ...], can_end: bool) -> None:
        self.threads = threads
        self.can_end = can_end
        self.moves: dict[int, Config] = {}
        self.mask: Mask | None = None
        self.closing_cost: int | None = None
        self.worst_cost: int | None = None


class Configs:
    """The configurations of one grammar for one vocabulary."""

    def __init__(self, root: RuleState, space: ReadingSpace, *, is_careful: bool) -> None:
        self._root = root
        self._space = space
        self.stacks = Stacks(space, is_careful=is_careful)
        self._text_of = space.vocabulary.text_of
        self._configs: dict[object, Config] = {}
        self.start = self._first()

    @property
    def num_states(self) -> int:
        """The places and stacks kept."""
        return len(self._configs) + len(self.stacks)

    def _first(self) -> Config:
        stack = self.stacks.push((self._root,), self.stacks.bottom)
        return self._interned(dict.fromkeys(stack.heads), stack.can_end)

    def after_token(self, config: Config, token_id: int) -> Config | None:
        """The place after a token, None if it is not allowed."""
        found = config.moves.get(token_id)
        if found is None:
            text = self._text_of(token_id)
            threads = config.threads
            if text is None:
                after = _step_special(threads, token_id)
            elif len(threads) == 1:
                after = _step_single(threads[0], text)
            else:
                after = _step_text(threads, text)
            found = self._settled(after) if after else None
            if found is not None:
                config.moves[token_id] = found
                if len(self._configs) + len(self.stacks) > _MAX_KEPT:
                    self._forget()
        return found

    def after_byte(self, config: Config, value: int) -> Config | None:
        """As `after_token` for one byte, whether there is a token for it or not."""
        after = step_threads(config.threads, value)
        return self._settled(after, between_tokens=False) if after else None

    def allows(self, config: Config, token_id: int) -> bool:
        """Whether `after_token` gives a place, found out without making it."""
        text = self._space.vocabulary.text_of(token_id)
        if token_id in config.moves:
            return True
        after = _step_text(config.threads, text) if text else {}
        return any(not r.has_gaps or r.is_live(state) for r, state, _ in after)

    def _forget(self) -> None:
        """Places that are in use go on to work; they are found no more, so they go when their users
        do.
        """
        self._configs.clear()
        self.stacks.forget()
        self.start = self._first()

    def _settled(self, threads: Iterable[Thread], *, between_tokens: bool = True) -> Config | None:
        """Leaves that are through give way to what follows, so that equal places look equal."""
        settled: Threads = {}
        can_end = False
        for thread in threads:
            reader, state, follow = thread
            if between_tokens and reader.has_gaps:
                if not reader.is_live(state):
                    continue
                if isinstance(reader, BoundedReader):
                    state = reader.after_token(state)
                    thread = (reader, state, follow)
            tag = reader.tag(state)
            if tag >= 0:
                stack = follow[tag]
                heads, ends = stack.closure or stack.close()
                can_end = can_end or ends
                if reader.is_final(state):
                    settled.update(dict.fromkeys(heads))
                    continue
            settled[thread] = None
        if len(settled) > MAX_THREADS:
            raise UnsupportedGrammar(
                f"the text can be read in more than {MAX_THREADS} ways at once; "
                "make the grammar less ambiguous",
                keyword="ambiguity",
            )
        return self._interned(settled, can_end) if settled or can_end else None

    def _interned(self, threads: Threads, can_end: bool) -> Config:
        kept = tuple(threads)
        key = (kept[0] if len(kept) == 1 else frozenset(kept), can_end)
        found = self._configs.get(key)
        if found is None:
            found = self._configs.setdefault(key, Config(kept, can_end))
        return found

    def closing_cost(self, config: Config) -> int:
        """Upper bound on the tokens until the text may end; each token can lower it by one."""
        cost = config.closing_cost
        if cost is None:
            cost = UNREACHABLE
            if config.can_end:
                cost = 0
            else:
                for thread in config.threads:
                    cost = min(cost, thread_cost(thread))
            config.closing_cost = cost
        return cost


def closing_tags(thread: Thread) -> Collection[int]:
    """The tags that count for the closing cost: the preferred ones as long as one can still be
    reached.
    """
    reader, state, follow = thread
    tags = reader.tags_from(state)
    if follow.closing is not None:
        preferred = [tag for tag in tags if tag in follow.closing]
        if preferred:
            return preferred
    return tags


def thread_cost(thread: Thread) -> int:
    reader, state, follow = thread
    open_follow = follow.open
    best = UNREACHABLE
    for tag in closing_tags(thread):
        cost = reader.cost(state, tag)
        if cost < best:
            best = min(best, cost + open_follow[tag].closing_cost())
    return best


def _step_text(threads: Collection[Thread], text: bytes) -> Threads:
    after: Threads = dict.fromkeys(threads)
    for value in text:
        after = step_threads(after, value)
        if not after:
            break
    return after


def _step_single(thread: Thread, text: bytes) -> Threads:
    """As `_step_text`, quicker as long as the text can be read in one way only."""
    reader, state, follow = thread
    while True:
        state, at = reader.run(state, text)
        if state == DEAD:
            return {}
        if at == len(text):
            if follow.is_recorded:
                follow = follow.after_text(text)
            return {(reader, state, follow): None}
        if follow.is_recorded:
            follow = follow.after_text(text[:at])
        text = text[at:]
        if not at or reader.step(state, text[0]) != DEAD:
            return _step_text(((reader, state, follow),), text)
        stack = follow[reader.tag(state)]
        heads = (stack.closure or stack.close())[0]
        if len(heads) != 1:
            return _step_text(heads, text)
        reader, state, follow = heads[0]


def _step_special(threads: Iterable[Thread], token_id: int) -> Threads:
    """Special tokens are taken by leaves that name them, also behind leaves that may end here."""
    after: Threads = {}
    pending = list(threads)
    seen = set(pending)
    for reader, state, follow in pending:
        if isinstance(reader, TokenReader):
            target = reader.step_token(state, token_id)
            if target != DEAD:
                after[(reader, target, follow)] = None
        tag = reader.tag(state)
        if tag >= 0:
            more = [head for head in follow[tag].heads if head not in seen]
            seen.update(more)
            pending += more
    return after
