"""Devices: the table, JSON files, and this machine."""

import json
from pathlib import Path

import pytest

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.devices import DEVICES, find_device

MINIMAL = {"peak_flops": {"bfloat16": 1e14}, "bandwidth": 1e12, "memory_bytes": 16e9}


def written(folder: Path, content: object) -> str:
    path = folder / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_named_devices_are_found_in_any_case() -> None:
    assert find_device("H100") is DEVICES["h100"]
    assert set(DEVICES) == {"h100", "h200", "a100", "l4"}


@pytest.mark.parametrize(
    ("name", "dense_tflops", "sparse_tflops"),
    [("h100", 989.4, 1979), ("h200", 989.4, 1979), ("a100", 312, 624), ("l4", 121, 242)],
)
def test_rates_are_dense(name: str, dense_tflops: float, sparse_tflops: float) -> None:
    rate = DEVICES[name].peak_flops["bfloat16"]

    assert rate == dense_tflops * 1e12
    assert rate == pytest.approx(sparse_tflops * 1e12 / 2, rel=1e-3)


def test_a_device_file_is_read_with_defaults(tmp_path: Path) -> None:
    device = find_device(written(tmp_path, MINIMAL))

    assert (device.name, device.bandwidth, device.memory_bytes) == ("mine", 1e12, 16e9)
    assert device.interconnect_bandwidth is None
    assert device.source.endswith("mine.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**MINIMAL, "bandwith": 1.0}, "bandwith"),
        ({"bandwidth": 1.0, "memory_bytes": 1.0}, "peak_flops"),
        ({**MINIMAL, "bandwidth": "fast"}, "$.bandwidth"),
        ({**MINIMAL, "bandwidth": 0}, "bandwidth=0"),
        ({**MINIMAL, "peak_flops": {"fp16": 1e12}}, "bfloat16, float16"),
        ({**MINIMAL, "peak_flops": {}}, "peak_flops is empty"),
        ("not json", "does not describe a device"),
    ],
)
def test_a_bad_device_file_is_refused_by_field(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_device(written(tmp_path, content))

    assert message in str(caught.value)


def test_an_unknown_device_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(InvalidRequest, match="h100, h200, a100, l4, cpu") as caught:
        find_device("h900")

    assert caught.value.param == "device"


def test_the_cpu_is_measured() -> None:
    device = find_device("cpu")

    assert 1e8 < device.bandwidth < 1e13
    assert set(device.peak_flops) == {"float32", "bfloat16"}
    assert all(1e8 < rate < 1e15 for rate in device.peak_flops.values())
    assert device.memory_bytes > 1e8
    assert device.source.startswith("measured now with")
