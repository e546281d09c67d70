"""The keywords about items and properties to atoms of arrays and objects."""

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.schema.listed import count_of
from umbel.grammar.schema.reader import Place, SchemaReader
from umbel.grammar.schema.texts import pattern_language
from umbel.grammar.values.fields import Fields, Items
from umbel.grammar.values.shapes import ArrayAtom, Counted, ObjectAtom
from umbel.grammar.values.terms import Term

_ARRAY_KEYWORDS = frozenset(
    {
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains"),
    }
)
_OBJECT_KEYWORDS = frozenset(
    {
        *("properties", "required", "additionalProperties", "patternProperties"),
        *("propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependencies"),
    }
)


def array_atom(reader: SchemaReader, place: Place) -> tuple[ArrayAtom, ...]:
    """items, prefixItems, additionalItems, contains, minItems, maxItems, uniqueItems."""
    algebra = reader.algebra
    if place.schema.keys().isdisjoint(_ARRAY_KEYWORDS):
        return algebra.all_arrays
    unique = place.schema.get("uniqueItems", False)
    if not isinstance(unique, bool):
        raise GrammarError(
            f"uniqueItems must be true or false, got {unique!r:.60}",
            place.where("uniqueItems"),
            keyword="uniqueItems",
        )
    atom = algebra.array(
        item_terms(reader, place),
        count_of(place, "minItems") or 0,
        count_of(place, "maxItems"),
        _contains(reader, place),
        unique or None,
    )
    return () if atom is None else (atom,)


def item_terms(reader: SchemaReader, place: Place) -> Items:
    """prefixItems with items, or the older list form of items with additionalItems."""
    schema = place.schema
    prefix, rest = "prefixItems", "items"
    if isinstance(schema.get("items"), list):
        prefix, rest = "items", "additionalItems"
    heads: tuple[Term, ...] = ()
    if prefix in schema and place.has(prefix):
        if not isinstance(schema[prefix], list):
            raise GrammarError(f"{prefix} must be a list", place.where(prefix), keyword=prefix)
        heads = tuple(reader.below(place, prefix, at) for at in range(len(schema[prefix])))
    has_rest = rest in schema and place.has(rest)
    return Items(heads, reader.below(place, rest) if has_rest else reader.algebra.terms.any)


def _contains(reader: SchemaReader, place: Place) -> list[Counted]:
    if "contains" not in place.schema or not place.has("contains"):
        return []
    low, high = count_of(place, "minContains"), count_of(place, "maxContains")
    items = Items((), reader.below(place, "contains"))
    return [Counted(items, 1 if low is None else low, high)]


def object_atom(reader: SchemaReader, place: Place) -> tuple[ObjectAtom, ...]:
    """properties, patternProperties, additionalProperties, propertyNames, required, counts and
    dependencies.
    """
    algebra = reader.algebra
    if place.schema.keys().isdisjoint(_OBJECT_KEYWORDS):
        return algebra.all_objects
    fields = field_terms(reader, place)
    if "propertyNames" in place.schema and place.has("propertyNames"):
        fields = algebra.fields.both(fields, _name_fields(reader, place))
    required = _names(place.schema.get("required", []), place, "required")
    atom = algebra.object(
        fields,
        required,
        count_of(place, "minProperties") or 0,
        count_of(place, "maxProperties"),
        (),
        _implications(place),
    )
    return () if atom is None else (atom,)


def field_terms(reader: SchemaReader, place: Place) -> Fields:
    """What properties, patternProperties and additionalProperties say about each name."""
    schema, terms = place.schema, reader.algebra.terms
    named = {}
    for name in _mapping(place, "properties"):
        _check_name(name, place)
        named[name] = reader.below(place, "properties", name)
    default = terms.any
    if "additionalProperties" in schema:
        default = reader.below(place, "additionalProperties")
    patterns = _mapping(place, "patternProperties")
    if not patterns:
        return Fields(named, default)
    classes = _pattern_classes(reader, place, patterns)
    for name, term in named.items():
        for language, class_term in classes:
            if language.accepts(name):
                named[name] = terms.both(term, class_term)
    return Fields(named, default, classes)


def _pattern_classes(
    reader: SchemaReader, place: Place, patterns: list[str]
) -> tuple[tuple[CharDfa, Term], ...]:
    fields = reader.algebra.any_fields
    for pattern in patterns:
        language = pattern_language(reader, pattern, place.where("patternProperties", pattern))
        if language.is_empty:
            continue
        term = reader.below(place, "patternProperties", pattern)
        single = Fields({}, reader.algebra.terms.any, ((language, term),))
        fields = reader.algebra.fields.both(fields, single) if fields.classes else single
    return fields.classes


def _name_fields(reader: SchemaReader, place: Place) -> Fields:
    """Only names of a schema: the others lead to nothing."""
    algebra, terms = reader.algebra, reader.algebra.terms
    names = algebra.shape(reader.below(place, "propertyNames")).strings
    if names.is_empty:
        return Fields({}, terms.none)
    if not names.atoms:
        return Fields(dict.fromkeys(sorted(names.values), terms.any), terms.none)
    try:
        language = names.language(reader.limits)
    except UnsupportedGrammar as exc:
        raise UnsupportedGrammar(
            f"propertyNames: {exc.message}", place.where("propertyNames"), keyword="propertyNames"
        ) from exc
    if language is languages.ANY_TEXT:
        return algebra.any_fields
    return Fields({}, terms.none, ((language, terms.any),))


def _implications(place: Place) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for keyword in ("dependentRequired", "dependencies"):
        if keyword not in place.schema or not place.has(keyword):
            continue
        for name, needed in _entries(place, keyword).items():
            if isinstance(needed, str):
                needed = [needed]  # draft 3, still met
            if isinstance(needed, list) and needed:
                found.append((name, _names(needed, place, keyword)))
    return tuple(found)


def _mapping(place: Place, name: str) -> list[str]:
    return list(_entries(place, name)) if name in place.schema else []


def _entries(place: Place, name: str) -> dict[str, object]:
    value = place.schema[name]
    if not isinstance(value, dict):
        raise GrammarError(f"{name} must be an object", place.where(name), keyword=name)
    return value


def _names(value: object, place: Place, keyword: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise GrammarError(
            f"{keyword} must be a list of names, got {value!r:.100}",
            place.where(keyword),
            keyword=keyword,
        )
    for name in value:
        _check_name(name, place)
    return tuple(dict.fromkeys(value))


def _check_name(name: str, place: Place) -> None:
    if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):
        raise UnsupportedGrammar(
            f"the property name {name!r:.60} holds a surrogate, which no UTF-8 text can",
            place.pointer,
            keyword="properties",
        )
