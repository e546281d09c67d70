"""Constructs that the interpreter runs but the compiler refuses, or compiles to something else."""

import ast
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parents[2] / "kernels" / "triton").glob("*_jit.py"))


def _is_jit(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(decorator) == "triton.jit" for decorator in function.decorator_list)


def _constants(function: ast.FunctionDef) -> set[str]:
    """Arguments that are known when the kernel is compiled."""
    arguments = [*function.args.args, *function.args.kwonlyargs]
    return {a.arg for a in arguments if a.annotation and "constexpr" in ast.unparse(a.annotation)}


def faults(source: str) -> list[str]:
    """`and`, `or` and `not` are for constants only: of two tensors the interpreter silently takes
    the second. `break`, `try`, chained comparisons and a load with a mask but no other value are
    out too, and so is `return` inside of a loop."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef) or not _is_jit(function):
            continue
        constants = _constants(function)
        for node in ast.walk(function):
            where = f"{function.name}, line {getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.BoolOp) or (
                isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
            ):
                used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                if not used <= constants:
                    found.append(f"{where}: boolean operator on {sorted(used - constants)}")
            elif isinstance(node, ast.Break | ast.Continue | ast.Try):
                found.append(f"{where}: {type(node).__name__.lower()}")
            elif isinstance(node, ast.Compare) and len(node.ops) > 1:
                found.append(f"{where}: chained comparison")
            elif isinstance(node, ast.For | ast.While):
                if any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
                    found.append(f"{where}: return inside of a loop")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
                given = {keyword.arg for keyword in node.keywords}
                if "mask" in given and "other" not in given:
                    found.append(f"{where}: masked load without other")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_kernels_use_what_interpreter_and_compiler_agree_on(path: Path) -> None:
    assert faults(path.read_text()) == []


@pytest.mark.parametrize(
    "body",
    [
        "x = (a > 0) and (a < 1)",
        "x = not a",
        "for i in range(n):\n        break",
        "x = 0 < a < 1",
        "while a:\n        return",
        "x = tl.load(P, mask=a)",
    ],
)
def test_the_check_finds(body: str) -> None:
    assert faults(f"@triton.jit\ndef f(P, a, n, C: tl.constexpr):\n    {body}\n") != []


def test_constants_may_be_combined() -> None:
    source = "@triton.jit\ndef f(A: tl.constexpr, B: tl.constexpr):\n    x = A and not B\n"

    assert faults(source) == []
