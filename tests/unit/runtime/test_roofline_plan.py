"""The plan as its user meets it: figures, searches, report, JSON, plot files, refused options."""

import argparse
import builtins
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline import cost, search
from umbel.runtime.roofline.command import add_arguments, question_of, run
from umbel.runtime.roofline.figures import format_value, formula_of
from umbel.runtime.roofline.planner import Plan, plan
from umbel.runtime.roofline.plot import save_plot
from umbel.runtime.roofline.question import Question

HAS_MATPLOTLIB = True
try:
    import matplotlib  # noqa: F401
except ImportError:
    HAS_MATPLOTLIB = False


def parsed(options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(options.split())


def asked(options: str) -> Question:
    return question_of(parsed(options))


def planned(options: str) -> Plan:
    return plan(asked(options))


def value(result: Plan, key: str) -> float:
    found = result.figure(key).value
    assert found is not None
    return found


def refused(options: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        run(parsed(options))
    return str(caught.value)


# Figures


def test_the_plan_of_70b_on_h100() -> None:
    result = planned("--model 70b --device h100 --batch 64 --context 8192 --dtype float16")

    assert value(result, "weight_bytes") == 140e9
    assert value(result, "kv_bytes_per_layer_token") == 4096
    assert value(result, "kv_bytes_per_row") == 2_684_354_560
    assert value(result, "knee") == pytest.approx(295.3, rel=1e-3)
    assert value(result, "tokens_per_s") == pytest.approx(687.6, rel=1e-3)
    assert value(result, "kv_equals_weights_batch") == pytest.approx(52.15, rel=1e-3)
    assert value(result, "least_devices") == 2
    assert value(result, "max_batch") == 0
    assert result.step.binding == "kv"


def test_a_shared_prefix_is_compared_with_flat_reading() -> None:
    result = planned("--model 8b --device h100 --batch 64 --context 4352 --shared-prefix 4096")

    kappa = 131_072
    assert value(result, "sharing_ratio") == pytest.approx(13.6)
    assert value(result, "kv_bytes_saved") == kappa * 63 * 4096
    assert value(result, "sharing_speedup") == pytest.approx(2.804, rel=1e-3)
    assert value(result, "split_pays_len") == pytest.approx(
        cost.split_pays_len(64, group_size=4, head_dim=128, element_bytes=2, tile_rows=64)
    )


def test_a_plan_without_a_shared_prefix_has_no_saving() -> None:
    result = planned("--model 8b --device h100")

    with pytest.raises(KeyError):
        result.figure("kv_bytes_saved")


def test_a_cached_prefix_shortens_prefill() -> None:
    whole = planned("--model 8b --device h100 --prompt 4224 --output 128")
    rest = planned("--model 8b --device h100 --prompt 4224 --output 128 --shared-prefix 4096")

    cached = cost.prefill_flops(whole.question.shape, 4224, cached=4096, logits_rows=1)
    assert value(rest, "prefill_flops") == cached
    assert value(rest, "prefill_s") < value(whole, "prefill_s") / 20


def test_the_price_follows_from_the_step() -> None:
    result = planned("--model 8b --device h100 --batch 32 --price-per-hour 3.6 --tp 2")

    step_s = value(result, "step_s")
    assert value(result, "price_per_million_decoded") == pytest.approx(2 * 1e-3 * step_s / 32 * 1e6)
    assert value(result, "price_per_million_output") > value(result, "price_per_million_decoded")


def test_rows_in_flight_solve_littles_law() -> None:
    result = planned("--model 8b --device h100 --batch 32 --rate 10")

    rows = value(result, "rows_in_flight")
    step_s = search.decode_step(result.question, max(1, round(rows))).total_s
    assert rows == pytest.approx(10 * (value(result, "prefill_s") + 128 * step_s))
    assert planned("--model 8b --device l4 --rate 1e4").figure("rows_in_flight").value is None


def test_curves_hold_the_asked_point_and_never_exceed_the_ideal() -> None:
    result = planned("--model 8b --device h100 --batch 48 --context 3000")

    at_batch = [point for point in result.batch_curve if point.batch == 48]
    at_context = [point for point in result.context_curve if point.context_len == 3000]
    assert at_batch == at_context
    assert at_batch[0].step_s == result.step.total_s
    for point in (*result.batch_curve, *result.context_curve):
        assert point.tokens_per_s <= point.weights_tokens_per_s
    limit = value(result, "max_batch")
    assert [point.fits for point in result.batch_curve] == [
        point.batch <= limit for point in result.batch_curve
    ]


# Searches


@pytest.mark.parametrize("holds_up_to", [0, 1, 5, 99, 100])
def test_the_largest_number_is_found(holds_up_to: int) -> None:
    assert search.largest(100, lambda n: n <= holds_up_to) == holds_up_to


def test_targets_are_kept_by_the_schedule_and_missed_by_one_row_more() -> None:
    question = asked(
        "--model 8b --device h100 --prompt 2048 --output 256 --ttft-ms 200 --itl-ms 30"
    )
    schedule = search.best_schedule(question)
    assert schedule is not None
    assert schedule.ttft_s is not None
    more = search.schedule_of(question, schedule.batch + 1)

    assert search.decode_step(question, schedule.batch).total_s <= 0.030
    assert schedule.step_s <= 0.030
    assert schedule.ttft_s <= 0.200
    assert schedule.chunk >= schedule.needed_chunk
    missed = more.ttft_s is None or more.ttft_s > 0.2 or more.chunk < more.needed_chunk
    assert missed or schedule.batch == search.memory_batch(question)


def test_the_chunk_fills_its_step_and_stays_below_the_formula() -> None:
    question = replace(asked("--model 8b --device h100 --prompt 8192"), efficiency=0.6)
    chunk = search.chunk_within(question, 64, 50e-3)

    # 1,784 by the formula, which neglects the chunk's attention
    assert 1400 < chunk < 1784
    assert search.step_with_chunk_s(question, 64, chunk) <= 50e-3
    assert search.step_with_chunk_s(question, 64, chunk + 1) > 50e-3


def test_targets_that_cannot_be_kept_are_said_to_be() -> None:
    result = planned("--model 70b --device h100 --itl-ms 30")

    assert result.figure("target_batch").value is None
    assert "not even one row" in result.figure("target_batch").note


def test_speculation_stops_paying_when_rows_fill_the_device() -> None:
    question = asked("--model 8b --device h100 --batch 1 --context 512")
    most = search.largest_paying_batch(question, 1 << 20)

    assert search.speculation_speedup(question, most) > 1
    assert search.speculation_speedup(question, most + 1) <= 1


# What is printed


def test_the_report_names_dense_rates_and_what_would_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(parsed("--model 70b --device h100")) == 0

    printed = capsys.readouterr().out
    for text in ("989 TFLOP/s dense", "140 GB", "4,096 B", "295 FLOP/B", "more rows per step"):
        assert text in printed
    assert "W = P b" not in printed


def test_explain_prints_formulas_and_symbols(capsys: pytest.CaptureFixture[str]) -> None:
    run(parsed("--model 70b --device h100 --explain --itl-ms 100 --price-per-hour 2 --rate 1"))

    printed = capsys.readouterr().out
    for text in ("W = P b", "AI = 2 B d d' / (b (d d' + B d + B d'))", "I = F / BW", "Symbols"):
        assert text in printed


def test_every_figure_has_a_formula() -> None:
    result = planned(
        "--model 8b --device h100 --context 600 --shared-prefix 64 --tp 2 --batch 2 "
        "--itl-ms 100 --ttft-ms 900 --price-per-hour 2 --rate 1"
    )

    figures = [figure for section in result.sections for figure in section.figures]
    assert [figure.key for figure in figures if not figure.formula] == []
    assert len({figure.key for figure in figures}) == len(figures)


def test_every_public_formula_is_stated_in_its_docstring() -> None:
    assert [name for name in cost.__all__ if not formula_of(getattr(cost, name))] == []


def test_the_documentation_states_each_formula_as_the_code_does() -> None:
    page = Path(__file__).parents[3] / "docs" / "roofline.md"
    rows = re.findall(r"^\| `(\w+)` \| `(.+)` \|$", page.read_text(encoding="utf-8"), re.MULTILINE)

    assert dict(rows) == {name: formula_of(getattr(cost, name)) for name in cost.__all__}


def test_json_holds_the_figures_and_both_curves(capsys: pytest.CaptureFixture[str]) -> None:
    run(parsed("--model 70b --device h100 --batch 64 --context 1024 --json"))

    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed["figures"]["step_s"]["value"] == pytest.approx(48.2e-3, rel=1e-3)
    assert printed["figures"]["weight_bytes"]["formula"] == "W = P b"
    assert printed["binding"] == "weights"
    assert printed["question"]["workload"]["batch"] == 64
    assert len(printed["by_batch"]) > 5
    assert len(printed["by_context"]) > 5


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (140e9, "B", "140 GB"),
        (4096, "B", "4,096 B"),
        (327_680, "B", "328 kB"),
        (0.04179, "s", "41.8 ms"),
        (0.99999, "s", "1 s"),
        (0.0, "s", "0 s"),
        (1531.4, "tok/s", "1,531 tok/s"),
        (13.6, "x", "13.6x"),
        (0.5286, "$", "$0.529"),
        (None, "rows", "none"),
    ],
)
def test_values_are_written_for_people(number: float | None, unit: str, text: str) -> None:
    assert format_value(number, unit) == text


