"""Tokens/s over batch and over context: in the terminal as text, or as a PNG or SVG file."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.planner import CurvePoint, Plan

if TYPE_CHECKING:
    from types import ModuleType

PLOT_SUFFIXES = (".png", ".svg")
EXTRA = "umbel[plot]"

_COLUMNS, _LINES = 61, 13
_BOUND, _UNFIT, _IDEAL = "*", "o", "."
LEGEND = f"{_BOUND} at most   {_UNFIT} more than fits into memory   {_IDEAL} if KV cost nothing"


def terminal_plot(
    points: Sequence[CurvePoint], x_of: Callable[[CurvePoint], int], name: str
) -> str:
    """The curve as lines of text, both axes logarithmic; `name` labels the x axis."""
    xs = [math.log2(x_of(point)) for point in points]
    ys = [math.log10(point.tokens_per_s) for point in points]
    ideals = [math.log10(point.weights_tokens_per_s) for point in points]
    low, high = min(ys + ideals), max(ys + ideals)
    grid = [[" "] * _COLUMNS for _ in range(_LINES)]
    column = _scale(min(xs), max(xs), _COLUMNS)
    line = _scale(high, low, _LINES)
    for x, ideal in zip(xs, ideals, strict=True):
        grid[line(ideal)][column(x)] = _IDEAL
    for point, x, y in zip(points, xs, ys, strict=True):
        grid[line(y)][column(x)] = _BOUND if point.fits else _UNFIT
    labels = {0: 10**high, _LINES // 2: 10 ** ((high + low) / 2), _LINES - 1: 10**low}
    rows = [
        f"{_number(labels[index]) if index in labels else '':>9} |{''.join(cells).rstrip()}"
        for index, cells in enumerate(grid)
    ]
    first, last = f"{x_of(points[0]):,}", f"{x_of(points[-1]):,}"
    axis = f"{'':>9} +{'-' * _COLUMNS}"
    ticks = f"{'':>11}{first}{name:^{max(1, _COLUMNS - len(first) - len(last))}}{last}"
    return "\n".join(["    tok/s", *rows, axis, ticks, f"{'':>11}{LEGEND}"])


def _scale(low: float, high: float, cells: int) -> Callable[[float], int]:
    span = (high - low) or 1.0
    return lambda value: round((value - low) / span * (cells - 1))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def check_plot_path(path: Path) -> None:
    """Raises `InvalidRequest` unless the suffix is .png or .svg, the folder exists and matplotlib
    is installed: before a plan is computed, not after.
    """
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise InvalidRequest(
            f"plot file {str(path)!r} is not valid: expected a name that ends in "
            f"{' or '.join(PLOT_SUFFIXES)}",
            param="plot",
        )
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(
            f"plot file {str(path)!r}: there is no folder {path.absolute().parent}", param="plot"
        )
    _pyplot()


def save_plot(plan: Plan, path: Path) -> None:
    """Write both curves to a .png or .svg file. Raises `InvalidRequest` as `check_plot_path`
    does.
    """
    check_plot_path(path)
    pyplot = _pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    question = plan.question
    workload = question.workload
    figure.suptitle(
        f"{question.shape.name} on {question.device.name}, {workload.dtype}: upper bounds"
    )
    _draw(left, plan.batch_curve, lambda point: point.batch, workload.batch)
    left.set_xlabel(f"rows (context {workload.context_len:,} tokens)")
    _draw(right, plan.context_curve, lambda point: point.context_len, workload.context_len)
    right.set_xlabel(f"context in tokens ({workload.batch:,} rows)")
    figure.savefig(path)
    pyplot.close(figure)


def _draw(
    axes: Any,  # matplotlib is optional, so its types are not known here
    points: Sequence[CurvePoint],
    x_of: Callable[[CurvePoint], int],
    chosen: int,
) -> None:
    xs = [x_of(point) for point in points]
    axes.plot(xs, [p.weights_tokens_per_s for p in points], ":", label="if KV cost nothing")
    axes.plot(xs, [p.tokens_per_s for p in points], "-o", markersize=3, label="at most")
    unfit = [point for point in points if not point.fits]
    if unfit:
        axes.plot(
            [x_of(point) for point in unfit],
            [point.tokens_per_s for point in unfit],
            "x",
            color="tab:red",
            label="more than fits into memory",
        )
    axes.axvline(chosen, linewidth=0.7, color="grey")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda x, _position: f"{x:,.0f}")
    axes.set_ylabel("tokens/s")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend()


def _pyplot() -> "ModuleType":
    try:
        import matplotlib
        import matplotlib.pyplot as pyplot
    except ImportError as exc:
        raise InvalidRequest(
            f"a plot file needs matplotlib, which is not installed: pip install '{EXTRA}', or "
            "leave out --plot (the terminal shows the same curves)",
            param="plot",
        ) from exc
    matplotlib.use("Agg")  # no display is needed to write a file
    return pyplot
