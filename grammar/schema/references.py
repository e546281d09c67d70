"""`$dynamicRef` and `$recursiveRef`: references whose target depends on the way that led to
them.
"""

from umbel.grammar.errors import GrammarError
from umbel.grammar.schema.document import Resource
from umbel.grammar.schema.reader import Place, SchemaReader


def dynamic_target(reader: SchemaReader, place: Place, name: str) -> Place:
    """The outermost resource on the way here that has the dynamic anchor, else the plain target."""
    ref = place.schema[name]
    if not isinstance(ref, str):
        raise GrammarError(
            f"{name} must be a string, got {ref!r:.100}", place.where(name), keyword=name
        )
    found = reader.document.resolve(ref, place.where(name), place.resource)
    anchor = "" if name == "$recursiveRef" else ref.partition("#")[2]
    target = Place(found.schema, found.pointer, found.resource, place.scope)
    starts_dynamic = found.resource.dynamic_anchors.get(anchor) == found.pointer
    if starts_dynamic:
        for resource in (*place.scope, found.resource):
            pointer = resource.dynamic_anchors.get(anchor)
            if pointer is not None:
                target = _at(reader, resource, pointer, place)
                break
    scope = target.scope if target.resource in target.scope else (*target.scope, target.resource)
    return Place(target.schema, target.pointer, target.resource, scope)


def _at(reader: SchemaReader, resource: Resource, pointer: str, place: Place) -> Place:
    found = reader.document.resolve("#" + pointer, place.pointer, reader.document.main)
    return Place(found.schema, found.pointer, resource, place.scope)
