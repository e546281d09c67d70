"""Dense layers `y = x @ weight.T + bias` for the CPU, built once at load and called once per step.

oneDNN wants the weight in a blocked layout and `F.linear` makes that layout again on every call;
`PackedLinear` makes it once (all layers of SmolLM2-135M, one bf16 row, two cores: 13 ms, not 22).
`PlainLinear` is the oracle of the tests and the fallback where packing is not possible.
"""

import functools
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.native import threads

if TYPE_CHECKING:
    from umbel.kernels.native.memory import WeightMemory

# Rows for which oneDNN picks the blocked layout. float32: 64 is never slower than 1 or 16 and up to
# twice as fast as no hint; bfloat16: no hint is best by 10 to 30 % at every row count.
_LAYOUT_ROWS = {torch.float32: 64, torch.bfloat16: None}

# oneDNN compiles code for each shape, 0.4 MB each, and by default it and torch keep the last 1,024
# of them: server memory grew by 480 MiB over 200 row counts, and by 75 MiB with these. A shape that
# was dropped costs about 1 ms again, once per step, since equal layers share it.
_KEPT_SHAPES = 64
_SHAPE_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


class Linear(Protocol):
    """`layer(x)`: x [T, I] -> [T, O], both of the weight's dtype, x plain and of unit stride."""

    in_features: int
    out_features: int
    weight_bytes: int  # read by one call, bias included

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """`F.linear` over the weight as it is; works for every dtype and device."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: [O, I]; bias: [O] or None, of the same dtype. Both are kept, not copied."""
        self.out_features, self.in_features = _checked_shape(weight, bias)
        self.weight_bytes = _size_bytes(weight, bias)
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._weight, self._bias)


class PackedLinear:
    """A linear layer whose weight lies in oneDNN's blocked layout. The plain weight is not kept.

    Has no backward pass: call it under `torch.inference_mode()`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: [O, I] float32 or bfloat16, cpu; bias: [O] or None, of the same dtype.

        Raises `ValueError` when this machine cannot pack that dtype (see `can_pack`).
        """
        self.out_features, self.in_features = _checked_shape(weight, bias)
        if weight.device.type != "cpu" or not can_pack(weight.dtype):
            raise ValueError(
                f"a {weight.dtype} weight on {weight.device} cannot be packed here; use PlainLinear"
            )
        self.weight_bytes = _size_bytes(weight, bias)
        self._packed = _pack(weight)
        self._bias = bias
        # Bound here: the lookup through torch.ops costs as much as a tenth of a one-row product.
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._product(x, self._packed, self._bias, "none", [], "")
        return y


class NativeLinear:
    """A bfloat16 layer that native kernels multiply with any number of rows: in half precision, or,
    where the processor has no arithmetic for bfloat16 either, in integers of 16 bits (quantized
    weights) or in float32.

    The error against the exact product of the same bfloat16 rows is at most that of a weight
    rounded to bfloat16. A row's result is the same bits whatever rows are beside it.
    """

    def __init__(
        self,
        weight: GroupedWeight | Tensor,
        bias: Tensor | None = None,
        *,
        out_dtype: torch.dtype = torch.bfloat16,
        memory: "WeightMemory | None" = None,
        arithmetic: threads.Arithmetic | None = None,
    ) -> None:
        """weight: [O, I], quantized or bfloat16; bias: [O] bfloat16 or None; out_dtype: bfloat16 or
        float32. arithmetic: None: the machine's best; "int8s" (quantized weights only) rounds rows
        to 8 bits, which errs by about a hundredth of the norm.

        Raises `ValueError` where `is_native` is False, with "int8s" where `can_group` is.
        """
        from umbel.kernels.native.products import NativeProduct  # compiles on the first import

        if not (can_group if arithmetic == "int8s" else is_native)(weight.shape):
            raise ValueError(
                f"a weight of shape {list(weight.shape)} is not multiplied natively here; "
                "use make_linear"
            )
        self.out_features, self.in_features = weight.shape
        self._product = NativeProduct(
            weight, bias, out_dtype=out_dtype, memory=memory, arithmetic=arithmetic
        )
        self.weight_bytes = self._product.weight_bytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x)


