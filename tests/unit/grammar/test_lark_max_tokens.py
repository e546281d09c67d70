"""`rule[max_tokens=N]` against its definition, by brute force over small vocabularies."""

import random
import re
from functools import cache

import pytest
from unit.grammar.oracles import byte_vocabulary, mask_ids, random_walk

from umbel.grammar import UnsatisfiableGrammar, Vocabulary, compile_lark

TOKENS = [b"a", b"b", b"c", b",", b"ab", b"abc", b"bc", b"c,", b"ca", b",a", b"a,b", b"c,ab", b"cc"]
EOS = len(TOKENS)
VOCABULARY = Vocabulary(TOKENS, [EOS], size=EOS + 1)
BODIES = ["[abc]{0,5}", "[ab]{1,6}", "(ab){0,3}c?", "a{2,5}", "[abc,]{1,6}", "abcab(c,)?"]
BODIES += ["[ab]{0,5}c", "[^c]{0,5}cc"]

# A sequence of texts and of bounded rules: (regular expression, tokens, whether it is lazy).
Part = str | tuple[str, int, bool]
# Where a reading stands: which part, what was read of it, the tokens that hold a byte of it.
Place = tuple[int, str, int]


@cache
def texts_of(pattern: str, is_lazy: bool) -> frozenset[str]:
    """All texts but the empty one; none of `BODIES` has more than 8 characters."""
    found, layer = set(), [""]
    for _ in range(8):
        layer = [text + char for text in layer for char in "abc,"]
        found.update(text for text in layer if re.fullmatch(pattern, text))
        if is_lazy:
            ended = {text for text in layer if text in found}
            layer = [text for text in layer if text not in ended]
    return frozenset(found)


@cache
def beginnings(pattern: str, is_lazy: bool) -> frozenset[str]:
    return frozenset(t[:at] for t in texts_of(pattern, is_lazy) for at in range(1, len(t) + 1))


@cache
def can_complete(pattern: str, is_lazy: bool, text: str, num_tokens: int) -> bool:
    """Whether so many tokens more, all inside the text, complete it."""
    if text in texts_of(pattern, is_lazy):
        return True
    return num_tokens > 0 and any(
        text + token.decode() in beginnings(pattern, is_lazy)
        and can_complete(pattern, is_lazy, text + token.decode(), num_tokens - 1)
        for token in TOKENS
    )


