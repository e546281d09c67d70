"""Products of bfloat16 rows with weights of 4 or 8 bits that share a scale by groups of 32 inputs.

The codes are multiplied as they are, in bfloat16 with float32 sums, and scaled afterwards, so the
weights are those of the file, not rounded again. Called by `linear.GroupedLinear`.
"""

import ctypes
from typing import Any

import numpy as np
import torch
from numba import cfunc, types
from torch import Tensor

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.native.product_code import (
    LANES,
    q4_tile_1,
    q4_tile_2,
    q4_tile_4,
    q4_tile_8,
    q8_tile_1,
    q8_tile_2,
    q8_tile_4,
    q8_tile_8,
    sum_groups,
)  # fmt: skip
from umbel.kernels.native.simd import (
    fetch_add,
    load_int64,
)  # fmt: skip
from umbel.kernels.native.threads import run_unsafe

_PANELS_AT_ONCE = 4  # what a thread takes at a time
_NUM_ARGS = 12


@cfunc(types.void(types.int64), cache=True)
def _multiply_4bit(args):
    panels, scales, x, stride, num_rows = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
        load_int64(args, 5),
    )  # fmt: skip
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    panel_bytes = 64 if is_float else 32
    sums = np.empty(num_rows * num_groups, np.float32)
    for row in range(num_rows):
        sum_groups(x + row * stride, num_groups, sums.ctypes.data + 4 * row * num_groups)
    while True:
        start = fetch_add(args, _PANELS_AT_ONCE)
        if start >= num_panels:
            break
        for panel in range(start, min(start + _PANELS_AT_ONCE, num_panels)):
            codes = panels + panel * num_groups * GROUP * LANES // 2
            steps = scales + panel * num_groups * LANES * 4
            first, row = bias + 4 * LANES * panel, 0
            while row < num_rows:
                at, place = x + row * stride, y + row * y_stride + panel * panel_bytes
                sums_at = sums.ctypes.data + 4 * row * num_groups
                if num_rows - row >= 8:
                    count = 8
                    q4_tile_8(
                        codes,
                        steps,
                        at,
                        stride,
                        sums_at,
                        num_groups,
                        first,
                        place,
                        y_stride,
                        is_float,
                    )
                elif num_rows - row >= 4:
                    count = 4
                    q4_tile_4(
                        codes,
                        steps,
                        at,
                        stride,
                        sums_at,
                        num_groups,
                        first,
                        place,
                        y_stride,
                        is_float,
                    )
                elif num_rows - row >= 2:
                    count = 2
                    q4_tile_2(
                        codes,
                        steps,
                        at,
                        stride,
                        sums_at,
                        num_groups,
                        first,
                        place,
                        y_stride,
                        is_float,
                    )
                else:
                    count = 1
                    q4_tile_1(
                        codes,
                        steps,
                        at,
                        stride,
                        sums_at,
                        num_groups,
                        first,
                        place,
                        y_stride,
                        is_float,
                    )
                row += count


@cfunc(types.void(types.int64), cache=True)
def _multiply_8bit(args):
    panels, scales, x, stride, num_rows = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
        load_int64(args, 5),
    )  # fmt: skip
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    panel_bytes = 64 if is_float else 32
    while True:
        start = fetch_add(args, _PANELS_AT_ONCE)
        if start >= num_panels:
            break
        for panel in range(start, min(start + _PANELS_AT_ONCE, num_panels)):
            codes = panels + panel * num_groups * GROUP * LANES
            steps = scales + panel * num_groups * LANES * 2
            first, row = bias + 4 * LANES * panel, 0
            while row < num_rows:
                at, place = x + row * stride, y + row * y_stride + panel * panel_bytes
                if num_rows - row >= 8:
                    count = 8
                    q8_tile_8(
                        codes, steps, at, stride, 0, num_groups, first, place, y_stride, is_float
                    )
                elif num_rows - row >= 4:
                    count = 4
                    q8_tile_4(
                        codes, steps, at, stride, 0, num_groups, first, place, y_stride, is_float
                    )
                elif num_rows - row >= 2:
                    count = 2
                    q8_tile_2(
                        codes, steps, at, stride, 0, num_groups, first, place, y_stride, is_float
                    )
                else:
                    count = 1
                    q8_tile_1(
                        codes, steps, at, stride, 0, num_groups, first, place, y_stride, is_float
                    )
                row += count


