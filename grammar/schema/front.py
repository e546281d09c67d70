"""The front door of JSON Schema: a schema and options in, the grammar's first state and the
warnings out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from umbel.grammar.errors import GrammarError, UnsatisfiableGrammar, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.leaves import Leaf
from umbel.grammar.pushdown.rules import RuleState
from umbel.grammar.schema.assertions import read_parts
from umbel.grammar.schema.digits import NumberStyle
from umbel.grammar.schema.document import Document
from umbel.grammar.schema.load import LoadedSchema
from umbel.grammar.schema.lowering import Lowering
from umbel.grammar.schema.reader import SchemaReader
from umbel.grammar.schema.spacing import Whitespace, spacing_of
from umbel.grammar.values.algebra import ShapeInProgress
from umbel.grammar.values.terms import Term

_MAX_DOWNGRADES = 100
_IDENTITIES = ('"$id"', '"$anchor"', '"$dynamicAnchor"', '"$dynamicRef"', '"$recursiveRef"', '"id"')


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaOptions:
    """any_order: properties in the model's own order instead of the schema's. strict: refuse what
    cannot be enforced
    exactly; otherwise leave it out, with a warning. assert_formats: False: `format` is only an
    annotation.
    """

    any_order: bool = False
    strict: bool = True
    assert_formats: bool = True
    whitespace: Whitespace = Whitespace.COMPACT


@dataclass(frozen=True, slots=True)
class SchemaGrammar:
    """start: the state of the whole document. warnings: what is not enforced, each with its
    place. large_leaves: leaves that take milliseconds to be bound to a vocabulary.
    """

    start: RuleState
    root: Term
    reader: SchemaReader
    warnings: list[str] = field(default_factory=list)
    large_leaves: list[Leaf] = field(default_factory=list)


def read_schema(
    schema: LoadedSchema,
    options: SchemaOptions,
    limits: Limits,
    *,
    cancelled: Callable[[], bool] | None = None,
) -> SchemaGrammar:
    """Raises `GrammarError` (malformed), `UnsupportedGrammar` (keyword, JSON Pointer, reason),
    `UnsatisfiableGrammar`,
    `CompileCancelled` when `cancelled()` returned True.
    """
    has_identities = any(mark in schema.text for mark in _IDENTITIES)
    document = Document(schema.value, has_identities=has_identities)
    ignored: dict[tuple[str, str], str] = {}
    while True:
        try:
            # In draft 4 a number with a fraction is no integer, not even 1.0.
            point_zero = document.main.draft != 4 and not schema.is_typed
            style = NumberStyle(point_zero=point_zero)
            return _read(document, options, limits, ignored, style, cancelled)
        except RecursionError as exc:
            raise UnsupportedGrammar(
                "the schema is nested too deeply to be analysed", "", keyword="nesting"
            ) from exc
        except ShapeInProgress as exc:
            raise GrammarError(
                "a reference leads back to the schema that it is a part of, without an item or a "
                "property in between: it asserts nothing that could be decided",
                "",
                keyword="$ref",
            ) from exc
        except UnsupportedGrammar as exc:
            key = _downgradable(exc)
            if options.strict or key is None or key in ignored or len(ignored) >= _MAX_DOWNGRADES:
                raise
            ignored[key] = str(exc)


def _downgradable(exc: UnsupportedGrammar) -> tuple[str, str] | None:
    """(pointer of the subschema, keyword) if leaving the keyword out can help."""
    if exc.where is None or exc.keyword is None:
        return None
    tail = f"/{exc.keyword}"
    pointer = exc.where
    if tail in pointer:
        pointer = pointer[: pointer.rindex(tail)]
    return pointer, exc.keyword


def _read(
    document: Document,
    options: SchemaOptions,
    limits: Limits,
    ignored: dict[tuple[str, str], str],
    style: NumberStyle,
    cancelled: Callable[[], bool] | None,
) -> SchemaGrammar:
    reader = SchemaReader(
        document,
        read_parts,
        limits,
        assert_formats=options.assert_formats,
        ignored=frozenset(ignored),
        cancelled=cancelled,
    )
    root = reader.root()
    if not reader.emptiness.has_member(root):
        raise UnsatisfiableGrammar(
            f"no instance satisfies the JSON Schema: {_reason(reader, root)}"
        )
    lowering = Lowering(reader, spacing_of(options.whitespace), style, any_order=options.any_order)
    lowering.check(root)
    reader.algebra.effort.release()
    warnings = [f"not enforced: {message}" for message in ignored.values()]
    warnings += reader.warnings
    return SchemaGrammar(lowering.state(root), root, reader, warnings, lowering.large_leaves)


def _reason(reader: SchemaReader, root: Term) -> str:
    """The contradiction, as far as one place shows it."""
    shape = reader.algebra.shape(root)
    has_member = reader.emptiness.has_member
    for atom in shape.objects:
        for name in atom.required:
            if not has_member(atom.fields.get(name)):
                return f"the required property {name!r} has no possible value"
        if atom.high is not None and atom.low > atom.high:
            return f"at least {atom.low} and at most {atom.high} properties are demanded"
    for array in shape.arrays:
        for index, term in enumerate((*array.items.prefix, array.items.rest)):
            if index < array.low and not has_member(term):
                return f"item {index} is demanded and has no possible value"
    if root is reader.algebra.terms.none:
        return "the schema is false"
    names = sorted(reader.document.root) if isinstance(reader.document.root, dict) else []
    return f"its keywords ({', '.join(names[:12])}) contradict each other"
