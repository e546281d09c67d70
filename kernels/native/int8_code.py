"""Weights as products of small integers take them, a few inputs at a time. For `product_code`.

Inputs are integers up to 127 with a scale for each group. Instructions of AVX2: products of bytes
without a sign (codes of 4 bits) with bytes are summed in 16 bits, which a group of 32 inputs cannot
overflow; those of 8-bit codes are summed in 32 bits.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.product_code import (
    GROUP,
    WeightKind,
    choose_by_count,
    make_tile,
)  # fmt: skip
from umbel.kernels.native.simd import (
    F32,
    F32X16,
    I8,
    I16,
    I32,
    I32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

_I8X16, _I8X32 = (ir.VectorType(I8, lanes) for lanes in (16, 32))
_I16X16, _I32X8 = ir.VectorType(I16, 16), ir.VectorType(I32, 8)
_Halves = tuple[Value, Value]  # of 8 outputs each


def _codes_4bit(emit: Emitter, address: Value) -> Iterator[_Halves]:
    """Of four inputs in turn, the codes as bytes, [16 outputs, 4 inputs]."""
    builder = emit.builder
    nibble = ir.Constant(_I8X32, [15] * 32)
    for pair in range(4):
        both = [emit.load(emit.at(address, 64 * pair + 32 * h), _I8X32, align=32) for h in (0, 1)]
        yield builder.and_(both[0], nibble), builder.and_(both[1], nibble)
        shift = ir.Constant(_I16X16, [4] * 16)
        words = [builder.lshr(builder.bitcast(octets, _I16X16), shift) for octets in both]
        high = [builder.and_(builder.bitcast(word, _I8X32), nibble) for word in words]
        yield high[0], high[1]


def _codes_8bit(emit: Emitter, address: Value) -> Iterator[_Halves]:
    """Of two inputs in turn, the codes in 16 bits, [16 outputs, 2 inputs]."""
    for pair in range(GROUP // 2):
        octets = [emit.load(emit.at(address, 32 * pair + 16 * h), _I8X16, align=16) for h in (0, 1)]
        yield emit.builder.sext(octets[0], _I16X16), emit.builder.sext(octets[1], _I16X16)


def _splat(emit: Emitter, bits: Value) -> Value:
    """Eight times the same 32 bits."""
    one = emit.builder.insert_element(ir.Constant(_I32X8, ir.Undefined), bits, I32(0))
    mask = ir.Constant(_I32X8, [0] * 8)
    return emit.builder.shuffle_vector(one, ir.Constant(_I32X8, ir.Undefined), mask)


def _add_4bit(emit: Emitter, total: _Halves, codes: _Halves, bits: Value) -> _Halves:
    x = emit.builder.bitcast(_splat(emit, bits), _I8X32)
    products = [emit.call("llvm.x86.avx2.pmadd.ub.sw", _I16X16, [half, x]) for half in codes]
    return emit.builder.add(total[0], products[0]), emit.builder.add(total[1], products[1])


def _add_8bit(emit: Emitter, total: _Halves, codes: _Halves, bits: Value) -> _Halves:
    x = emit.builder.bitcast(_splat(emit, bits), _I16X16)
    products = [emit.call("llvm.x86.avx2.pmadd.wd", _I32X8, [half, x]) for half in codes]
    return emit.builder.add(total[0], products[0]), emit.builder.add(total[1], products[1])


def _zeros_16(emit: Emitter) -> _Halves:
    zero = ir.Constant(_I16X16, [0] * 16)
    return zero, zero


def _zeros_32(emit: Emitter) -> _Halves:
    zero = ir.Constant(_I32X8, [0] * 8)
    return zero, zero


def _floats_of_16(emit: Emitter, total: _Halves) -> Value:
    ones = ir.Constant(_I16X16, [1] * 16)
    low, high = (emit.call("llvm.x86.avx2.pmadd.wd", _I32X8, [half, ones]) for half in total)
    return _floats_of_32(emit, (low, high))


def _floats_of_32(emit: Emitter, total: _Halves) -> Value:
    lanes = ir.Constant(I32X16, list(range(16)))
    return emit.builder.sitofp(emit.builder.shuffle_vector(total[0], total[1], lanes), F32X16)


# With one panel. More rows would fill the 16 registers with sums, and LLVM would move them to and
# from memory.
_Q4 = WeightKind(
    256, GROUP, _codes_4bit, _add_4bit, num_steps=2, zero=_zeros_16, to_floats=_floats_of_16,
    is_rounded=True,
)  # fmt: skip
_Q8 = WeightKind(
    512, 2 * GROUP, _codes_8bit, _add_8bit, num_steps=1, zero=_zeros_32, to_floats=_floats_of_32,
    is_rounded=True,
)  # fmt: skip
q4_tiles = choose_by_count({n: make_tile(_Q4, n, prefetches=True) for n in (1, 2, 4)})
q8_tiles = choose_by_count({n: make_tile(_Q8, n, prefetches=True) for n in (1, 2)})


@intrinsic
def round_row(typingctx: Any, x: Any, num_groups: Any, is_4bit: Any, out: Any, steps: Any) -> Any:
    """bfloat16 to integers up to 127, in 8 or (not `is_4bit`) 16 bits.

    steps: three float32 for each group: the scale; what the correction of codes of 4 bits takes,
    below; the sum of the inputs as they were. A group that is not finite has a scale of NaN.

    Codes of 4 bits have a mean of 8 or so, which would multiply the rounding errors: they are to
    count from there. Of the middle, 8, the exact sum is known, and the difference is made up for.
    """

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        x, num_groups, is_4bit, out, steps = args
        is_4bit = builder.icmp_signed("!=", is_4bit, I64(0))
        element_bytes = builder.select(is_4bit, I64(1), I64(2))
        middle = builder.select(is_4bit, F32(8.0), F32(0.0))
        with cgutils.for_range(builder, num_groups) as loop:
            at = builder.add(x, builder.mul(loop.index, I64(2 * GROUP)))
            halves = [emit.load_bfloat(emit.at(at, 32 * half)) for half in range(2)]
            total = emit.reduce("fadd", builder.fadd(*halves))
            scale, inverse = _scale_of(emit, halves, total)
            rounded = [
                emit.call("llvm.rint.v16f32", F32X16, [builder.fmul(half, emit.splat(inverse))])
                for half in halves
            ]
            rounded_total = builder.fmul(scale, emit.reduce("fadd", builder.fadd(*rounded)))
            correction = builder.fmul(middle, builder.fsub(total, rounded_total))
            step_at = builder.add(steps, builder.mul(loop.index, I64(12)))
            for i, value in enumerate((scale, correction, total)):
                emit.store(value, emit.at(step_at, 4 * i), align=4)
            place = builder.add(
                out, builder.mul(builder.mul(loop.index, I64(GROUP)), element_bytes)
            )
            for half, value in enumerate(rounded):
                whole = builder.fptosi(value, I32X16)
                to = builder.add(place, builder.mul(element_bytes, I64(16 * half)))
                with builder.if_else(is_4bit) as (then, otherwise):
                    with then:
                        emit.store(builder.trunc(whole, _I8X16), to, align=1)
                    with otherwise:
                        emit.store(builder.trunc(whole, _I16X16), to, align=2)
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
