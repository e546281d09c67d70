"""Row limits of quantized products: measured once, kept, and read again."""

import json
from pathlib import Path

import pytest
import torch

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.linear import GroupedLinear, make_linear
from umbel.kernels.native import threads
from umbel.runtime.loading.tuning import tune_row_limits

native_only = pytest.mark.skipif(
    not threads.is_available(), reason="needs numba and a CPU with AVX2"
)


def make_layer() -> GroupedLinear:
    steps = torch.ones(32, 64 // GROUP).half()
    codes = torch.ones(32, 64, dtype=torch.uint8)
    return GroupedLinear(GroupedWeight(codes, steps, steps), None, max_native_rows=5)


def test_plain_layers_have_no_limit(tmp_path: Path) -> None:
    assert tune_row_limits([make_linear(torch.ones(32, 64))], tmp_path) == {}
    assert not list(tmp_path.iterdir())


@native_only
def test_what_was_measured_is_read_again(tmp_path: Path) -> None:
    measured = tune_row_limits([make_layer()], tmp_path)
    (file,) = tmp_path.iterdir()
    (kind,) = measured
    file.write_text(json.dumps({kind: 77}))
    layers = [make_layer(), make_layer()]

    again = tune_row_limits(layers, tmp_path)

    assert again == {kind: 77}
    assert [layer.max_native_rows for layer in layers] == [77, 77]


@native_only
@pytest.mark.parametrize("text", ["", "[]", '{"a": "b"}'])
def test_a_damaged_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    tune_row_limits([make_layer()], tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(text)

    limits = tune_row_limits([make_layer()], tmp_path)

    assert json.loads(file.read_text()) == limits


@native_only
def test_the_switch_leaves_limits_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_TUNE", "0")

    assert list(tune_row_limits([make_layer()], tmp_path).values()) == [5]
    assert not list(tmp_path.iterdir())


@native_only
def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert len(tune_row_limits([make_layer()], tmp_path / "file" / "folder")) == 1
