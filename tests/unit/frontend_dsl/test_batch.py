"""Batches: streamed, journaled, killed, resumed, retried, in order."""

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from unit.frontend_dsl.batch_worker import shout
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import State, gen, program
from umbel.frontend_dsl.batch.journal import Header, Journal, Record
from umbel.frontend_dsl.batch.sources import count_items, read_items
from umbel.runtime.errors import InvalidRequest, QueueFull
from umbel.runtime.params import SamplingParams

TESTS = Path(__file__).resolve().parents[2]
NUM_ITEMS = 10_000


@program
def echo(s: State, word: str) -> str:
    s += word
    s += gen("x", max_tokens=3)
    return word + s["x"]


def _records(path: Path) -> list[Record]:
    return [
        Record(**{k: v for k, v in json.loads(line).items() if k != "cost"})
        for line in path.read_text().splitlines()[1:]
    ]


def test_ten_thousand_items_killed_three_times_are_complete_and_exact(tmp_path: Path) -> None:
    source, checkpoint, out = (tmp_path / name for name in ("in.jsonl", "run.jsonl", "out.jsonl"))
    rng = random.Random(0)
    items = [{"group": f"g{rng.randrange(40)}", "word": f"w{i}"} for i in range(NUM_ITEMS)]
    source.write_text("".join(json.dumps(item) + "\n" for item in items))
    stops = sorted(rng.sample(range(500, NUM_ITEMS - 500), 3))

    for stop in stops:
        worker = _worker(source, checkpoint)
        while worker.poll() is None and _num_lines(checkpoint) < stop:
            time.sleep(0.005)
        assert worker.poll() is None, "the batch was over before it could be killed"
        worker.kill()
        worker.communicate()
    growth_kib, _ = _worker(source, checkpoint).communicate()

    records = _records(checkpoint)
    assert sorted(record.index for record in records) == list(range(NUM_ITEMS))
    header = Header(shout.identity, "test")
    with Journal(checkpoint, header) as journal:
        journal.write_output(out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(NUM_ITEMS))
    for idx in rng.sample(range(NUM_ITEMS), 50):
        with FakeClient() as client:
            assert lines[idx]["result"] == shout.eager().run(client, **items[idx]).result
    assert int(growth_kib) < 8 * 1024


def _worker(source: Path, checkpoint: Path) -> "subprocess.Popen[str]":
    code = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); "
        "from unit.frontend_dsl.batch_worker import main; main()"
    )
    args = [sys.executable, "-c", code, str(source), str(checkpoint), str(NUM_ITEMS)]
    return subprocess.Popen(args, stdout=subprocess.PIPE, text=True)


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_input_is_read_only_as_room_becomes_free(tmp_path: Path) -> None:
    num_read = 0
    most_ahead = 0

    def items() -> Iterator[dict[str, str]]:
        nonlocal num_read
        for i in range(300):
            num_read += 1
            yield {"word": f"w{i}"}

    def note(report: Any) -> None:
        nonlocal most_ahead
        most_ahead = max(most_ahead, num_read - report.num_done)

    with FakeClient() as client:
        report = echo.run_batch(
            client,
            items(),
            checkpoint=tmp_path / "run",
            max_in_flight=4,
            window=10,
            on_progress=note,
        )

    assert report.num_done == 300
    assert most_ahead <= 10 + 4


def test_an_item_that_fails_is_a_record_and_the_others_go_on(tmp_path: Path) -> None:
    items: list[dict[str, Any]] = [{"word": "a"}, {"wrong": 1}, {"word": "b"}]

    with FakeClient() as client:
        report = echo.run_batch(client, items, checkpoint=tmp_path / "run")

    by_index = {record.index: record for record in _records(tmp_path / "run")}
    assert report.num_done == 3
    assert report.num_failed == 1
    assert "word" in str(by_index[1].error)
    assert by_index[0].result.startswith("a")


def test_an_error_that_may_pass_is_tried_again_and_another_is_not(tmp_path: Path) -> None:
    refusals = iter([QueueFull("full"), QueueFull("full"), None])
    with FakeClient(refuse=lambda params: next(refusals)) as client:
        report = echo.run_batch(client, [{"word": "a"}], checkpoint=tmp_path / "run", retries=2)
    assert report.num_failed == 0
    assert _records(tmp_path / "run")[0].attempts == 3

    with FakeClient(model=FakeModel(fails=lambda context: True)) as client:
        report = echo.run_batch(client, [{"word": "a"}], checkpoint=tmp_path / "other", retries=2)
    assert report.num_failed == 1
    assert _records(tmp_path / "other")[0].attempts == 1


def test_failed_items_are_run_again_when_asked(tmp_path: Path) -> None:
    with FakeClient(model=FakeModel(fails=lambda context: True)) as client:
        echo.run_batch(client, [{"word": "a"}], checkpoint=tmp_path / "run")
    with FakeClient() as client:
        kept = echo.run_batch(client, [{"word": "a"}], checkpoint=tmp_path / "run")
        redone = echo.run_batch(
            client, [{"word": "a"}], checkpoint=tmp_path / "run", redo_errors=True
        )

    assert (kept.num_failed, redone.num_failed) == (1, 0)


