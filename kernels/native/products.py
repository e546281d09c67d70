"""Products of bfloat16 rows with weights that lie in panels of 16 outputs; called by `linear`.

A kernel takes (0, panels, scales, x, x_stride, rows, groups, panels, bias, y, y_stride, is_float,
bits, bits of a float32 factor), addresses and strides in bytes: `bfloat_products` multiplies codes
as they are, `half_products` in half precision whatever is packed here.
"""

import ctypes
import math

import numpy as np
import torch
from torch import Tensor

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.native.memory import WeightMemory
from umbel.kernels.native.program import empty, run_kernel
from umbel.kernels.native.threads import float_bits

LANES = 16  # outputs of a panel
# The largest weight that sums of half precision are sure to hold, with rows scaled to below 2.
_LARGEST = 128.0
_Args = ctypes.c_int64 * 14


class NativeProduct:
    """`product(x)`: x [T, I] bfloat16, of unit stride, times a weight [O, I] -> [T, O]."""

    def __init__(
        self,
        weight: GroupedWeight | Tensor,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype = torch.bfloat16,
        in_halves: bool,
        memory: WeightMemory | None = None,
    ) -> None:
        """weight: quantized, or (only with `in_halves`) bfloat16; bias: [O] or None; out_dtype:
        bfloat16 or float32. memory: where to put the weight; None: anywhere.

        Raises `ValueError` for shapes that do not fill panels.
        """
        self._out_features, self._in_features = weight.shape
        if not fits((self._out_features, self._in_features)):
            raise ValueError(
                f"a weight of shape {list(weight.shape)} does not fill panels; expected multiples "
                f"of {LANES} outputs and {GROUP} inputs"
            )
        if in_halves:
            from umbel.kernels.native.half_products import MULTIPLY  # compiles on the first import
        else:
            assert isinstance(weight, GroupedWeight), "only halves are multiplied without codes"
            from umbel.kernels.native.bfloat_products import MULTIPLY
        factor = 1.0
        if isinstance(weight, GroupedWeight):
            if in_halves:
                weight, factor = _limited(weight)
            self._bits = 4 if weight.codes.dtype == torch.uint8 else 8
            panels = _pack_4bit(weight.codes) if self._bits == 4 else _pack_8bit(weight.codes)
            scales = _pack_scales(weight)
        else:
            self._bits = 16
            panels, factor = _pack_halves(weight)
            scales = torch.empty(0)
        self._panels, self._scales = _kept(panels, memory), _kept(scales, memory)
        self._bias = torch.zeros(self._out_features) if bias is None else bias.float().contiguous()
        self.weight_bytes = self._panels.nbytes + self._scales.nbytes + self._bias.nbytes
        self._out_dtype = out_dtype
        self._kernel: int = MULTIPLY
        self._factor_bits = float_bits(factor)
        # Looked up once: of a one-row product's few microseconds the addresses were one.
        self._addresses = self._panels.data_ptr(), self._scales.data_ptr(), self._bias.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, width = x.shape
        assert width == self._in_features, "rows of another width"
        assert x.dtype == torch.bfloat16 and x.stride(1) == 1, "rows of another layout"  # noqa: PT018
        y = empty((num_rows, self._out_features), self._out_dtype)
        panels, scales, bias = self._addresses
        args = _Args(
            0, panels, scales, x.data_ptr(), 2 * x.stride(0), num_rows, width // GROUP,
            self._out_features // LANES, bias, y.data_ptr(), self._out_features * y.itemsize,
            self._out_dtype == torch.float32, self._bits, self._factor_bits,
        )  # fmt: skip
        run_kernel(self._kernel, args, 5)
        return y


def _kept(source: Tensor, memory: WeightMemory | None) -> Tensor:
    """A contiguous copy that starts at a multiple of 64 bytes, as torch's memory does."""
    if memory is not None:
        return memory.copy_of(source)
    return torch.empty(source.shape, dtype=source.dtype).copy_(source)


def fits(shape: tuple[int, int]) -> bool:
    """Whether a weight of this shape can be cut into whole panels."""
    return shape[0] % LANES == 0 and shape[1] % GROUP == 0


def _limited(weight: GroupedWeight) -> tuple[GroupedWeight, float]:
    """The weight divided by a power of two, if it is that large; and that power."""
    offsets = torch.zeros(1) if weight.offsets is None else weight.offsets.float()
    largest_code = 128 if weight.offsets is None else 15
    largest = float((weight.scales.float().abs() * largest_code + offsets.abs()).max())
    if not _LARGEST < largest < math.inf:
        return weight, 1.0
    factor = 2.0 ** math.ceil(math.log2(largest / _LARGEST))
    return (
        GroupedWeight(
            weight.codes,
            (weight.scales / factor).half(),
            None if weight.offsets is None else (weight.offsets / factor).half(),
        ),
        factor,
    )


def _pack_halves(weight: Tensor) -> tuple[Tensor, float]:
    """[O, I] bfloat16 -> panels of pairs of halves, scaled to below `_LARGEST`, and the factor
    back. Exact but for weights 2**-20 times smaller than the largest."""
    outputs, inputs = weight.shape
    largest = float(weight.abs().max())
    factor = 1.0
    if 0 < largest < math.inf:
        factor = 2.0 ** (math.floor(math.log2(largest)) + 1) / _LARGEST
    halves = (weight.float() / factor).half().view(outputs // LANES, LANES, inputs // 2, 2)
    return halves.permute(0, 2, 1, 3), factor


def _pack_4bit(codes: Tensor) -> Tensor:
    """[O, I] of 0..15 -> panels: words of four codes, whose inputs are two apart."""
    outputs, inputs = codes.shape
    parts = codes.numpy().reshape(outputs // LANES, LANES, inputs // GROUP, 4, 4, 2)
    parts = parts.transpose(0, 2, 3, 1, 5, 4)  # panel, group, vector, output, input of pair, nibble
    octets = np.empty((*parts.shape[:-1], 2), np.uint8)
    octets[...] = parts[..., 0::2]
    octets |= parts[..., 1::2] << 4
    return torch.from_numpy(octets)


def _pack_8bit(codes: Tensor) -> Tensor:
    """[O, I] of signed bytes -> panels: pairs of inputs, output by output."""
    outputs, inputs = codes.shape
    pairs = codes.view(outputs // LANES, LANES, inputs // 2, 2)
    return pairs.permute(0, 2, 1, 3)


def _pack_scales(weight: GroupedWeight) -> Tensor:
    """[panels, groups, 1 or 2, 16] float16: scales, then offsets."""
    kinds = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
    stacked = torch.stack(kinds).view(len(kinds), -1, LANES, weight.scales.shape[1])
    return stacked.permute(1, 3, 0, 2)
