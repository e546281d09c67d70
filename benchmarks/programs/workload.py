"""What a workload is: a program, the cases that it runs over, and how its answers are judged."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from umbel.frontend_dsl import Program

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Case:
    """Arguments of one run, and what is known of its answer."""

    arguments: Mapping[str, Any]
    expected: Any = None


@dataclass(frozen=True)
class Workload:
    """`is_valid(result)`: what must hold of every answer, whatever the model knows.

    `is_right(expected, result)`: whether an answer is the right one; None where there is none.
    """

    name: str
    program: Program
    cases: Sequence[Case]
    is_valid: Callable[[Any], bool]
    is_right: Callable[[Any, Any], bool] | None = None

    @property
    def items(self) -> list[Mapping[str, Any]]:
        return [case.arguments for case in self.cases]

    def first(self, num_cases: int | None) -> "Workload":
        """The same with fewer cases; None: with all."""
        return replace(self, cases=self.cases[:num_cases])


def typed(value: Any, kind: Any) -> Any:
    """`value` as `kind`, as a server gives plain JSON. None: it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def load(name: str) -> Any:
    """A JSON file of the data that comes with the suite."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def fables() -> dict[str, str]:
    """Title to text."""
    text = (DATA / "fables.txt").read_text(encoding="utf-8")
    parts = (part.partition("\n") for part in text.removeprefix("# ").split("\n# "))
    return {title.strip(): body.strip() for title, _, body in parts}
