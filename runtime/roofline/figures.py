"""A figure of a plan: its value, its unit, and the formula it comes from, formatted for people."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_SCALED_UNITS = ("B", "B/s", "FLOP", "FLOP/s")
_EXACT_BYTES = 100_000  # below, bytes are not rounded to kB: 4,096 B
_FORMULA = "Formula: "


@dataclass(frozen=True, slots=True)
class Figure:
    """One result. `value` None: there is no such number, and `note` says why."""

    key: str
    label: str
    value: float | None
    unit: str
    formula: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Figures under one title; `note` is a sentence about all of them."""

    title: str
    figures: tuple[Figure, ...]
    note: str = ""


def formula_of(function: Callable[..., Any]) -> str:
    """The "Formula:" line of a cost function's docstring; empty where Python strips docstrings."""
    for line in (inspect.getdoc(function) or "").splitlines():
        if line.startswith(_FORMULA):
            return line.removeprefix(_FORMULA)
    return ""


def format_value(value: float | None, unit: str) -> str:
    """Three significant digits or whole numbers, with the unit: "140 GB", "41.8 ms", "1,531
    tok/s".
    """
    if value is None:
        return "none"
    if unit == "s":
        return _scaled(value, _SECONDS, "", places=3)
    if unit == "B" and abs(value) < _EXACT_BYTES:
        return f"{value:,.0f} B"
    if unit in _SCALED_UNITS:
        return _scaled(value, _DECIMAL, unit, places=3)
    if unit == "x":
        return f"{_plain(value)}x"
    if unit == "$":
        return f"${_plain(value)}"
    return f"{_plain(value)} {unit}".rstrip()


def _scaled(value: float, scales: tuple[tuple[float, str], ...], unit: str, *, places: int) -> str:
    value = float(f"{value:.{places}g}")  # first, so that 0.9999 s does not become 1e+03 ms
    for scale, prefix in scales:
        if abs(value) >= scale:
            return f"{value / scale:.{places}g} {prefix}{unit}"
    return f"{_plain(value)} {unit or scales[0][1]}"


def _plain(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
