"""Reading GGUF files: metadata as plain Python values and tensors as dequantized float32 arrays.

The header is parsed here, because the reader of the `gguf` package makes several array objects
per token of the vocabulary (2.3 s for 49k tokens, 0.04 s here); dequantization is that package's.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import dataclasses
import math
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.runtime.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {  # GGUF value type -> struct format
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_MAX_DIMS = 4
_GROUPED = {"Q4_0": 1, "Q4_1": 2, "Q8_0": 1}  # float16 numbers before the codes of a group
_CHUNK_BYTES = 1 << 14  # halves the time to load the embedded model; larger ones leave the L2 cache


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major (the reverse of the file's), `type_id` ggml's."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int

    @property
    def type_name(self) -> str:
        try:
            return GGMLQuantizationType(self.type_id).name
        except ValueError:
            return f"type {self.type_id}"


class GGUFFile:
    """An open GGUF file. The whole header is checked on opening; tensor data is mapped, not read.

    Raises `ModelError` naming the file when it is no GGUF file, is truncated or is corrupt.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as exc:  # ValueError: an empty file cannot be mapped
            raise ModelError(f"{self.path} cannot be read as a GGUF file: {exc}") from exc
        header = _Header(self._data)
        try:
            self.metadata, self.tensors = header.parse()
        except (_CorruptHeader, struct.error, UnicodeDecodeError) as exc:
            raise ModelError(
                f"{self.path} is not a readable GGUF file (truncated or corrupt): {exc} "
                f"(at byte {header.position} of {len(self._data)}); download it again"
            ) from exc
        self._check_complete()

    @property
    def tensor_names(self) -> list[str]:
        return list(self.tensors)

    def load(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32, dequantized, in row-major shape. The caller owns the array.

        Raises `ModelError` when there is no such tensor, or its quantization is not supported.
        """
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(
                f"{self.path} has no tensor {name!r}; it has {len(self.tensors)} others"
            )
        return self._load(info)

    def load_rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """`load(name)[start:stop]`, of which nothing else is dequantized. Raises as `load` does."""
        info = self.tensors[name]
        size = _size_bytes(info)
        if size is None:
            raise self._unsupported(info)
        num_rows = info.shape[0]
        if len(info.shape) == 1 or size % num_rows:  # one row is quantized as a whole
            return self._load(info)[start:stop]
        part = dataclasses.replace(
            info,
            shape=(stop - start, *info.shape[1:]),
            offset_bytes=info.offset_bytes + start * (size // num_rows),
        )
        return self._load(part)

    def _load(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        size = _size_bytes(info)
        if size is None:
            raise self._unsupported(info)
        raw = np.frombuffer(self._data, dtype=np.uint8, count=size, offset=info.offset_bytes)
        rows = raw.reshape(_num_chunks(info, size), -1)
        try:
            values = dequantize(rows, GGMLQuantizationType(info.type_id))
        except NotImplementedError as exc:
            raise self._unsupported(info) from exc
        values = np.asarray(values, dtype=np.float32).reshape(info.shape)
        # float32 comes back as a view of the read-only mapping, all else in new memory.
        return values if values.flags.writeable else values.copy()

    def load_grouped(self, name: str) -> GroupedWeight | None:
        """The tensor as integer codes with float16 scales, if it is of such a type: Q4_0, Q4_1 or
        Q8_0; else None.
        """
        info = self.tensors[name]
        if info.type_name not in _GROUPED or len(info.shape) != 2:
            return None
        size = _size_bytes(info)
        if size is None:
            raise self._unsupported(info)
        raw = np.frombuffer(self._data, dtype=np.uint8, count=size, offset=info.offset_bytes)
        blocks = raw.reshape(info.shape[0], info.shape[1] // GROUP, -1)  # [O, I / 32, bytes]
        num_steps = _GROUPED[info.type_name]
        steps = [
            torch.from_numpy(np.ascontiguousarray(blocks[:, :, i : i + 2]).view(np.float16)[..., 0])
            for i in range(0, 2 * num_steps, 2)
        ]
        codes = np.ascontiguousarray(blocks[:, :, 2 * num_steps :])
        if info.type_name == "Q8_0":
            octets = torch.from_numpy(codes.view(np.int8).reshape(info.shape))
            return GroupedWeight(octets, steps[0], None)
        # A byte holds the codes of two inputs that are 16 apart.
        nibbles = np.concatenate((codes & 15, codes >> 4), axis=2).reshape(info.shape)
        # Q4_0 stores code - 8: an offset of -8 scales, exact in float16 but for huge scales.
        offsets = steps[1] if num_steps == 2 else steps[0] * -8
        if not bool(torch.isfinite(offsets).all()):
            return None
        return GroupedWeight(torch.from_numpy(nibbles), steps[0], offsets)

    def _unsupported(self, info: TensorInfo) -> ModelError:
        return ModelError(
            f"tensor {info.name!r} of {self.path} has the type {info.type_name} (shape "
            f"{list(info.shape)}), which is not supported; supported are F32, F16, BF16, Q8_0, "
            f"Q4_0, Q4_1, Q5_0, Q5_1 and the K quantizations: use a file with one of these"
        )

    def _check_complete(self) -> None:
        for info in self.tensors.values():
            end = info.offset_bytes + (_size_bytes(info) or 0)
            if end > len(self._data):
                raise ModelError(
                    f"{self.path} is truncated: tensor {info.name!r} ends at byte {end}, the file "
                    f"has {len(self._data)} bytes; download it again"
                )


def _num_chunks(info: TensorInfo, size_bytes: int) -> int:
    """Into how many equal parts of whole rows the tensor is cut for `dequantize`.

    That function works on 16 parts at a time; with single rows most of its time is overhead.
    """
    num_chunks = math.prod(info.shape[:-1])
    while num_chunks % 2 == 0 and 2 * size_bytes // num_chunks <= _CHUNK_BYTES:
        num_chunks //= 2
    return num_chunks


def _size_bytes(info: TensorInfo) -> int | None:
    """Bytes of the tensor's data; None for a type that is unknown or does not fit the rows."""
    try:
        block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(info.type_id)]
    except (ValueError, KeyError):
        return None
    if info.shape[-1] % block_elements:
        return None
    return math.prod(info.shape) // block_elements * block_bytes


