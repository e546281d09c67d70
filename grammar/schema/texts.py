"""minLength, maxLength, pattern and format of one subschema to a set of strings."""

from collections.abc import Callable, Iterator
from functools import partial

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.schema.formats import ANNOTATED, FORMATS, MAX_LENGTHS
from umbel.grammar.schema.listed import count_of
from umbel.grammar.schema.reader import Place, SchemaReader
from umbel.grammar.schema.spelling import text_leaf
from umbel.grammar.values.strings import ALL_STRINGS, StringSet, Texts, string_set

_COMMON = ("date-time", "email", "uri", "date", "uuid")
_COMMON_FIRST = sorted(FORMATS, key=lambda name: (name not in _COMMON, name))
_STRING_KEYWORDS = frozenset({"minLength", "maxLength", "pattern", "format"})


def string_assertions(reader: SchemaReader, place: Place) -> StringSet:
    """The strings that satisfy all four keywords."""
    if place.schema.keys().isdisjoint(_STRING_KEYWORDS):
        return ALL_STRINGS
    found = string_set(
        frozenset(), [Texts(None, count_of(place, "minLength") or 0, count_of(place, "maxLength"))]
    )
    if "pattern" in place.schema:
        matching = _pattern_texts(reader, place.schema["pattern"], place.where("pattern"))
        found = found.intersect(StringSet(atoms=(matching,)), reader.limits)
    if "format" in place.schema and reader.assert_formats:
        texts = _format(reader, place)
        if texts is not None:
            found = found.intersect(StringSet(atoms=(texts,)), reader.limits)
    return found


def _pattern_texts(reader: SchemaReader, pattern: object, where: str) -> Texts:
    """A long repetition of one class stays counted: unrolled it would need a state for each
    character.
    """
    if isinstance(pattern, str) and pattern.endswith("}$"):
        try:
            counted = languages.counted_pattern(pattern, reader.limits)
        except GrammarError:
            counted = None  # reported below
        if counted is not None:
            return Texts(*counted)
    return Texts(pattern_language(reader, pattern, where))


def pattern_language(reader: SchemaReader, pattern: object, where: str) -> CharDfa:
    """The texts that contain a match. Raises with the pointer of the keyword and the offset in the
    pattern.
    """
    if not isinstance(pattern, str):
        raise GrammarError(
            f"pattern must be a string, got {pattern!r:.100}", where, keyword="pattern"
        )
    try:
        return languages.from_pattern(pattern, reader.limits)
    except GrammarError as exc:
        message = f"pattern: {exc.message}"
        if exc.where:
            message = f"{message} ({exc.where})"
        raise type(exc)(message, where, keyword="pattern") from exc


def _format(reader: SchemaReader, place: Place) -> Texts | None:
    name = place.schema["format"]
    if not isinstance(name, str):
        raise GrammarError(
            f"format must be a string, got {name!r:.60}", place.where("format"), keyword="format"
        )
    if name in ANNOTATED:
        reader.warn(f"format {name!r} is not enforced", place.where("format"))
    pattern = FORMATS.get(name)
    if pattern is None:
        return None  # not asserted: by the specification an unknown format is an annotation
    try:
        return Texts(languages.from_regex(pattern, reader.limits), 0, MAX_LENGTHS.get(name))
    except UnsupportedGrammar as exc:
        raise UnsupportedGrammar(
            f"format {name}: {exc.message}", place.where("format"), keyword="format"
        ) from exc


def warm_up_steps(limits: Limits) -> Iterator[Callable[[], None]]:
    """Make the automata of all formats now instead of when one is first met; one by each step."""
    for name in _COMMON_FIRST:
        yield partial(_make_format, name, limits)


def _make_format(name: str, limits: Limits) -> None:
    text_leaf(Texts(languages.from_regex(FORMATS[name], limits), 0, MAX_LENGTHS.get(name)))