# Plot files


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is optional")
@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_plot_files_are_written(tmp_path: Path, name: str, start: bytes) -> None:
    save_plot(planned("--model 8b --device h100"), tmp_path / name)

    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_missing_matplotlib_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def without_matplotlib(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)

    message = refused(f"--model 8b --device h100 --plot {tmp_path}/p.png")
    assert "umbel[plot]" in message


# Nonsense is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model 8b --device h900", "h100, h200, a100, l4, cpu"),
        ("--model 9c --device h100", "smollm2-135m"),
        ("--model smollm2-135m --device h100 --context 9000", "accepts 1 to 8192 tokens"),
        (
            "--model smollm2-135m --device h100 --prompt 8000 --output 500",
            "prompt (8000) and output",
        ),
        ("--model smollm2-135m --device h100 --context 9 --prompt 8192", "together above"),
        ("--model 8b --device h100 --batch 0", "batch=0"),
        ("--model 8b --device h100 --batch -3", "batch=-3"),
        ("--model 8b --device h100 --context -1", "context_len=-1"),
        ("--model 8b --device h100 --context 0", "context=0"),
        ("--model 8b --device h100 --prompt 0", "prompt=0"),
        ("--model 8b --device h100 --output -5", "output=-5"),
        ("--model 8b --device h100 --shared-prefix 900", "less than context_len=640"),
        ("--model 8b --device h100 --shared-prefix 64 --fan-out 2", "above batch=1"),
        ("--model 8b --device h100 --tp 3", "1, 2, 4, 8, 16, 32"),
        ("--model 8b --device h100 --itl-ms 0", "itl_s"),
        ("--model 8b --device h100 --price-per-hour -1", "price_per_hour"),
        ("--model 8b --device h100 --efficiency 1.5", "efficiency=1.5"),
        ("--model 8b --device h100 --acceptance 2", "acceptance=2.0"),
        ("--model 8b --device h100 --rate nan", "rate_per_s"),
        ("--model 8b --device h100 --plot p.jpg", ".png or .svg"),
        ("--model 8b --device h100 --plot /no/such/folder/p.png", "no folder /no/such/folder"),
    ],
)
def test_nonsense_is_refused_with_what_is_accepted(options: str, message: str) -> None:
    assert message in refused(options)


def test_an_unknown_dtype_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--dtype float12")

    assert "bfloat16" in capsys.readouterr().err


def test_no_figure_is_infinite_or_nan_at_the_edges() -> None:
    for options in (
        "--model smollm2-135m --device l4 --context 1 --prompt 1 --output 1",
        "--model 70b --device l4 --batch 100000 --context 131072 --dtype int4 --kv-dtype float8",
        "--model 8b --device a100 --dtype float8 --shared-prefix 1 --context 2 --tp 8",
    ):
        result = planned(options)
        for section in result.sections:
            for figure in section.figures:
                assert figure.value is None or math.isfinite(figure.value), figure
