"""A schema document: which draft applies where, and what references mean (`$id`, anchors, JSON
Pointers).
"""

from dataclasses import dataclass, field
from urllib.parse import unquote, urldefrag, urljoin

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.values.literals import Json

# Keywords whose value is a subschema, a list of them, or an object of them.
SCHEMAS = frozenset(
    {
        *("additionalProperties", "propertyNames", "items", "additionalItems", "contains", "not"),
        *("if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "contentSchema"),
    }
)
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
MAPPINGS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)


@dataclass(slots=True, eq=False)
class Resource:
    """A schema with an identity: the root, or a subschema with `$id`.

    draft: 4, 6, 7, 2019 or 2020. is_declared: whether a `$schema` says so.
    """

    uri: str
    pointer: str
    draft: int
    is_declared: bool
    anchors: dict[str, str] = field(default_factory=dict)  # name -> pointer
    dynamic_anchors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a reference leads."""

    schema: Json
    pointer: str
    resource: Resource


class Document:
    """Immutable once made. Without `$schema` the newest draft applies, and older spellings are
    understood too.
    """

    def __init__(self, root: Json, *, has_identities: bool = True) -> None:
        """has_identities: False when the text is known to hold no `$id`, anchors or dynamic
        references.
        """
        self.root = root
        self.resources: dict[str, Resource] = {}  # by pointer
        self._by_uri: dict[str, Resource] = {}
        self.is_dynamic = False  # whether any $dynamicRef or $recursiveRef occurs
        draft = _draft(root)
        self.main = Resource("", "", draft or 2020, draft is not None)
        self._add(self.main)
        if has_identities:
            self._index(root, "", self.main)

    def resource_at(self, schema: Json, pointer: str, around: Resource) -> Resource:
        """The resource of a subschema of `around`: its own if it has an identity."""
        if isinstance(schema, dict) and len(self.resources) > 1:
            return self.resources.get(pointer, around)
        return around

    def resolve(self, ref: Json, where: str, resource: Resource) -> Target:
        """The target of a `$ref` in `resource`. Raises `UnsupportedGrammar` for other documents."""
        if not isinstance(ref, str):
            raise GrammarError(
                f"a reference must be a string, got {ref!r:.100}", where, keyword="$ref"
            )
        uri, fragment = urldefrag(ref)
        found: Resource | None = resource
        if uri:
            absolute = urljoin(resource.uri, uri)
            found = self._by_uri.get(absolute) or self._by_uri.get(uri)
        if found is None:
            raise UnsupportedGrammar(
                f"$ref {ref!r:.200} points to another document; put it under $defs of this one",
                where,
                keyword="$ref",
            )
        fragment = unquote(fragment)
        if fragment == "" or fragment.startswith("/"):
            return self._follow(found, fragment, ref, where)
        pointer = found.anchors.get(fragment)
        if pointer is None:
            raise GrammarError(f"$ref {ref!r:.200} names no $anchor", where, keyword="$ref")
        return self._follow(self.main, pointer, ref, where)

    def _follow(self, start: Resource, path: str, ref: str, where: str) -> Target:
        resource = start
        schema, pointer = self.root, ""
        for part in (start.pointer + path).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and name in schema:
                schema = schema[name]
            elif isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
                schema = schema[int(name)]
            else:
                raise GrammarError(f"$ref {ref!r:.200} points to nothing", where, keyword="$ref")
            pointer = child(pointer, name)
            resource = self.resources.get(pointer, resource)
        return Target(schema, pointer, resource)

    def _add(self, resource: Resource) -> None:
        self.resources[resource.pointer] = resource
        self._by_uri.setdefault(resource.uri, resource)

    def _index(self, root: Json, pointer: str, resource: Resource) -> None:
        """Find identities and anchors wherever a subschema can stand."""
        pending = [(root, pointer, resource)]
        while pending:
            schema, pointer, resource = pending.pop()
            if not isinstance(schema, dict):
                continue
            resource = self._identify(schema, pointer, resource)
            for name, value in schema.items():
                if isinstance(value, dict):
                    if name in MAPPINGS:
                        pending += [
                            (inner, child(pointer, name, key), resource)
                            for key, inner in value.items()
                        ]
                    elif name in SCHEMAS:
                        pending.append((value, f"{pointer}/{name}", resource))
                elif isinstance(value, list) and name in LISTS:
                    pending += [
                        (inner, f"{pointer}/{name}/{at}", resource)
                        for at, inner in enumerate(value)
                    ]

    def _identify(self, schema: dict[str, Json], pointer: str, resource: Resource) -> Resource:
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            self.is_dynamic = True
        identity = schema.get("id" if resource.draft == 4 else "$id")
        if identity is None or not isinstance(identity, str):
            pass
        elif resource.draft < 2019 and "$ref" in schema:
            pass  # a sibling of $ref, ignored
        elif identity.startswith("#"):
            if resource.draft < 2019:
                resource.anchors[identity[1:]] = pointer
        else:
            uri = urldefrag(urljoin(resource.uri, identity))[0]
            if pointer == "":
                self.main.uri = uri
            else:
                draft = _draft(schema)
                known = resource.is_declared if draft is None else True
                resource = Resource(uri, pointer, draft or resource.draft, known)
            self._add(resource)
            # The pointer itself stays reachable, and some authors refer to the bare identity.
            self._by_uri.setdefault(identity, resource)
        if resource.draft >= 2019:
            for name, anchors in (
                ("$anchor", (resource.anchors,)),
                ("$dynamicAnchor", (resource.anchors, resource.dynamic_anchors)),
            ):
                value = schema.get(name)
                if isinstance(value, str):
                    for table in anchors:
                        table.setdefault(value, pointer)
            if schema.get("$recursiveAnchor") is True:
                resource.dynamic_anchors.setdefault("", pointer)
        return resource


def _draft(schema: Json) -> int | None:
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(declared, str):
        return None
    for mark, draft in (
        ("draft-03", 4),
        ("draft-04", 4),
        ("draft-06", 6),
        ("draft-07", 7),
        ("2019-09", 2019),
        ("2020-12", 2020),
    ):
        if mark in declared:
            return draft
    return None


def child(pointer: str, *names: str | int) -> str:
    """The JSON Pointer of something below `pointer`."""
    for name in names:
        text = str(name)
        if "~" in text or "/" in text:
            text = text.replace("~", "~0").replace("/", "~1")
        pointer = f"{pointer}/{text}"
    return pointer
