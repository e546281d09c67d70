"""Weights as float32 products take them: input by input. For `product_code`."""

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.product_code import GROUP, WeightKind, make_tile
from umbel.kernels.native.simd import (
    F32,
    F32X16,
    I8X16,
    I32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

WORDS, NIBBLES = 4, 8  # of a group: word j of an output holds the inputs j, 4 + j, 8 + j ...


def _weights_4bit(emit: Emitter, address: Value) -> Iterator[Value]:
    """A code is converted where it stands in its word: all but the last nibble of a word are
    multiplied with a power of 16 by that, which `float_row` takes from the inputs. Exact."""
    builder = emit.builder
    for nibble in range(NIBBLES):
        for word in range(WORDS):
            bits = emit.load(emit.at(address, 64 * word), I32X16, align=64)
            if nibble == NIBBLES - 1:  # whose place is that of the sign
                bits = builder.lshr(bits, ir.Constant(I32X16, [4 * nibble] * 16))
            else:
                bits = builder.and_(bits, ir.Constant(I32X16, [15 << (4 * nibble)] * 16))
            yield builder.sitofp(bits, F32X16)


def _weights_8bit(emit: Emitter, address: Value) -> Iterator[Value]:
    for i in range(GROUP):
        octets = emit.load(emit.at(address, 16 * i), I8X16, align=16)
        yield emit.builder.sitofp(emit.builder.sext(octets, I32X16), F32X16)


def _weights_16bit(emit: Emitter, address: Value) -> Iterator[Value]:
    for i in range(GROUP):
        yield emit.load_bfloat(emit.at(address, 32 * i))


def _add(emit: Emitter, total: Value, weights: Value, bits: Value) -> Value:
    return emit.fma(weights, emit.splat(emit.builder.bitcast(bits, F32)), total)


def _make_tiles(kind: WeightKind) -> Any:
    """(count, is_pair, ...): a tile of 6, 4, 2 or 1 rows, see `make_tile`. Of 6 or 4 rows 16
    registers of 8 lanes hold the sums with one panel. Fewer rows take two, if there is a second:
    sums that do not wait for each other."""
    lone, one, two, four, six = (
        make_tile(kind, num_rows, num_panels, prefetches=True)
        for num_rows, num_panels in ((1, 1), (1, 2), (2, 2), (4, 1), (6, 1))
    )

    @njit
    def tiles(
        count, is_pair, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y,
        y_stride, is_float,
    ):  # fmt: skip
        if count == 6:
            six(
                panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y, y_stride,
                is_float,
            )  # fmt: skip
        elif count == 4:
            four(
                panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y, y_stride,
                is_float,
            )  # fmt: skip
        elif count == 2 and is_pair:
            two(
                panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y, y_stride,
                is_float,
            )  # fmt: skip
        elif is_pair:
            one(
                panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y, y_stride,
                is_float,
            )  # fmt: skip
        else:
            for row in range(count):
                lone(
                    panels, panel_bytes, steps, step_bytes, x + row * stride, stride,
                    sums + 4 * row * groups, groups, bias, y + row * y_stride, y_stride, is_float,
                )  # fmt: skip

    return tiles


q4_tiles = _make_tiles(WeightKind(256, 4 * GROUP, _weights_4bit, _add, num_steps=2))
q8_tiles = _make_tiles(WeightKind(512, 4 * GROUP, _weights_8bit, _add, num_steps=1))
bf16_tiles = _make_tiles(WeightKind(1024, 4 * GROUP, _weights_16bit, _add, num_steps=0))


@intrinsic
def float_row(typingctx: Any, x: Any, num_groups: Any, is_4bit: Any, out: Any, sums: Any) -> Any:
    """bfloat16 as float32 and the sums of groups; `is_4bit`: without what `_weights_4bit` adds."""
    powers = [16.0 ** -(i // WORDS) if i // WORDS < NIBBLES - 1 else 1.0 for i in range(GROUP)]

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        x, num_groups, is_4bit, out, sums = args
        has_powers = builder.icmp_signed("!=", is_4bit, I64(0))
        factors = [
            builder.select(has_powers, ir.Constant(F32X16, powers[first : first + 16]), one)
            for first, one in ((0, emit.constant(1.0)), (16, emit.constant(1.0)))
        ]
        with cgutils.for_range(builder, num_groups) as loop:
            at = builder.add(x, builder.mul(loop.index, I64(2 * GROUP)))
            place = builder.add(out, builder.mul(loop.index, I64(4 * GROUP)))
            halves = [emit.load_bfloat(emit.at(at, 32 * half)) for half in range(2)]
            for half, value in enumerate(halves):
                emit.store(builder.fmul(value, factors[half]), emit.at(place, 64 * half), align=4)
            total = emit.reduce("fadd", builder.fadd(*halves))
            emit.store(total, builder.add(sums, builder.mul(loop.index, I64(4))), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen
