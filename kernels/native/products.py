"""Products of bfloat16 rows with weights that lie in panels of 16 outputs; called by `linear`.

A kernel takes (0, panels, scales, x, x_stride, rows, groups, panels, bias, y, y_stride, is_float,
bits, bits of a float32 factor, bits of a rounded row), addresses and strides in bytes. There is one
for each arithmetic: `half_products` converts codes, `bfloat_products` and `integer_products`
multiply them as they are, the latter with rows that it rounds; `float_products` has no codes.
"""

import ctypes

import torch
from torch import Tensor

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.native import threads
from umbel.kernels.native.memory import WeightMemory
from umbel.kernels.native.packing import LANES, pack
from umbel.kernels.native.program import empty, run_kernel
from umbel.kernels.native.threads import Arithmetic, float_bits

_Args = ctypes.c_int64 * 15


class NativeProduct:
    """`product(x)`: x [T, I] bfloat16, of unit stride, times a weight [O, I] -> [T, O]."""

    def __init__(
        self,
        weight: GroupedWeight | Tensor,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype = torch.bfloat16,
        memory: WeightMemory | None = None,
        arithmetic: Arithmetic | None = None,
    ) -> None:
        """weight: quantized, or bfloat16 where the machine's arithmetic is "halves" or "floats";
        bias: [O] or None; out_dtype: bfloat16 or float32. memory: where to put the weight; None:
        anywhere. arithmetic: None: the machine's best; "int16s" or "int8s" round rows to so many
        bits, and take quantized weights only.

        Raises `ValueError` for shapes that do not fill panels.
        """
        arithmetic = arithmetic or _arithmetic_for(weight)
        packed = pack(weight, arithmetic)
        self._out_features, self._in_features = weight.shape
        self._panels, self._scales = _kept(packed.panels, memory), _kept(packed.scales, memory)
        self._bias = torch.zeros(self._out_features) if bias is None else bias.float().contiguous()
        self.weight_bytes = self._panels.nbytes + self._scales.nbytes + self._bias.nbytes
        self._bits, self._row_bits = packed.bits, 8 if arithmetic == "int8s" else 16
        self._out_dtype = out_dtype
        self._kernel = _kernel(arithmetic)
        self._factor_bits = float_bits(packed.factor)
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
            self._out_dtype == torch.float32, self._bits, self._factor_bits, self._row_bits,
        )  # fmt: skip
        run_kernel(self._kernel, args, 5)
        return y


def _arithmetic_for(weight: GroupedWeight | Tensor) -> Arithmetic:
    """The machine's. Instead of float32, integers for codes: faster, and nearly as exact."""
    arithmetic = threads.arithmetic()
    return "int16s" if arithmetic == "floats" and isinstance(weight, GroupedWeight) else arithmetic


def _kernel(arithmetic: Arithmetic) -> int:
    """Compiles on the first call."""
    if arithmetic == "halves":
        from umbel.kernels.native.half_products import MULTIPLY
    elif arithmetic == "bfloats":
        from umbel.kernels.native.bfloat_products import MULTIPLY
    elif arithmetic in ("int16s", "int8s"):
        from umbel.kernels.native.integer_products import MULTIPLY
    else:
        from umbel.kernels.native.float_products import MULTIPLY
    return MULTIPLY


def _kept(source: Tensor, memory: WeightMemory | None) -> Tensor:
    """A contiguous copy that starts at a multiple of 64 bytes, as torch's memory does."""
    if memory is not None:
        return memory.copy_of(source)
    return torch.empty(source.shape, dtype=source.dtype).copy_(source)
