"""Masks under a token limit: only tokens after which the text can still be completed.

Nearly always the limit is far: one bound per place, over all tokens, says so. Near the limit the
tokens are looked at one by one, with the state in which each leaves its leaf.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from umbel.grammar.pushdown.configs import Config, Configs, thread_cost
from umbel.grammar.pushdown.masks import with_specials
from umbel.grammar.pushdown.reading import MaskRow
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.space import ReadingSpace
from umbel.grammar.pushdown.stacks import Follow, Thread

# A thread at the start of a token, or at the start of a later leaf of it: what rest of the token it
# reads, and whether some recorded text has ended before (see `masks.collect`).
Item = tuple[Thread, Residual, bool]


def worst_cost(config: Config, space: ReadingSpace) -> int:
    """No allowed token leads to a higher closing cost."""
    if config.worst_cost is None:
        worst = 0
        for (reader, state, follow), _, _ in _items(config.threads, space.root):
            opened = follow.open
            for tag in reader.tags_from(state):
                worst = max(worst, reader.bound(state, tag) + opened[tag].closing_cost())
        config.worst_cost = worst
    return config.worst_cost


def budget_row(configs: Configs, config: Config, space: ReadingSpace, limit: int) -> MaskRow:
    """The tokens after which at most `limit` tokens are sure to complete the text; EOS if it may
    end.
    """
    vocabulary = space.vocabulary
    row = np.zeros(vocabulary.num_words, np.uint32)
    few: list[int] = []
    for (reader, state, follow), rest, is_doubtful in _items(config.threads, space.root):
        for ended in space.end_sets.of(reader, state, rest):
            if thread_cost((reader, ended.state, follow)) > limit:
                continue
            if is_doubtful:
                few += [i for i in ended.token_ids() if _is_near(configs, config, i, limit)]
            elif ended.row is not None:
                row |= ended.row
            else:
                few += ended.token_ids()
    if few:
        row |= vocabulary.pack(np.array(few, np.int32))
    if config.can_end:
        row |= vocabulary.eos_row
    return row


def _is_near(configs: Configs, config: Config, token_id: int, limit: int) -> bool:
    after = configs.after_token(config, token_id)
    return after is not None and configs.closing_cost(after) <= limit


def _items(threads: Iterable[Thread], root: Residual) -> Iterator[Item]:
    """All leaves that tokens pass: the work of a mask, without its results."""
    work: list[Item] = [(thread, root, False) for thread in with_specials(threads)]
    seen = set(work)
    for item in work:
        yield item
        (reader, state, follow), rest, is_doubtful = item
        opened: Follow = follow.open
        is_later = is_doubtful or opened is not follow
        for tag, behind in reader.read(state, rest).exits:
            for head in opened[tag].heads:
                found = (head, behind, is_later)
                if found not in seen:
                    seen.add(found)
                    work.append(found)
