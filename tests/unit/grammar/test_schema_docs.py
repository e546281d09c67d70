"""docs/json_schema.md says the same as the tables in the code."""

import re
from pathlib import Path

from umbel.grammar.schema.assertion_table import ASSERTIONS, DRAFT_3
from umbel.grammar.schema.formats import ANNOTATED, FORMATS

PAGE = (Path(__file__).parents[3] / "docs" / "json_schema.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (`[^|]*`) \| ([^|]*) \|", re.MULTILINE)


def _rows(title: str) -> dict[str, str]:
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    return {
        name: status.strip()
        for names, status in ROW.findall(section)
        for name in re.findall(r"`([^`]+)`", names)
    }


def test_every_keyword_has_its_row() -> None:
    rows = _rows("Keywords")

    assert rows.keys() == ASSERTIONS.keys() | DRAFT_3
    assert {name for name, status in rows.items() if status == "refused"} == DRAFT_3


def test_every_format_has_its_row() -> None:
    rows = _rows("Formats")

    assert rows.keys() == FORMATS.keys() | ANNOTATED
    assert {name for name, status in rows.items() if "annotations" in status} == ANNOTATED