class NativeProduct:
    """`product(x)`: x [T, I] bfloat16, of unit stride, times a grouped weight [O, I]."""

    def __init__(self, weight: GroupedWeight, bias: Tensor | None, out_dtype: torch.dtype) -> None:
        """bias: [O] or None; out_dtype: bfloat16 or float32.

        Raises `ValueError` for shapes that do not fill panels.
        """
        self._out_features, self._in_features = weight.shape
        if not fits(weight):
            raise ValueError(
                f"a weight of shape {list(weight.shape)} does not fill panels; expected multiples "
                f"of {LANES} outputs and {GROUP} inputs"
            )
        is_4bit = weight.codes.dtype == torch.uint8
        self._panels = _pack_4bit(weight.codes) if is_4bit else _pack_8bit(weight.codes)
        self._scales = _pack_scales(weight)
        self._bias = torch.zeros(self._out_features) if bias is None else bias.float().contiguous()
        self.weight_bytes = self._panels.nbytes + self._scales.nbytes + self._bias.nbytes
        self._kernel: int = (_multiply_4bit if is_4bit else _multiply_8bit).address
        self._panels_at = self._panels.data_ptr()
        self._scales_at = self._scales.data_ptr()
        self._bias_at = self._bias.data_ptr()
        self._out_dtype = out_dtype
        self._num_groups = self._in_features // GROUP
        self._num_panels = self._out_features // LANES

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, width = x.shape
        assert width == self._in_features, "rows of another width"
        assert x.dtype == torch.bfloat16 and x.stride(1) == 1, "rows of another layout"  # noqa: PT018
        y = torch.empty(num_rows, self._out_features, dtype=self._out_dtype)
        args = _Args(
            0, self._panels_at, self._scales_at, x.data_ptr(), 2 * x.stride(0), num_rows,
            self._num_groups, self._num_panels, self._bias_at, y.data_ptr(),
            self._out_features * y.itemsize, self._out_dtype == torch.float32,
        )  # fmt: skip
        run_unsafe(self._kernel, args)
        return y


_Args = ctypes.c_int64 * _NUM_ARGS


def fits(weight: GroupedWeight) -> bool:
    """Whether the weight can be cut into whole panels."""
    return weight.shape[0] % LANES == 0 and weight.shape[1] % GROUP == 0


def _pack_4bit(codes: Tensor) -> Tensor:
    """[O, I] of 0..15 -> panels: words of four codes, whose inputs are two apart."""
    outputs, inputs = codes.shape
    parts = codes.numpy().reshape(outputs // LANES, LANES, inputs // GROUP, 4, 4, 2)
    parts = parts.transpose(0, 2, 3, 1, 5, 4)  # panel, group, vector, output, input of pair, nibble
    octets = np.empty((*parts.shape[:-1], 2), np.uint8)
    octets[...] = parts[..., 0::2]
    octets |= parts[..., 1::2] << 4
    return _aligned(octets)


def _pack_8bit(codes: Tensor) -> Tensor:
    """[O, I] of signed bytes -> panels: pairs of inputs, output by output."""
    outputs, inputs = codes.shape
    pairs = codes.numpy().reshape(outputs // LANES, LANES, inputs // 2, 2)
    return _aligned(pairs.transpose(0, 2, 1, 3))


def _pack_scales(weight: GroupedWeight) -> Tensor:
    """[panels, groups, 1 or 2, 16] float16: scales, then offsets."""
    kinds = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
    stacked = torch.stack(kinds).view(len(kinds), -1, LANES, weight.scales.shape[1])
    return _aligned(stacked.permute(1, 3, 0, 2).numpy())


def _aligned(array: "np.ndarray[Any, Any]") -> Tensor:
    """A copy in torch's memory, which starts at a multiple of 64 bytes."""
    source = torch.from_numpy(array)
    return torch.empty(source.shape, dtype=source.dtype).copy_(source)
