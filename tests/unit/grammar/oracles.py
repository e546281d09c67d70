"""Vocabularies, random patterns and slow oracles that the grammar tests share."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from umbel.grammar import Constraint, Matcher, Vocabulary
from umbel.grammar.machine import TokenMachine

BYTE_EOS = 256


@cache
def byte_vocabulary() -> Vocabulary:
    """One token per byte, and one EOS."""
    return Vocabulary([bytes([value]) for value in range(256)], [BYTE_EOS], size=257)


def spiky_vocabulary() -> Vocabulary:
    """Small and awkward: bytes missing, duplicates, tokens across characters, specials, padding,
    two EOS.
    """
    texts: list[bytes | None] = [None, b"a", b"b", b"ab", b"ab", b"", b"ba", b"\xc3", b"\xa9"]
    texts += ["é".encode(), b"a\xc3", b"\xa9b", "éé".encode(), b"aab", b"c", b"cab", b"-", b"--"]
    texts += [b"1", b"10", b"\xe2\x82", "€".encode(), "€1".encode(), b'"', b'a"', b'","', b"<eos>"]
    return Vocabulary(texts, [0, len(texts) - 1], size=70)


def gappy_vocabulary() -> Vocabulary:
    """No token for the single bytes b and c: they exist inside longer tokens only."""
    return Vocabulary([b"a", b"bc", b"ab", b"cb", b"d", b"add"], [6], size=7)


@cache
def trained_vocabulary() -> Vocabulary:
    """A byte-level BPE tokenizer trained on a little JSON and prose, with its own `encode`."""
    corpus = [
        '{"name": "Ada Lovelace", "age": 36, "tags": ["a", "b"], "address": {"street": "Main"}}',
        "The answer is yes. The answer is no. I don't know, it's 12345 or maybe 678.",
        '{"kind": "circle", "radius": 2.5}\n\n{"kind": "square", "side": 10}\n  - item\n  - item',
        "yes yes no no true false null naïve café über 2024-02-29T12:00:00Z",
    ] * 8
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    size = tokenizer.get_vocab_size()
    texts = [bytes_of_token(tokenizer.id_to_token(token_id)) for token_id in range(size)]
    return Vocabulary(
        [None, *texts[1:]], [0], size=size + 5, encode=lambda text: tokenizer.encode(text).ids
    )


def bytes_of_token(token: str) -> bytes:
    return bytes(_BYTE_OF_CHAR[char] for char in token)


def _byte_level_alphabet() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    table = {chr(value): value for value in printable}
    table.update({chr(256 + number): value for number, value in enumerate(others)})
    return table


_BYTE_OF_CHAR = _byte_level_alphabet()


def matches(constraint: Constraint, text: str | bytes) -> bool:
    """Whether a constraint over `byte_vocabulary` accepts the whole text."""
    matcher = constraint.start()
    data = text.encode() if isinstance(text, str) else text
    return all(matcher.advance(value) for value in data) and matcher.accepting


class Automaton:
    """The whole byte automaton of a constraint whose places are finitely many, found byte by
    byte.
    """

    def __init__(self, constraint: Constraint) -> None:
        machine = TokenMachine(constraint.machine.root, byte_vocabulary())
        numbers = {machine.start: 0}
        self.rows: list[dict[int, int]] = []
        for config in (configs := [machine.start]):
            row = {}
            for value in range(256):
                target = machine.move(config, value)
                if target is not None:
                    row[value] = numbers.setdefault(target, len(numbers))
                    if row[value] == len(configs):
                        configs.append(target)
            self.rows.append(row)
        self.accepting = [config.can_end for config in configs]

    def run(self, text: bytes, state: int | None = 0) -> int | None:
        """The state after the text, None when it is not allowed."""
        for value in text:
            state = None if state is None else self.rows[state].get(value)
        return state


def mask_ids(matcher: Matcher, vocabulary: Vocabulary, budget: int | None = None) -> set[int]:
    row = np.full(vocabulary.num_words, 0xFFFFFFFF, np.uint32)  # stale bits must be overwritten
    matcher.fill_mask(row, budget=budget)
    return {
        word * 32 + bit
        for word, value in enumerate(row.tolist())
        for bit in range(32)
        if value >> bit & 1
    }


def text_of(token_ids: Sequence[int], vocabulary: Vocabulary) -> bytes:
    return b"".join(vocabulary.text_of(token_id) or b"" for token_id in token_ids)


def random_walk(
    constraint: Constraint,
    vocabulary: Vocabulary,
    rng: random.Random,
    *,
    limit: int | None = None,
    use_forced: bool = False,
    soft_limit: int = 40,
) -> tuple[list[int], bool]:
    """Random allowed tokens (and forced ones) until the end: (text tokens, whether the text is
    complete).

    With a limit the masks get it as their budget. Without one the walk is steered home after
    `soft_limit` tokens, so that it ends.
    """
    matcher = constraint.start()
    taken: list[int] = []
    left = limit
    while not matcher.finished and (left is None or left > 0):
        if left is None and len(taken) >= soft_limit:
            left = matcher.closing_cost + 1
        forced = matcher.forced(budget=left) if use_forced else []
        allowed = mask_ids(matcher, vocabulary, left)
        assert allowed, f"empty mask after {text_of(taken, vocabulary)!r}"
        for token_id in forced or [rng.choice(sorted(allowed))]:
            assert matcher.advance(token_id)
            if token_id not in vocabulary.eos_ids:
                taken.append(token_id)
            left = None if left is None else left - 1
    return taken, matcher.accepting


def random_pattern(rng: random.Random, *, depth: int = 3, anchors: bool = False) -> str:
    """A regex over a few characters, of the syntax that `re` and this package share."""
    atoms = ["a", "b", "é", "€", "-", "[ab]", "[^a]", "[a-c]", ".", r"\d", r"\w", "[^b-é]"]
    if depth == 0:
        return rng.choice(atoms)
    kind = rng.randrange(8 if anchors else 7)
    inner = [random_pattern(rng, depth=depth - 1, anchors=anchors) for _ in range(3)]
    if kind == 0:
        return rng.choice(atoms)
    if kind in (1, 2):
        return "".join(inner[: rng.randint(1, 3)])
    if kind == 3:
        return f"(?:{'|'.join(inner[: rng.randint(2, 3)])})"
    if kind == 4:
        return f"(?:{inner[0]}){rng.choice(['*', '+', '?', '*?', '+?', '??'])}"
    if kind == 5:
        low = rng.randint(0, 2)
        return f"(?:{inner[0]}){{{low},{low + rng.randint(0, 2)}}}"
    if kind == 6:
        return f"(?:{inner[0]}|)"
    return rng.choice([f"^{inner[0]}", f"{inner[0]}$", f"(?:^|{inner[0]})", f"(?:{inner[0]}|$)"])


def random_text(rng: random.Random, *, max_len: int = 6) -> str:
    return "".join(rng.choice("aabbcé€-1x") for _ in range(rng.randint(0, max_len)))
