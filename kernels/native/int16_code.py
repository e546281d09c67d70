"""Weights as products of 16-bit integers take them, two inputs at a time. For `product_code`.

Codes of 4 or 8 bits are widened and multiplied with rows of which each group of 32 inputs is an
integer times a power of two: 16 products and 8 sums an instruction that AVX2 has, where float32 has
8, and exact sums.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.integer_code import (
    Halves,
    add_pairs,
    make_tiles,
    make_wide_tile,
    store_steps,
    to_floats,
    zeros,
)  # fmt: skip
from umbel.kernels.native.product_code import GROUP, WeightKind
from umbel.kernels.native.simd import (
    F32,
    I16X16,
    I32,
    I32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

NIBBLES = 4  # of 16 bits


def _codes_4bit(emit: Emitter, address: Value) -> Iterator[Halves]:
    """Of the inputs i and 16 + i in turn, the codes in 16 bits, [16 outputs, 2 inputs]."""
    builder = emit.builder
    for nibble in range(NIBBLES):
        for word in range(4):
            halves = []
            for half in (0, 1):
                bits = emit.load(emit.at(address, 64 * word + 32 * half), I16X16, align=32)
                if nibble > 0:
                    bits = builder.lshr(bits, ir.Constant(I16X16, [4 * nibble] * 16))
                if nibble < NIBBLES - 1:
                    bits = builder.and_(bits, ir.Constant(I16X16, [15] * 16))
                halves.append(bits)
            yield halves[0], halves[1]


_Q4 = WeightKind(
    256, 2 * GROUP, _codes_4bit, add_pairs, num_steps=2, zero=zeros, to_floats=to_floats,
    is_rounded=True,
)  # fmt: skip
q4_tiles = make_tiles(_Q4)
widen, wide_tile = make_wide_tile(_Q4)


@intrinsic
def round_row(typingctx: Any, x: Any, num_groups: Any, is_4bit: Any, out: Any, steps: Any) -> Any:
    """bfloat16 to integers below 2**15 in 16 bits, in the order in which weights are multiplied.

    steps: see `store_steps`. The scale is a power of two: what is at least a 128th of the group's
    largest stays exact. A group that is not finite has a scale of NaN.
    """

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        x, num_groups, is_4bit, out, steps = args
        is_4bit = builder.icmp_signed("!=", is_4bit, I64(0))
        low = ir.Constant(I32X16, [0xFFFF] * 16)
        high = ir.Constant(I32X16, [16] * 16)
        with cgutils.for_range(builder, num_groups) as loop:
            at = builder.add(x, builder.mul(loop.index, I64(2 * GROUP)))
            halves = [emit.load_bfloat(emit.at(at, 32 * half)) for half in range(2)]
            total = emit.reduce("fadd", builder.fadd(*halves))
            scale, inverse = _scale_of(emit, at)
            whole = [
                emit.to_nearest_int(builder.fmul(half, emit.splat(inverse))) for half in halves
            ]
            step_at = builder.add(steps, builder.mul(loop.index, I64(12)))
            store_steps(emit, step_at, whole, scale, total, is_4bit)
            place = builder.add(out, builder.mul(loop.index, I64(2 * GROUP)))
            with builder.if_else(is_4bit) as (then, otherwise):
                with then:
                    pairs = builder.or_(builder.and_(whole[0], low), builder.shl(whole[1], high))
                    emit.store(pairs, place, align=2)
                with otherwise:
                    for half, value in enumerate(whole):
                        emit.store(builder.trunc(value, I16X16), emit.at(place, 32 * half), align=2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


def _scale_of(emit: Emitter, at: Value) -> tuple[Value, Value]:
    """Of 32 bfloat16: the power of two that takes the largest below 2**15, inverted, and itself."""
    builder = emit.builder
    mask = ir.Constant(I16X16, [0x7FFF] * 16)
    sizes = [
        builder.and_(emit.load(emit.at(at, 32 * half), I16X16, align=2), mask) for half in (0, 1)
    ]
    largest = emit.call("llvm.umax.v16i16", I16X16, sizes)
    bits = emit.call("llvm.vector.reduce.umax.v16i16", ir.IntType(16), [largest])
    exponent = builder.lshr(builder.zext(bits, I32), I32(7))
    is_finite = builder.icmp_signed("!=", exponent, I32(255))
    # Scale and inverse must be normal: of what is smaller than 2**-112 fewer bits are left.
    exponent = builder.select(builder.icmp_signed("<", exponent, I32(15)), I32(15), exponent)
    scale = builder.shl(builder.sub(exponent, I32(14)), I32(23))
    inverse = builder.shl(builder.sub(I32(127 + 127 + 14), exponent), I32(23))
    nan = I32(0x7FC00000)
    return (
        builder.bitcast(builder.select(is_finite, scale, nan), F32),
        builder.bitcast(inverse, F32),
    )