def test_a_checkpoint_of_another_input_or_program_is_refused(tmp_path: Path) -> None:
    with FakeClient() as client:
        echo.run_batch(client, [{"word": "a"}], checkpoint=tmp_path / "run", source="one")

        with pytest.raises(InvalidRequest, match="belongs to another run"):
            echo.run_batch(client, [], checkpoint=tmp_path / "run", source="two")
        with pytest.raises(InvalidRequest, match="belongs to another run"):
            shout.run_batch(client, [], checkpoint=tmp_path / "run", source="one")


def test_a_line_that_was_cut_off_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with FakeClient() as client:
        echo.run_batch(client, [{"word": "a"}, {"word": "b"}], checkpoint=path, max_in_flight=1)
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        report = echo.run_batch(client, [{"word": "a"}, {"word": "b"}], checkpoint=path)

    assert report.num_resumed == 1
    assert [record.index for record in _records(path)] == [0, 1]


def test_items_with_a_common_prefix_run_next_to_each_other(tmp_path: Path) -> None:
    items = [{"group": f"g{i % 3}", "word": f"w{i}"} for i in range(30)]

    with FakeClient() as client:
        shout.run_batch(client, items, checkpoint=tmp_path / "run", max_in_flight=1)
        texts = ["".join(map(chr, call.context[1:3])) for call in client.calls]

    assert texts == sorted(texts)


def test_costs_are_counted_per_call_site(tmp_path: Path) -> None:
    with FakeClient() as client:
        report = echo.run_batch(client, [{"word": "ab"}] * 3, checkpoint=tmp_path / "run")

    ((site, cost),) = report.costs.by_site.items()
    assert site.startswith("gen at ")
    assert site.split(":")[-1].isdigit()
    assert cost.num_calls == 3
    assert cost.num_computed_tokens == 3 * len("<ab")  # with the start token
    value = FakeModel().generate([0x110000, *map(ord, "ab")], SamplingParams(max_tokens=3))
    assert cost.num_output_tokens == 3 * len(value)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.jsonl", '{"word": "x"}\n\n{"word": 2}\n', [{"word": "x"}, {"word": 2}]),
        ("a.csv", 'word,n\n"x, y",1\n', [{"word": "x, y", "n": "1"}]),
    ],
)
def test_items_are_read_from_files(
    tmp_path: Path, name: str, text: str, expected: list[dict[str, Any]]
) -> None:
    (tmp_path / name).write_text(text)

    assert list(read_items(tmp_path / name)) == expected


def test_a_bad_line_is_named_and_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"word": "x"}\nnonsense\n{"word": "y"}\n')

    with FakeClient() as client:
        items = read_items(tmp_path / "a.jsonl")
        report = echo.run_batch(client, items, checkpoint=tmp_path / "run")

    by_index = {record.index: record for record in _records(tmp_path / "run")}
    assert (report.num_done, report.num_failed) == (3, 1)
    assert "a.jsonl:2" in str(by_index[1].error)
    assert by_index[2].result.startswith("y")


def test_columns_of_csv_are_what_the_program_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('word,n,tags\nx,3,"[""a"", ""b""]"\ny,three,[]\nz\n')

    good, wrong, short = read_items(path, {"word": str, "n": int, "tags": list[str]})

    assert good == {"word": "x", "n": 3, "tags": ["a", "b"]}
    assert "a.csv:3: n='three' is not JSON for <class 'int'>" in str(wrong)
    assert "a.csv:4: the row has not as many fields" in str(short)


def test_items_are_read_from_parquet(tmp_path: Path) -> None:
    rows = [{"word": f"w{i}", "n": i} for i in range(3000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")

    assert list(read_items(tmp_path / "a.parquet")) == rows
    assert count_items(tmp_path / "a.parquet") == 3000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"word": "x"}\n\n{"word": "y"}\n'),
        ("a.csv", 'word\n"x\ny"\nz\n'),
    ],
)
def test_items_are_counted(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert count_items(tmp_path / name) == len(list(read_items(tmp_path / name))) == 2


def test_waits_between_attempts_double_and_hold_up_nothing_else(tmp_path: Path) -> None:
    times: list[float] = []

    def refuse(params: SamplingParams) -> Exception | None:
        if params.max_tokens != 1:
            return None
        times.append(time.monotonic())
        return QueueFull("full") if len(times) < 4 else None

    @program
    def choosy(s: State, word: str) -> str:
        s += word + gen("x", max_tokens=1 if word == "refused" else 3)
        return s["x"]

    items = [{"word": "refused"}, *({"word": f"w{i}"} for i in range(20))]
    with FakeClient(refuse=refuse) as client:
        report = choosy.run_batch(
            client, items, checkpoint=tmp_path / "run", max_in_flight=2, retries=3,
            retry_delay_s=0.02,
        )  # fmt: skip

    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert report.num_failed == 0
    assert [wait >= 0.02 * 2**i for i, wait in enumerate(waits)] == [True] * 3
    assert _records(tmp_path / "run")[-1].attempts == 4


def test_options_of_checkpoints_need_one(tmp_path: Path) -> None:
    with FakeClient() as client:
        with pytest.raises(InvalidRequest, match=r"retries=\.\.\. needs checkpoint"):
            echo.run_batch(client, [], retries=1)  # type: ignore[call-overload]
        with pytest.raises(InvalidRequest, match="states are not kept"):
            echo.run_batch(  # type: ignore[call-overload]
                client, [], checkpoint=tmp_path / "run", on_done=lambda index, state: None
            )


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="expected a file that ends in"):
        read_items(tmp_path / "a.txt")
