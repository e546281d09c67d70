"""The README's first program is a real one, and what it names exists."""

import ast
import re
from pathlib import Path

import umbel

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_program_parses_and_uses_public_names_only() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None

    names = {
        node.attr
        for node in ast.walk(ast.parse(code[1]))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "umbel"
    }

    assert names
    assert names <= set(umbel.__all__)


def test_every_file_that_the_readme_links_to_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)

    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_public_surface_is_sorted_and_complete() -> None:
    assert sorted(umbel.__all__) == umbel.__all__
    assert [name for name in umbel.__all__ if getattr(umbel, name, None) is None] == []