class GroupedLinear:
    """A bfloat16 layer over a quantized weight, in two forms, by the number of rows.

    Few rows are bound by the bytes of the weight: the native product reads the codes of the file.
    Many rows are bound by arithmetic, which oneDNN does best on a dequantized, packed weight.
    """

    def __init__(
        self,
        weight: GroupedWeight,
        bias: Tensor | None,
        *,
        max_native_rows: int,
        out_dtype: torch.dtype = torch.bfloat16,
        memory: "WeightMemory | None" = None,
    ) -> None:
        """bias: [O] bfloat16 or None. max_native_rows: how many are few. out_dtype: bfloat16 or
        float32.

        Raises `ValueError` where `can_group` is False.
        """
        from umbel.kernels.native.products import NativeProduct  # compiles on the first import

        self.out_features, self.in_features = weight.shape
        self.native = NativeProduct(weight, bias, out_dtype=out_dtype, memory=memory)
        self.dense = make_linear(weight.dequantized().bfloat16(), bias)
        self.weight_bytes = self.native.weight_bytes
        self.num_bits = 4 if weight.codes.dtype == torch.uint8 else 8
        self.max_native_rows = max_native_rows  # may be set anew: both forms are there
        self._out_dtype = out_dtype

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= self.max_native_rows:
            return self.native(x)
        return self.dense(x).to(self._out_dtype)


def can_group(shape: Sequence[int]) -> bool:
    """Whether this machine multiplies a quantized weight of this shape as it is."""
    return shape[0] % 16 == 0 and shape[1] % GROUP == 0 and threads.is_available()


def is_native(shape: Sequence[int]) -> bool:
    """Whether native kernels multiply a weight of this shape with any number of rows, the best that
    this machine can do: all but processors with arithmetic for bfloat16 and none for halves."""
    return can_group(shape) and threads.arithmetic() != "bfloats"


def max_recorded_rows(layer: Linear) -> int:
    """Up to how many rows a layer is native, so that it can be part of a `native.program`."""
    if isinstance(layer, NativeLinear):
        return sys.maxsize
    return layer.max_native_rows if isinstance(layer, GroupedLinear) else 0


def make_linear(weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> Linear:
    """The fastest layer for weight [O, I] and bias [O] that this machine has.

    `pack=False` asks for the plain twin. A packed layer keeps no reference to `weight`.
    """
    if pack and weight.device.type == "cpu" and weight.dtype == torch.bfloat16:
        outputs, inputs = _checked_shape(weight, bias)
        if is_native((outputs, inputs)):
            return NativeLinear(weight, bias)
    if pack and weight.device.type == "cpu" and can_pack(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def bound_shape_caches() -> None:
    """Bound the memory that products take for each number of rows. Works until the first product
    of the process, which reads the environment; what stands there already is left as it is.
    """
    for name in _SHAPE_CACHES:
        os.environ.setdefault(name, str(_KEPT_SHAPES))


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies packed weights of `dtype` on this machine (tried once, small)."""
    if dtype not in _LAYOUT_ROWS or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch
        return False
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    try:
        with torch.inference_mode():
            packed = _pack(torch.eye(16, dtype=dtype))
            x = torch.ones(1, 16, dtype=dtype)
            y = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return bool(torch.equal(x, y))


def _pack(weight: Tensor) -> Tensor:
    rows = _LAYOUT_ROWS[weight.dtype]
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows)
    return packed


def _checked_shape(weight: Tensor, bias: Tensor | None) -> tuple[int, int]:
    if weight.ndim != 2 or not weight.is_floating_point():
        raise ValueError(
            f"weight has shape {list(weight.shape)} and dtype {weight.dtype}; "
            f"expected [out_features, in_features] of a floating-point dtype"
        )
    out_features, in_features = weight.shape
    if bias is not None and (bias.shape != (out_features,) or bias.dtype != weight.dtype):
        raise ValueError(
            f"bias has shape {list(bias.shape)} and dtype {bias.dtype}; "
            f"expected [{out_features}] and {weight.dtype} like the weight"
        )
    return out_features, in_features


def _size_bytes(weight: Tensor, bias: Tensor | None) -> int:
    return weight.nbytes + (0 if bias is None else bias.nbytes)
