"""The bytes that a place leaves no choice about."""

from umbel.grammar.pushdown.configs import Config, Configs
from umbel.grammar.pushdown.leaves import NO_TAG
from umbel.grammar.pushdown.token_reader import TokenReader


def forced_bytes(configs: Configs, config: Config, limit: int) -> tuple[bytes, list[Config]]:
    """What must come next, at most `limit` bytes of it, and the places before, between and after
    them.
    """
    forced = bytearray()
    places = [config]
    while len(forced) < limit:
        value = _only_byte(config)
        if value is None:
            break
        after = configs.after_byte(config, value)
        if after is None:
            break
        config = after
        forced.append(value)
        places.append(config)
    return bytes(forced), places


def _only_byte(config: Config) -> int | None:
    """The one byte that all threads agree on; None if there are several, or the text may end."""
    if config.can_end:
        return None
    only: int | None = None
    pending = list(config.threads)
    seen = set(pending)
    for reader, state, follow in pending:
        if isinstance(reader, TokenReader) and reader.tag(state) == NO_TAG:
            return None  # a special token may come instead of text
        for value in reader.next_bytes(state):
            if only is None:
                only = value
            elif value != only:
                return None
        tag = reader.tag(state)
        if tag >= 0:
            more = [head for head in follow[tag].heads if head not in seen]
            seen.update(more)
            pending += more
    return only


def next_bytes(config: Config) -> set[int]:
    """The bytes that may come next."""
    found: set[int] = set()
    pending = list(config.threads)
    seen = set(pending)
    for reader, state, follow in pending:
        found.update(reader.next_bytes(state))
        tag = reader.tag(state)
        if tag >= 0:
            more = [head for head in follow[tag].heads if head not in seen]
            seen.update(more)
            pending += more
    return found
