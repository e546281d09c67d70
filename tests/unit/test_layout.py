"""The folder tree is the architecture: five linked packages, absolute imports, and imports that
point down.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("frontend_dsl", "runtime", "radix_cache", "grammar", "kernels")
MAY_IMPORT = {
    "frontend_dsl": {"frontend_dsl", "runtime"},
    "runtime": {"runtime", "radix_cache", "grammar", "kernels"},
    "radix_cache": {"radix_cache"},
    "grammar": {"grammar"},
    "kernels": {"kernels"},
}
FORBIDDEN_LIBRARIES = {
    "radix_cache": {"torch", "transformers"},
    "grammar": {"torch", "transformers"},
}


def _sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imported_modules(source: Path) -> list[str]:
    modules = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: relative import in line {node.lineno}"
            modules.append(node.module or "")
    return modules


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_down(package: str) -> None:
    bad = []
    for source in _sources(package):
        allowed = MAY_IMPORT[package]
        for module in _imported_modules(source):
            head, _, rest = module.partition(".")
            if head in PACKAGES:
                bad.append(f"{source}: import of {module}; say umbel.{module}")
            if head == "umbel" and rest and rest.split(".")[0] not in allowed:
                bad.append(f"{source}: {package} may not import {module}")
            if head in FORBIDDEN_LIBRARIES.get(package, set()):
                bad.append(f"{source}: {package} may not import {head}")

    assert bad == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_relative_links_under_src(package: str) -> None:
    link = ROOT / "src" / "umbel" / package

    assert link.is_symlink()
    assert link.readlink() == Path("../..") / package


def test_kernels_has_no_init_so_that_an_installed_package_of_that_name_wins() -> None:
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_no_file_is_a_drawer_for_everything() -> None:
    names = {path.stem for package in PACKAGES for path in _sources(package)}

    assert not names & {"utils", "helpers", "common", "misc"}
