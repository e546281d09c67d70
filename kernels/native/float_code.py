"""Weights of 16 bits as float32 products take them: input by input. For `product_code`."""

from collections.abc import Iterator, Sequence
from typing import Any

from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.product_code import GROUP, WeightKind, make_tile
from umbel.kernels.native.simd import (
    F32,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip


def _weights_16bit(emit: Emitter, address: Value) -> Iterator[Value]:
    for i in range(GROUP):
        yield emit.load_bfloat(emit.at(address, 32 * i))


def _add(emit: Emitter, total: Value, weights: Value, x: Value, offset: int) -> Value:
    value = emit.load(emit.at(x, offset), F32, align=4)
    return emit.fma(weights, emit.splat(value), total)


_KIND = WeightKind(1024, 4 * GROUP, _weights_16bit, _add, num_steps=0)
# Of 6 or 4 rows 16 registers of 8 lanes hold the sums with one panel. Fewer rows take two, if there
# is a second: sums that do not wait for each other.
_lone, _one, _two, _four, _six = (
    make_tile(_KIND, num_rows, num_panels, prefetches=True)
    for num_rows, num_panels in ((1, 1), (1, 2), (2, 2), (4, 1), (6, 1))
)


@njit
def bf16_tiles(count, is_pair, panels, panel_bytes, x, stride, groups, bias, y, y_stride, is_float):
    """A tile of 6, 4, 2 or 1 rows, see `make_tile`."""
    if count == 6:
        _six(panels, panel_bytes, 0, 0, x, stride, 0, groups, bias, y, y_stride, is_float)
    elif count == 4:
        _four(panels, panel_bytes, 0, 0, x, stride, 0, groups, bias, y, y_stride, is_float)
    elif count == 2 and is_pair:
        _two(panels, panel_bytes, 0, 0, x, stride, 0, groups, bias, y, y_stride, is_float)
    elif is_pair:
        _one(panels, panel_bytes, 0, 0, x, stride, 0, groups, bias, y, y_stride, is_float)
    else:
        for row in range(count):
            _lone(
                panels, panel_bytes, 0, 0, x + row * stride, stride, 0, groups, bias,
                y + row * y_stride, y_stride, is_float,
            )  # fmt: skip


@intrinsic
def float_row(typingctx: Any, x: Any, num_groups: Any, out: Any) -> Any:
    """bfloat16 as float32."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        x, num_groups, out = args
        with cgutils.for_range(builder, num_groups) as loop:
            at = builder.add(x, builder.mul(loop.index, I64(2 * GROUP)))
            place = builder.add(out, builder.mul(loop.index, I64(4 * GROUP)))
            for half in range(2):
                value = emit.load_bfloat(emit.at(at, 32 * half))
                emit.store(value, emit.at(place, 64 * half), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen
