"""Weights as products of 8-bit integers take them, a few inputs at a time. For `product_code`.

Inputs are integers up to 127 with a scale for each group. Products of bytes without a sign (codes
of 4 bits) with bytes are summed in 16 bits, which a group of 32 inputs cannot overflow; those of
8-bit codes are summed in 32 bits.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.integer_code import (
    Halves,
    make_tiles,
    make_wide_tile,
    multiply_and_add,
    store_steps,
    to_floats,
)  # fmt: skip
from umbel.kernels.native.product_code import GROUP, WeightKind
from umbel.kernels.native.simd import (
    F32,
    F32X16,
    I8X16,
    I8X32,
    I16X16,
    I32X8,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip


def _codes_4bit(emit: Emitter, address: Value) -> Iterator[Halves]:
    """Of four inputs in turn, the codes as bytes, [16 outputs, 4 inputs]."""
    builder = emit.builder
    nibble = ir.Constant(I8X32, [15] * 32)
    for pair in range(4):
        both = [emit.load(emit.at(address, 64 * pair + 32 * h), I8X32, align=32) for h in (0, 1)]
        yield builder.and_(both[0], nibble), builder.and_(both[1], nibble)
        shift = ir.Constant(I16X16, [4] * 16)
        words = [builder.lshr(builder.bitcast(octets, I16X16), shift) for octets in both]
        high = [builder.and_(builder.bitcast(word, I8X32), nibble) for word in words]
        yield high[0], high[1]


def _add_quads(emit: Emitter, total: Halves, codes: Halves, x: Value, offset: int) -> Halves:
    return multiply_and_add(emit, "vpmaddubsw", "vpaddw", total, codes, x, offset)


def _zeros_16(emit: Emitter) -> Halves:
    zero = ir.Constant(I16X16, [0] * 16)
    return zero, zero


def _floats_of_16(emit: Emitter, total: Halves) -> Value:
    ones = ir.Constant(I16X16, [1] * 16)
    low, high = (emit.call("llvm.x86.avx2.pmadd.wd", I32X8, [half, ones]) for half in total)
    return to_floats(emit, (low, high))


_Q4 = WeightKind(
    256, GROUP, _codes_4bit, _add_quads, num_steps=2, zero=_zeros_16, to_floats=_floats_of_16,
    is_rounded=True,
)  # fmt: skip
q4_tiles = make_tiles(_Q4)
widen, wide_tile = make_wide_tile(_Q4)


@intrinsic
def round_row(typingctx: Any, x: Any, num_groups: Any, is_4bit: Any, out: Any, steps: Any) -> Any:
    """bfloat16 to integers up to 127, in 8 or (not `is_4bit`) 16 bits; steps: see `store_steps`."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        x, num_groups, is_4bit, out, steps = args
        is_4bit = builder.icmp_signed("!=", is_4bit, I64(0))
        element_bytes = builder.select(is_4bit, I64(1), I64(2))
        with cgutils.for_range(builder, num_groups) as loop:
            at = builder.add(x, builder.mul(loop.index, I64(2 * GROUP)))
            halves = [emit.load_bfloat(emit.at(at, 32 * half)) for half in range(2)]
            total = emit.reduce("fadd", builder.fadd(*halves))
            scale, inverse = _scale_of(emit, halves, total)
            whole = [
                emit.to_nearest_int(builder.fmul(half, emit.splat(inverse))) for half in halves
            ]
            step_at = builder.add(steps, builder.mul(loop.index, I64(12)))
            store_steps(emit, step_at, whole, scale, total, is_4bit)
            place = builder.add(
                out, builder.mul(builder.mul(loop.index, I64(GROUP)), element_bytes)
            )
            for half, value in enumerate(whole):
                to = builder.add(place, builder.mul(element_bytes, I64(16 * half)))
                with builder.if_else(is_4bit) as (then, otherwise):
                    with then:
                        emit.store(builder.trunc(value, I8X16), to, align=1)
                    with otherwise:
                        emit.store(builder.trunc(value, I16X16), to, align=2)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


def _scale_of(emit: Emitter, halves: list[Value], total: Value) -> tuple[Value, Value]:
    """Of 32 float32, whose sum is `total`: what takes 127 to the largest, and back."""
    builder = emit.builder
    sizes = [emit.call("llvm.fabs.v16f32", F32X16, [half]) for half in halves]
    largest = emit.reduce("fmax", emit.call("llvm.maxnum.v16f32", F32X16, sizes))
    # An inverse must be finite: what is that small is zero.
    is_zero = builder.fcmp_ordered("<", largest, F32(2.0**-100))
    is_finite = builder.fcmp_ordered("==", builder.fmul(total, F32(0.0)), F32(0.0))
    is_usable = builder.and_(is_finite, builder.not_(is_zero))
    inverse = builder.select(is_usable, builder.fdiv(F32(127.0), largest), F32(0.0))
    scale = builder.select(is_zero, F32(0.0), builder.fdiv(largest, F32(127.0)))
    return builder.select(is_finite, scale, F32(float("nan"))), inverse
