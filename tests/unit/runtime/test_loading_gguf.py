"""Reading GGUF files: values, dequantization, and files that are broken in every way."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Type

from umbel.runtime.errors import ModelError
from umbel.runtime.loading.gguf_file import GGUFFile
from umbel.runtime.loading.source import find_model

Array = npt.NDArray[Any]


def _write(path: Path, tensors: dict[str, tuple[Array, Type]], **metadata: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float64(key, value)
        else:
            writer.add_int32(key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _values(rows: int = 4, columns: int = 64) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def test_metadata_are_plain_python_values(tmp_path: Path) -> None:
    metadata = {
        "text": "schön",
        "tokens": ["a", "", "ü", "a b"],
        "scores": [0.5, -1.0],
        "types": [1, 2, 3],
        "flags": [True, False],
        "flag": True,
        "count": -3,
        "rate": 0.25,
    }

    file = GGUFFile(_write(tmp_path / "a.gguf", {"t": (_values(), Type.F32)}, **metadata))

    assert {key: file.metadata[key] for key in metadata} == metadata
    assert file.metadata["general.architecture"] == "llama"
    assert type(file.metadata["flags"][0]) is bool
    assert type(file.metadata["types"][0]) is int


def test_the_embedded_model_reads_like_with_the_reader_of_the_gguf_package() -> None:
    path = find_model(None).path
    theirs = gguf.GGUFReader(path)

    ours = GGUFFile(path)

    assert ours.tensor_names == [tensor.name for tensor in theirs.tensors]
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "llama.rope.freq_base"):
        assert ours.metadata[key] == theirs.fields[key].contents()
    tensor = next(tensor for tensor in theirs.tensors if tensor.name == "blk.3.attn_k.weight")
    expected = gguf.dequantize(tensor.data, tensor.tensor_type)
    assert np.array_equal(ours.load("blk.3.attn_k.weight"), expected)
    assert ours.tensors["blk.3.attn_k.weight"].type_name == "Q4_1"


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        (Type.F32, 0.0),
        (Type.F16, 2e-3),
        (Type.BF16, 2e-2),
        (Type.Q8_0, 2e-2),
        (Type.Q5_0, 0.2),
        (Type.Q5_1, 0.15),
        (Type.Q4_0, 0.4),
        (Type.Q4_1, 0.3),
    ],
)
def test_values_come_back_from_every_type_within_its_precision(
    kind: Type, tolerance: float, tmp_path: Path
) -> None:
    values = _values()
    path = _write(tmp_path / "a.gguf", {"t": (gguf.quantize(values, kind), kind)})

    loaded = GGUFFile(path).load("t")

    assert loaded.dtype == np.float32
    assert loaded.shape == values.shape
    assert loaded.flags.writeable
    assert float(np.abs(loaded - values).max()) <= tolerance


def _half(value: float) -> bytes:
    return struct.pack("<e", value)


def test_a_q4_k_block_is_decoded_as_the_format_says(tmp_path: Path) -> None:
    """256 values in 8 groups: value = d * scale * nibble - dmin * minimum, 6-bit scales, minima."""
    rng = np.random.default_rng(1)
    scales, minima = rng.integers(0, 64, 8), rng.integers(0, 64, 8)
    nibbles = rng.integers(0, 16, (8, 32))
    packed = bytearray(12)
    for group in range(4):
        packed[group] = scales[group] | (scales[group + 4] >> 4) << 6
        packed[group + 4] = minima[group] | (minima[group + 4] >> 4) << 6
        packed[group + 8] = (scales[group + 4] & 15) | (minima[group + 4] & 15) << 4
    pairs = [nibbles[2 * i] | nibbles[2 * i + 1] << 4 for i in range(4)]
    block = _half(0.5) + _half(0.25) + bytes(packed) + np.concatenate(pairs).astype("u1").tobytes()
    data = np.frombuffer(block, np.uint8).reshape(1, -1)
    path = _write(tmp_path / "a.gguf", {"t": (data, Type.Q4_K)})

    loaded = GGUFFile(path).load("t")

    expected = 0.5 * scales[:, None] * nibbles - 0.25 * minima[:, None]
    assert loaded.shape == (1, 256)
    assert np.array_equal(loaded, expected.reshape(1, -1).astype(np.float32))


def test_a_q6_k_block_is_decoded_as_the_format_says(tmp_path: Path) -> None:
    """256 values in 16 groups: value = d * scale * (q - 32), q of 4 low and 2 high bits."""
    rng = np.random.default_rng(2)
    scales, q = rng.integers(-128, 128, 16), rng.integers(0, 64, 256)
    low, high = bytearray(128), bytearray(64)
    for half in range(2):
        for i in range(32):
            a, b, c, d = (int(q[128 * half + i + 32 * part]) for part in range(4))
            low[64 * half + i] = (a & 15) | (c & 15) << 4
            low[64 * half + 32 + i] = (b & 15) | (d & 15) << 4
            high[32 * half + i] = a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6
    block = bytes(low) + bytes(high) + scales.astype("i1").tobytes() + _half(0.125)
    data = np.frombuffer(block, np.uint8).reshape(1, -1)
    path = _write(tmp_path / "a.gguf", {"t": (data, Type.Q6_K)})

    loaded = GGUFFile(path).load("t")

    expected = 0.125 * np.repeat(scales, 16) * (q - 32)
    assert np.array_equal(loaded[0], expected.astype(np.float32))


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.gguf", {"t": (_values(), Type.F32)})

    with pytest.raises(ModelError, match=r"a\.gguf has no tensor 'x'; it has 1 others"):
        GGUFFile(path).load("x")


@pytest.mark.parametrize("type_id", [24, 31, 99])  # an integer type, a removed one, a future one
def test_an_unsupported_type_is_named_with_its_tensor(type_id: int, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.gguf", {"odd": (_values(), Type.F32)})
    raw = path.read_bytes()
    at = raw.index(b"odd") + 3 + 4 + 2 * 8  # name, number of dimensions, two dimensions
    path.write_bytes(raw[:at] + struct.pack("<I", type_id) + raw[at + 4 :])
    file = GGUFFile(path)

    with pytest.raises(ModelError, match=r"tensor 'odd' of .*a.gguf has the type .* not supported"):
        file.load("odd")


def test_every_truncation_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    tensors = {"t": (_values(), Type.F32), "u": (_values(), Type.F16)}
    tensors["u"] = (_values().astype(np.float16), Type.F16)
    path = _write(tmp_path / "a.gguf", tensors, tokens=["one", "two"], types=[1, 2, 3])
    whole = path.read_bytes()
    data_bytes = tensors["t"][0].nbytes + tensors["u"][0].nbytes

    for length in [*range(0, len(whole) - data_bytes, 7), len(whole) - data_bytes, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"a\.gguf"):
            GGUFFile(path)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"GGML", "begins with b'GGML'"),
        (4, struct.pack("<I", 1), "version 1 is not supported"),
        (4, struct.pack(">I", 3), "version 50331648 is not supported"),
        (8, struct.pack("<Q", 2**62), "tensors do not fit the rest of the file"),
        (16, struct.pack("<Q", 2**62), "metadata entries do not fit the rest of the file"),
        (24, struct.pack("<Q", 2**62), "a string ends behind the end of the file"),
    ],
)
def test_a_corrupt_header_is_explained(at: int, value: bytes, message: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "a.gguf", {"t": (_values(), Type.F32)})
    raw = path.read_bytes()
    path.write_bytes(raw[:at] + value + raw[at + len(value) :])

    with pytest.raises(ModelError, match=message) as caught:
        GGUFFile(path)

    assert str(path) in str(caught.value)


def test_random_damage_to_the_header_never_raises_anything_but_a_model_error(
    tmp_path: Path,
) -> None:
    path = _write(tmp_path / "a.gguf", {"t": (_values(), Type.F32)}, tokens=["one"], types=[1])
    whole = path.read_bytes()
    rng = np.random.default_rng(0)

    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole) - _values().nbytes, 3):
            damaged[at] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            file = GGUFFile(path)
            for name in file.tensor_names:
                file.load(name)
        except ModelError:
            refused += 1

    assert refused > 50


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.gguf cannot be read"):
        GGUFFile(tmp_path / "missing.gguf")


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0])
def test_grouped_weights_are_the_dequantized_ones(tmp_path: Path, kind: Type) -> None:
    data = gguf.quants.quantize(_values(), kind)
    file = GGUFFile(_write(tmp_path / "a.gguf", {"t": (data, kind)}))

    weight = file.load_grouped("t")

    assert weight is not None
    assert np.array_equal(weight.dequantized().numpy(), file.load("t"))


def test_types_without_groups_of_32_are_not_grouped(tmp_path: Path) -> None:
    file = GGUFFile(_write(tmp_path / "a.gguf", {"t": (_values(), Type.F32)}))

    assert file.load_grouped("t") is None
