"""Products of bfloat16 rows with weights that lie in panels of 16 outputs; called by `linear`.

A kernel takes (0, panels, scales, x, x_stride, rows, groups, panels, bias, y, y_stride, is_float,
bits, bits of a float32 factor), addresses and strides in bytes. There is one for each arithmetic:
`bfloat_products` and `float_products` multiply codes as they are, `half_products` converts them.
"""

import ctypes

import torch
from torch import Tensor

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.native import threads
from umbel.kernels.native.memory import WeightMemory
from umbel.kernels.native.packing import LANES, pack
from umbel.kernels.native.program import empty, run_kernel
from umbel.kernels.native.threads import float_bits

_Args = ctypes.c_int64 * 14


class NativeProduct:
    """`product(x)`: x [T, I] bfloat16, of unit stride, times a weight [O, I] -> [T, O]."""

    def __init__(
        self,
        weight: GroupedWeight | Tensor,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype = torch.bfloat16,
        memory: WeightMemory | None = None,
    ) -> None:
        """weight: quantized, or bfloat16 where `threads.arithmetic()` is not "bfloats"; bias: [O]
        or None; out_dtype: bfloat16 or float32. memory: where to put the weight; None: anywhere.

        Raises `ValueError` for shapes that do not fill panels.
        """
        packed = pack(weight, threads.arithmetic())
        self._out_features, self._in_features = weight.shape
        self._panels, self._scales = _kept(packed.panels, memory), _kept(packed.scales, memory)
        self._bias = torch.zeros(self._out_features) if bias is None else bias.float().contiguous()
        self.weight_bytes = self._panels.nbytes + self._scales.nbytes + self._bias.nbytes
        self._bits = packed.bits
        self._out_dtype = out_dtype
        self._kernel = _kernel()
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
            self._out_dtype == torch.float32, self._bits, self._factor_bits,
        )  # fmt: skip
        run_kernel(self._kernel, args, 5)
        return y


def _kernel() -> int:
    """Of this machine's arithmetic. Compiles on the first call."""
    kind = threads.arithmetic()
    if kind == "halves":
        from umbel.kernels.native.half_products import MULTIPLY
    elif kind == "bfloats":
        from umbel.kernels.native.bfloat_products import MULTIPLY
    else:
        from umbel.kernels.native.float_products import MULTIPLY
    return MULTIPLY


def _kept(source: Tensor, memory: WeightMemory | None) -> Tensor:
    """A contiguous copy that starts at a multiple of 64 bytes, as torch's memory does."""
    if memory is not None:
        return memory.copy_of(source)
    return torch.empty(source.shape, dtype=source.dtype).copy_(source)
