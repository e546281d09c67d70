"""The budgets of one compilation: what is larger is refused by name instead of stalling."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of one compilation, each with the reason for its default."""

    max_source_chars: int = (
        1_000_000  # length of a pattern, of all choices together, or of a schema's text
    )
    max_nesting: int = 200  # nested groups of a pattern, nested subschemas
    max_nodes: int = 40_000  # character positions after unrolling: 100 MB while compiling
    max_states: int = 100_000  # states of the finished automaton: 12 MB with 30 byte classes
    max_work: int = 8_000_000  # elementary steps of determinization: about four seconds of Python
    max_table_entries: int = 16_000_000  # states x byte classes, four bytes each
    max_value_depth: int = (
        3  # nesting of values that a JSON Schema leaves open: {}, true, "type": "object"
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"Limits.{field.name}={value!r} must be an integer of at least 0")
