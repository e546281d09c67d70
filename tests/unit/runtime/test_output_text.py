import codecs
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.runtime.output_text import OutputText

SPECIAL, END = 300, 301
PIECES = {256: "ab", 257: "abc", 258: "😀", 259: "e\u0301", 260: "STOP", 261: " stop"}


class ByteTokenizer:
    """Ids below 256 are single bytes, some more are longer texts, two are special."""

    def bytes_of(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if token_id in (SPECIAL, END):
            return b"" if skip_special else b"<special>"
        if token_id >= 256:
            return PIECES.get(token_id, "").encode()
        return bytes([token_id])

    def spell(self, text: str) -> list[int]:
        return list(text.encode())


def tokens(text: str | bytes) -> list[int]:
    return list(text.encode() if isinstance(text, str) else text)


def spelled(ids: tuple[int, ...]) -> str:
    data = b"".join(ByteTokenizer().bytes_of(i) for i in ids)
    return data.decode("utf-8", errors="replace")


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """The naive reading: at the first character that completes any, the longest completed."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return end - len(longest), longest
    return None


def test_text_without_stops_comes_out_as_it_is_pushed():
    output = OutputText(ByteTokenizer())

    assert output.push(tokens("ab")) == "ab"
    assert output.push([256]) == "ab"
    assert output.finish() == ""
    assert output.text == "abab"
    assert output.text_token_ids() == (97, 98, 256)


def test_a_character_across_tokens_is_shown_when_it_is_whole():
    output = OutputText(ByteTokenizer())

    deltas = [output.push([byte]) for byte in "é😀".encode()]

    assert deltas == ["", "é", "", "", "", "😀"]


def test_an_unfinished_character_at_the_end_becomes_one_replacement_character():
    output = OutputText(ByteTokenizer())

    assert output.push(tokens(b"a\xf0\x9f\x98")) == "a"
    assert output.finish() == "\ufffd"
    assert output.finish() == ""
    assert output.text == "a\ufffd"


def test_invalid_bytes_become_what_the_one_shot_decoder_makes_of_them():
    data = b"a\xff\xe4\xbd\xc3\xa9\x80"
    output = OutputText(ByteTokenizer())

    text = "".join(output.push([byte]) for byte in data) + output.finish()

    assert text == data.decode(errors="replace")


def test_special_tokens_have_no_text_unless_asked_for():
    hidden, shown = OutputText(ByteTokenizer()), OutputText(ByteTokenizer(), include_special=True)

    assert hidden.push([97, SPECIAL, 98, END]) == "ab"
    assert shown.push([97, SPECIAL, 98]) == "a<special>b"
    assert hidden.text_token_ids() == (97, 98)
    assert shown.text_token_ids() == (97, SPECIAL, 98)


def test_ids_beyond_the_vocabulary_have_no_text():
    output = OutputText(ByteTokenizer())

    assert output.push([97, 5000, 98]) == "ab"


def test_what_may_become_a_stop_string_is_held_back_until_it_cannot():
    output = OutputText(ByteTokenizer(), stop=["END"])

    assert output.push(tokens("xE")) == "x"
    assert output.push(tokens("N")) == ""
    assert output.push(tokens("T")) == "ENT"
    assert output.push(tokens("EN")) == ""
    assert output.finish() == "EN"
    assert output.stop_hit is None


def test_a_stop_string_across_tokens_ends_the_text_before_it():
    output = OutputText(ByteTokenizer(), stop=["bcd"])

    shown = output.push([97, 256]) + output.push(tokens("cde")) + output.push(tokens("f"))

    assert (shown, output.finish(), output.text) == ("aa", "", "aa")
    assert output.stop_hit == "bcd"


def test_a_stop_string_inside_a_token_leaves_tokens_that_spell_the_text():
    output = OutputText(ByteTokenizer(), stop=["c"])

    output.push([256, 257, 257])

    assert output.text == "abab"
    assert output.text_token_ids() == (256, 97, 98)


def test_a_stop_string_at_a_token_border_keeps_the_pushed_tokens():
    output = OutputText(ByteTokenizer(), stop=["STOP"])

    output.push([257, 258, 260, 97])

    assert output.text_token_ids() == (257, 258)


def test_a_stop_string_at_the_start_leaves_nothing():
    output = OutputText(ByteTokenizer(), stop=["a"])

    assert output.push([257]) == ""
    assert (output.text, output.text_token_ids(), output.stop_hit) == ("", (), "a")


def test_a_stop_string_at_the_very_end_is_found():
    output = OutputText(ByteTokenizer(), stop=["\n\n"])

    assert output.push(tokens("x\n")) == "x"
    assert output.push(tokens("\n")) == ""
    assert output.stop_hit == "\n\n"


@pytest.mark.parametrize(
    ("stops", "text", "shown", "hit"),
    [
        (["ab", "abc"], "xabc", "x", "ab"),  # the shorter is complete first
        (["abc", "bc"], "xabc", "x", "abc"),  # both at once: the longer
        (["abcd", "bc"], "abcd", "a", "bc"),  # complete first, though it starts later
        (["aab"], "aaab", "a", "aab"),  # overlaps itself
        (["abac", "bad"], "abad", "a", "bad"),  # found by the failure link
        (["😀"], "é😀é", "é", "😀"),
        (["\u0301"], "e\u0301", "e", "\u0301"),
    ],
)
def test_the_first_complete_stop_string_wins_and_of_those_the_longest(stops, text, shown, hit):
    output = OutputText(ByteTokenizer(), stop=stops)

    delta = output.push(tokens(text)) + output.finish()

    assert (delta, output.stop_hit) == (shown, hit)


def test_an_unfinished_character_can_complete_a_stop_string_at_the_end():
    output = OutputText(ByteTokenizer(), stop=["\ufffd"])

    assert output.push(tokens(b"a\xe4")) == "a"
    assert output.finish() == ""
    assert (output.text, output.stop_hit) == ("a", "\ufffd")
    assert output.text_token_ids() == (97,)


IDS = st.lists(
    st.one_of(
        st.sampled_from(list(b"abSTOP ") + list("é😀\u0301".encode()) + [0xFF, 0xE4]),
        st.sampled_from([*PIECES, SPECIAL, 999]),
    ),
    max_size=24,
)
STOPS = st.lists(
    st.one_of(st.text("abSTOP ", min_size=1, max_size=4), st.sampled_from(["😀", "\ufffd", "é"])),
    max_size=3,
)


@given(ids=IDS, stops=STOPS, cuts=st.lists(st.integers(0, 24), max_size=6))
@settings(max_examples=400, deadline=None)
def test_any_way_of_cutting_gives_the_one_shot_text(ids, stops, cuts):
    whole = b"".join(ByteTokenizer().bytes_of(i) for i in ids).decode("utf-8", "replace")
    found = first_stop(whole, stops)
    expected = whole if found is None else whole[: found[0]]
    borders = sorted({0, len(ids), *(cut for cut in cuts if cut <= len(ids))})
    output = OutputText(ByteTokenizer(), stop=stops)

    deltas = [output.push(ids[a:b]) for a, b in itertools.pairwise(borders)]
    shown_early = "".join(deltas)
    rest = output.finish()

    assert shown_early + rest == output.text == expected
    assert output.stop_hit == (None if found is None else found[1])
    assert spelled(output.text_token_ids()) == expected
    assert whole.startswith(shown_early)


@given(ids=IDS, stops=STOPS)
@settings(max_examples=200, deadline=None)
def test_exactly_what_may_become_a_stop_string_is_held_back(ids, stops):
    output = OutputText(ByteTokenizer(), stop=stops)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoded = ""

    for token_id in ids:
        output.push([token_id])
        decoded += decoder.decode(ByteTokenizer().bytes_of(token_id))
        if output.stop_hit is not None:
            break
        starts = [stop[:n] for stop in stops for n in range(1, len(stop))]
        held = max((len(start) for start in starts if decoded.endswith(start)), default=0)

        assert output.text == decoded[: len(decoded) - held]