class _CorruptHeader(Exception):
    """The header breaks the format; the message says how."""


class _Header:
    """One pass over the header. `position` is the byte being read, for error messages."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        data = self._data
        if data[:4] != _MAGIC:
            raise _CorruptHeader(f"it begins with {data[:4]!r}, not with {_MAGIC!r}")
        self.position = 4
        version = self._uint32()
        if version not in _VERSIONS:
            raise _CorruptHeader(
                f"version {version} is not supported (2 and 3, little-endian, are)"
            )
        num_tensors, num_pairs = self._uint64(), self._uint64()
        metadata: dict[str, Any] = {}
        for _ in range(self._bounded(num_pairs, 13, "metadata entries")):
            key = self._string()
            metadata[key] = self._value(self._uint32())
        infos = [self._tensor_info() for _ in range(self._bounded(num_tensors, 24, "tensors"))]
        return metadata, self._placed(infos, metadata.get("general.alignment", 32))

    def _placed(self, infos: Sequence[TensorInfo], alignment: Any) -> dict[str, TensorInfo]:
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise _CorruptHeader(f"general.alignment={alignment!r} is not a power of two")
        start = -(-self.position // alignment) * alignment
        placed = {
            info.name: dataclasses.replace(info, offset_bytes=start + info.offset_bytes)
            for info in infos
        }
        if len(placed) != len(infos):
            raise _CorruptHeader("two tensors have the same name")
        return placed

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        num_dims = self._uint32()
        if not 1 <= num_dims <= _MAX_DIMS:
            raise _CorruptHeader(f"tensor {name!r} has {num_dims} dimensions")
        dims = [self._uint64() for _ in range(num_dims)]
        if 0 in dims:
            raise _CorruptHeader(f"tensor {name!r} has the shape {dims}")
        return TensorInfo(name, tuple(reversed(dims)), self._uint32(), self._uint64())

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        value = self._take(self._scalar(kind))
        return bool(value) if kind == _BOOL else value

    def _array(self) -> list[Any]:
        kind, length = self._uint32(), self._uint64()
        if kind == _STRING:
            return self._strings(self._bounded(length, 8, "strings"))
        layout = self._scalar(kind)
        self._bounded(length, layout.size, "array elements")
        values = np.frombuffer(self._data, np.dtype(layout.format), length, self.position)
        self.position += length * layout.size
        elements: list[Any] = (values != 0).tolist() if kind == _BOOL else values.tolist()
        return elements

    def _strings(self, count: int) -> list[str]:
        data, position, read_length = self._data, self.position, _UINT64.unpack_from
        strings = []
        for _ in range(count):
            start = position + 8
            position = start + read_length(data, position)[0]
            if position > len(data):
                self.position = start
                raise _CorruptHeader("a string ends behind the end of the file")
            strings.append(data[start:position].decode("utf-8"))
        self.position = position
        return strings

    def _string(self) -> str:
        return self._strings(1)[0]

    def _scalar(self, kind: int) -> struct.Struct:
        if kind not in _SCALARS:
            raise _CorruptHeader(f"unknown value type {kind}")
        return struct.Struct(_SCALARS[kind])

    def _take(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self._data, self.position)
        self.position += layout.size
        return value

    def _uint32(self) -> int:
        return int(self._take(_UINT32))

    def _uint64(self) -> int:
        return int(self._take(_UINT64))

    def _bounded(self, count: int, size_bytes: int, what: str) -> int:
        """`count`, unless so many entries of `size_bytes` or more are not left in the file."""
        if count * size_bytes > len(self._data) - self.position:
            raise _CorruptHeader(f"{count} {what} do not fit the rest of the file")
        return count