class Oracle:
    """All readings of a token sequence, kept byte by byte."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.places = self._entered({(0, "", 0)})

    def _entered(self, places: set[Place]) -> set[Place]:
        """With the parts that begin where one is complete, or where one may be empty."""
        pending, found = list(places), set(places)
        while pending:
            at, text, _ = pending.pop()
            if at < len(self.parts) and self._is_complete(at, text):
                behind = (at + 1, "", 0)
                if behind not in found:
                    found.add(behind)
                    pending.append(behind)
        return found

    def _is_complete(self, at: int, text: str) -> bool:
        part = self.parts[at]
        if isinstance(part, str):
            return text == part
        pattern, _, is_lazy = part
        if text:
            return text in texts_of(pattern, is_lazy)
        return re.fullmatch(pattern, "") is not None

    def _step(self, places: set[Place], char: str, *, is_new_token: bool) -> set[Place]:
        found = set()
        for at, text, used in places:
            if at == len(self.parts):
                continue
            part = self.parts[at]
            longer = text + char
            now = used + 1 if is_new_token or not text else used
            if isinstance(part, str):
                if part.startswith(longer):
                    found.add((at, longer, 0))
            elif longer in beginnings(part[0], part[2]) and now <= part[1]:
                found.add((at, longer, now))
        return self._entered(found)

    def after(self, token: bytes) -> set[Place]:
        places = self.places
        for number, char in enumerate(token.decode()):
            places = self._step(places, char, is_new_token=number == 0)
        kept = set()
        for at, text, used in places:
            part = self.parts[at] if at < len(self.parts) else ""
            is_open = not isinstance(part, str) and text != ""
            if not is_open or can_complete(part[0], part[2], text, part[1] - used):
                kept.add((at, text, used))
        return kept

    @property
    def may_end(self) -> bool:
        return any(at == len(self.parts) for at, _, _ in self.places)

    def allowed(self) -> set[int]:
        found = {number for number, token in enumerate(TOKENS) if self.after(token)}
        return found | {EOS} if self.may_end else found


def grammar_of(parts: list[Part]) -> str:
    names, rules = [], []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            names.append(f'"{part}"')
            continue
        pattern, max_tokens, is_lazy = part
        options = f"max_tokens={max_tokens}" + (", lazy" if is_lazy else "")
        names.append(f"r{number}")
        rules.append(f"r{number}[{options}]: /{pattern}/")
    return "\n".join([f"start: {' '.join(names)}", *rules])


def random_parts(rng: random.Random) -> list[Part]:
    parts: list[Part] = []
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.4:
            parts.append(rng.choice(["a", ",", "ab", "c,"]))
        is_lazy = rng.random() < 0.2
        parts.append((rng.choice(BODIES), rng.randint(1, 4), is_lazy))
    if rng.random() < 0.5:
        parts.append(rng.choice(["b", ",", "ca"]))
    return parts


@pytest.mark.parametrize("seed", range(60))
def test_masks_equal_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    parts = random_parts(rng)
    try:
        constraint = compile_lark(grammar_of(parts), VOCABULARY)
    except UnsatisfiableGrammar:
        assert any(
            not isinstance(p, str)
            and not re.fullmatch(p[0], "")
            and not can_complete(p[0], p[2], "", p[1])
            for p in parts
        ), parts
        return

    for _ in range(6):
        matcher, oracle, taken = constraint.start(), Oracle(parts), []
        for _ in range(8):
            expected = oracle.allowed()
            assert mask_ids(matcher, VOCABULARY) == expected, (parts, taken)
            assert matcher.accepting == oracle.may_end
            choices = sorted(expected - {EOS})
            if not choices:
                break
            token = rng.choice(choices)
            assert matcher.advance(token)
            oracle.places = oracle.after(TOKENS[token])
            taken.append(TOKENS[token])


@pytest.mark.parametrize("seed", range(40))
def test_outputs_within_a_limit_are_complete(seed: int) -> None:
    rng = random.Random(1000 + seed)
    parts = random_parts(rng)
    try:
        constraint = compile_lark(grammar_of(parts), VOCABULARY)
    except UnsatisfiableGrammar:
        return

    for more in (0, 0, 1, 3):
        limit = constraint.start().closing_cost + more
        _, complete = random_walk(constraint, VOCABULARY, rng, limit=limit)
        assert complete, (parts, limit)


def test_a_token_across_the_beginning_or_end_counts_as_one() -> None:
    constraint = compile_lark('start: "c" r ","\nr[max_tokens=1]: /a[ab]*/', VOCABULARY)
    matcher = constraint.start()

    assert matcher.advance(TOKENS.index(b"ca"))

    assert mask_ids(matcher, VOCABULARY) == {TOKENS.index(b",")}


def test_each_use_of_a_rule_has_its_own_tokens() -> None:
    text = 'start: (r ",")*\nr[max_tokens=2]: /[ab]+/'
    matcher = compile_lark(text, byte_vocabulary()).start()

    assert all(matcher.advance(value) for value in b"ab,ba,")
    assert all(matcher.advance(value) for value in b"ab")
    assert mask_ids(matcher, byte_vocabulary()) == {ord(",")}


def test_the_ending_is_reserved() -> None:
    """A rule with a suffix ends with it, however few tokens are left."""
    text = 'start: t "."\nt[max_tokens=5, suffix="</t>"]: /[a-z]*/'
    matcher = compile_lark(text, byte_vocabulary()).start()

    assert mask_ids(matcher, byte_vocabulary()) >= set(b"az<")
    assert matcher.advance(ord("a"))
    assert mask_ids(matcher, byte_vocabulary()) == {ord("<")}
    assert all(matcher.advance(value) for value in b"</t>.")
    assert matcher.accepting


def test_a_rule_that_its_tokens_cannot_write_is_no_way_to_go_on() -> None:
    text = 'start: r | "b"\nr[max_tokens=3]: "aaaa"'

    matcher = compile_lark(text, byte_vocabulary()).start()

    assert mask_ids(matcher, byte_vocabulary()) == {ord("b")}
    with pytest.raises(UnsatisfiableGrammar):
        compile_lark('start: r\nr[max_tokens=3]: "aaaa"', byte_vocabulary())


def test_rollback_and_clones_give_tokens_back() -> None:
    matcher = compile_lark('start: r "."\nr[max_tokens=3]: /a+/', byte_vocabulary()).start()
    for _ in range(3):
        assert matcher.advance(ord("a"))
    other = matcher.clone()

    other.rollback(2)

    assert mask_ids(matcher, byte_vocabulary()) == {ord(".")}
    assert mask_ids(other, byte_vocabulary()) == {ord("a"), ord(".")}


def test_special_tokens_may_follow_a_bounded_rule() -> None:
    vocabulary = Vocabulary([b"a", b"b", None, None], [3], size=4, special_ids={"<end>": 2})
    matcher = compile_lark("start: r <end>\nr[max_tokens=2]: /[ab]+/", vocabulary).start()

    assert matcher.advance(0)
    assert mask_ids(matcher, vocabulary) == {0, 1, 2}
    assert matcher.advance(1)
    assert mask_ids(matcher, vocabulary) == {2}


def test_ignored_text_does_not_count() -> None:
    text = 'start: r "," r\nr[max_tokens=2]: /[ab]+/\n%ignore " "'
    matcher = compile_lark(text, byte_vocabulary()).start()

    assert all(matcher.advance(value) for value in b"ab  , ")
    assert all(matcher.advance(value) for value in b"ba  ")
