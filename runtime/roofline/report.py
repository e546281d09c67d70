"""A plan for people (tables and curves in the terminal) and for programs (JSON)."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from umbel.runtime.roofline import cost
from umbel.runtime.roofline.figures import Section, format_value
from umbel.runtime.roofline.planner import CurvePoint, Plan
from umbel.runtime.roofline.plot import terminal_plot
from umbel.runtime.roofline.question import Question
from umbel.runtime.roofline.records import dtype_bytes
from umbel.runtime.roofline.sections import TILE_ROWS

_LABEL_WIDTH, _VALUE_WIDTH = 56, 14


def print_plan(plan: Plan, console: Console, *, explain: bool = False) -> None:
    """Print all sections, both curves and, with `explain`, the formula of each figure."""
    console.print(_header(plan.question), highlight=False, soft_wrap=True)
    for section in plan.sections:
        _print_section(console, section, explain=explain)
    workload = plan.question.workload
    console.print()
    title = f"Tokens/s over rows, context {workload.context_len:,}"
    _print_curve(console, title, "rows", plan.batch_curve, with_batch=True)
    console.print()
    title = f"Tokens/s over context, {workload.batch:,} rows"
    _print_curve(console, title, "context", plan.context_curve, with_batch=False)
    if explain:
        console.print()
        console.print(Text("Symbols", style="bold"))
        console.print(_symbols(plan.question), highlight=False)


def _header(question: Question) -> str:
    device, workload = question.device, question.workload
    rate = format_value(cost.peak_flops(device, workload.dtype), "FLOP/s")
    prefix = ""
    if workload.shared_prefix_len:
        among = "all rows" if workload.fan_out is None else f"{workload.fan_out:,} rows each"
        prefix = f", the first {workload.shared_prefix_len:,} shared by {among}"
    width = f", tensor-parallel over {workload.tensor_parallel}" * (workload.tensor_parallel > 1)
    return (
        f"{question.shape.name} on {device.name}: {workload.dtype} weights, {workload.kv_dtype} KV"
        f"{width}; {workload.batch:,} rows over {workload.context_len:,} tokens{prefix}\n"
        f"device: {rate} dense, {format_value(device.bandwidth, 'B/s')}, "
        f"{format_value(device.memory_bytes, 'B')} ({device.source})\n"
        "Times are lower bounds, rates upper bounds: unavoidable work at the full, dense rates."
    )


def _print_section(console: Console, section: Section, *, explain: bool) -> None:
    console.print()
    console.print(Text(section.title, style="bold"), soft_wrap=True)
    shown = ""
    for figure in section.figures:
        value = format_value(figure.value, figure.unit)
        line = Text(f"  {figure.label:<{_LABEL_WIDTH}} {value:>{_VALUE_WIDTH}}")
        line.append(f"  {figure.note}".rstrip(), style="dim")
        console.print(line, soft_wrap=True)
        if explain and figure.formula not in ("", shown):
            console.print(Text(f"      {figure.formula}", style="cyan"), soft_wrap=True)
            shown = figure.formula
    if section.note:
        console.print(Text(f"  {section.note}", style="italic"), soft_wrap=True)


def _print_curve(
    console: Console, title: str, name: str, points: Sequence[CurvePoint], *, with_batch: bool
) -> None:
    table = Table.grid(padding=(0, 3))
    for _ in range(4):
        table.add_column(justify="right")
    table.add_row(f"  {name}", "step", "tok/s", "without KV", "bound by", "", style="dim")
    for point in points:
        table.add_row(
            f"{point.batch if with_batch else point.context_len:,}",
            format_value(point.step_s, "s"),
            format_value(point.tokens_per_s, ""),
            format_value(point.weights_tokens_per_s, ""),
            point.binding,
            "" if point.fits else "more than fits",
        )
    drawn = terminal_plot(points, lambda p: p.batch if with_batch else p.context_len, name)
    console.print(Text(title, style="bold"))
    console.print(Group(table, Text(), Text(drawn, no_wrap=True)), highlight=False)


def _symbols(question: Question) -> RenderableType:
    shape, device, workload = question.shape, question.device, question.workload
    weights_b, kv_b = dtype_bytes(workload.dtype), dtype_bytes(workload.kv_dtype)
    peak = format_value(cost.peak_flops(device, workload.dtype), "FLOP/s")
    memory = format_value(device.memory_bytes, "B")
    reserved = format_value(question.reserved_bytes, "B")
    known = (
        ("P", f"{shape.num_parameters:,}", "parameters"),
        ("P_step", f"{shape.num_streamed_parameters:,}", "read per step"),
        ("P_input_table", f"{shape.num_gathered_parameters:,}", "looked up, not read"),
        ("P_head", f"{shape.num_head_parameters:,}", "of the output projection"),
        ("b", f"{weights_b:g}, {kv_b:g}", "bytes per element of weights, of KV"),
        ("n_l, n_q, n_kv", f"{shape.num_layers}, {shape.num_q_heads}, {shape.num_kv_heads}",
         "layers, query heads, KV heads"),
        ("D, g", f"{shape.head_dim}, {shape.group_size}", "head size, query heads per KV head"),
        ("d, V", f"{shape.hidden_size:,}, {shape.vocab_size:,}", "width, vocabulary"),
        ("F, e", f"{peak}, {question.efficiency:g}", "dense peak, share of it in prefill"),
        ("BW", format_value(device.bandwidth, "B/s"), "memory bandwidth"),
        ("M, u, A", f"{memory}, {question.memory_use:g}, {reserved}",
         "memory, share of it to fill, reserved"),
        ("B, L", f"{workload.batch:,}, {workload.context_len:,}", "rows, tokens that each sees"),
        ("L_s, L_u", f"{workload.shared_prefix_len:,}, {workload.own_len:,}",
         "shared part and own part of L"),
        ("S, n_out", f"{question.prompt_len:,}, {question.output_len:,}", "prompt, output"),
        ("t", f"{workload.tensor_parallel}", "devices, as a divisor; a time elsewhere"),
        ("M in L*", f"{TILE_ROWS}", "query rows per tile"),
    )  # fmt: skip
    table = Table.grid(padding=(0, 2))
    for symbol, value, meaning in known:
        table.add_row(Text(f"  {symbol}", style="cyan"), value, Text(meaning, style="dim"))
    return table


def plan_as_json(plan: Plan) -> bytes:
    """The plan as one JSON object: question, figures by key with unit and formula, both curves."""
    return msgspec.json.format(msgspec.json.encode(_plain(plan)), indent=2)


def _plain(plan: Plan) -> dict[str, Any]:
    return {
        "question": asdict(plan.question),
        "binding": plan.step.binding,
        "figures": {
            figure.key: {
                "value": figure.value,
                "unit": figure.unit,
                "label": figure.label,
                "formula": figure.formula,
                "note": figure.note,
            }
            for section in plan.sections
            for figure in section.figures
        },
        "by_batch": [asdict(point) for point in plan.batch_curve],
        "by_context": [asdict(point) for point in plan.context_curve],
    }
