"""The inner loops of products in half precision, for processors that multiply it: AVX-512 FP16.

Weights lie in panels of 16 outputs, by pairs of neighbouring inputs: a vector is 16 outputs times
two inputs, multiplied with one broadcast pair of a row. The even and the odd inputs of an output
are summed apart, in half precision within a block of inputs and in float32 across blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.simd import (
    F16X16,
    F16X32,
    F32X16,
    I8X32,
    I16X32,
    I32,
    I32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

PANELS = 3  # multiplied together: their 24 sums with 8 rows are what the registers hold
LANES, GROUP, PAIRS = 16, 32, 16
_PAIR_BYTES = 64  # of one panel


def _doubled(emit: Emitter, steps: Value, first: int) -> Value:
    """Each of 16 halves twice, from the 32 of `steps`."""
    mask = ir.Constant(ir.VectorType(I32, 32), [first + lane // 2 for lane in range(32)])
    return emit.builder.shuffle_vector(steps, ir.Constant(F16X32, ir.Undefined), mask)


def _half_bits(code: int) -> int:
    """Of a small non-negative integer."""
    if code == 0:
        return 0
    exponent = code.bit_length() - 1
    return ((15 + exponent) << 10) | ((code << 10 >> exponent) & 0x3FF)


def _unpack_4bit(emit: Emitter, codes: Value, steps: Value, out: Value, stride: int) -> None:
    """One group of one panel: codes * scale + offset. Scales and offsets lie together."""
    builder = emit.builder
    both = emit.load(steps, F16X32, align=32)
    scale, offset = _doubled(emit, both, 0), _doubled(emit, both, 16)
    table = ir.Constant(I16X32, [_half_bits(code) for code in range(16)] * 2)
    for part in range(4):
        words = emit.load(emit.at(codes, 64 * part), I16X32, align=64)
        for nibble in range(4):
            shift = ir.Constant(I16X32, [4 * nibble] * 32)
            index = builder.lshr(words, shift) if nibble else words
            code = emit.call("llvm.x86.avx512.permvar.hi.512", I16X32, [table, index])
            weight = emit.call(
                "llvm.fma.v32f16", F16X32, [builder.bitcast(code, F16X32), scale, offset]
            )
            emit.store(weight, emit.at(out, stride * (4 * part + nibble)), align=64)


def _unpack_8bit(emit: Emitter, codes: Value, steps: Value, out: Value, stride: int) -> None:
    """One group of one panel: codes * scale."""
    builder = emit.builder
    scales = emit.load(steps, F16X16, align=32)
    both = builder.shuffle_vector(
        scales, scales, ir.Constant(ir.VectorType(I32, 32), list(range(32)))
    )
    scale = _doubled(emit, both, 0)
    for pair in range(PAIRS):
        octets = emit.load(emit.at(codes, 32 * pair), I8X32, align=32)
        code = builder.sitofp(builder.sext(octets, I16X32), F16X32)
        emit.store(builder.fmul(code, scale), emit.at(out, stride * pair), align=64)


def _unpack_16bit(emit: Emitter, halves: Value, steps: Value, out: Value, stride: int) -> None:
    """One group of one panel that is in half precision already."""
    for pair in range(PAIRS):
        weight = emit.load(emit.at(halves, _PAIR_BYTES * pair), F16X32, align=64)
        emit.store(weight, emit.at(out, stride * pair), align=64)


def _make_unpack(unpack: Callable[..., None], code_bytes: int, step_bytes: int) -> Any:
    """(codes, steps, num_groups, out): groups of a panel to halves, beside those of the others."""

    @intrinsic
    def unpack_groups(typingctx: Any, codes: Any, steps: Any, num_groups: Any, out: Any) -> Any:
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit = Emitter(builder)
            codes, steps, num_groups, out = args
            stride = PANELS * _PAIR_BYTES
            with cgutils.for_range(builder, num_groups) as loop:
                unpack(
                    emit,
                    builder.add(codes, builder.mul(loop.index, I64(code_bytes))),
                    builder.add(steps, builder.mul(loop.index, I64(step_bytes))),
                    builder.add(out, builder.mul(loop.index, I64(stride * PAIRS))),
                    stride,
                )
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    return unpack_groups


unpack_4bit = _make_unpack(_unpack_4bit, GROUP * LANES // 2, 2 * 2 * LANES)
unpack_8bit = _make_unpack(_unpack_8bit, GROUP * LANES, 2 * LANES)
unpack_16bit = _make_unpack(_unpack_16bit, PAIRS * _PAIR_BYTES, 0)


def _make_tile(num_rows: int) -> Any:
    """`num_rows` rows with one block of inputs of `PANELS` panels, added to float32 sums.

    (weights, x, x_stride, num_pairs, sums, is_first): weights [pairs, panels, 16, 2] halves; rows
    of halves, `x_stride` bytes apart; sums [rows, panels, 32], overwritten by the first block.
    """

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        weights, x, stride, num_pairs, sums, is_first = args
        builder = emit.builder
        zero = ir.Constant(F16X32, [0.0] * 32)
        places = [
            [cgutils.alloca_once(builder, F16X32) for _ in range(PANELS)] for _ in range(num_rows)
        ]
        for of_row in places:
            for place in of_row:
                builder.store(zero, place)
        rows = [builder.add(x, builder.mul(stride, I64(row))) for row in range(num_rows)]
        with cgutils.for_range(builder, builder.sdiv(num_pairs, I64(2))) as loop:
            totals = [[builder.load(place) for place in of_row] for of_row in places]
            start = builder.add(weights, builder.mul(loop.index, I64(2 * PANELS * _PAIR_BYTES)))
            offset = builder.mul(loop.index, I64(8))
            for pair in range(2):
                panels = [
                    emit.load(
                        emit.at(start, (pair * PANELS + panel) * _PAIR_BYTES), F16X32, align=64
                    )
                    for panel in range(PANELS)
                ]
                for row in range(num_rows):
                    at = emit.at(builder.add(rows[row], offset), 4 * pair)
                    two = builder.bitcast(emit.splat(emit.load(at, I32, align=4)), F16X32)
                    for panel in range(PANELS):
                        totals[row][panel] = emit.call(
                            "llvm.fma.v32f16", F16X32, [panels[panel], two, totals[row][panel]]
                        )
            for of_row, values in zip(places, totals, strict=True):
                for place, value in zip(of_row, values, strict=True):
                    builder.store(value, place)
        halves = [ir.Constant(I32X16, [16 * part + lane for lane in range(16)]) for part in (0, 1)]
        undefined = ir.Constant(F16X32, ir.Undefined)
        first = builder.icmp_signed("!=", is_first, I64(0))
        for row in range(num_rows):
            for panel in range(PANELS):
                total = builder.load(places[row][panel])
                for part in range(2):
                    at = emit.at(sums, (2 * (row * PANELS + panel) + part) * 4 * LANES)
                    value = builder.fpext(
                        builder.shuffle_vector(total, undefined, halves[part]), F32X16
                    )
                    before = builder.select(first, emit.zeros(), emit.load(at, F32X16, align=64))
                    emit.store(builder.fadd(before, value), at, align=64)

    @intrinsic
    def tile(
        typingctx: Any, weights: Any, x: Any, stride: Any, num_pairs: Any, sums: Any, is_first: Any
    ) -> Any:
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), codegen

    return tile


half_tile_1, half_tile_2, half_tile_4, half_tile_8 = map(_make_tile, (1, 2, 4, 8))


@intrinsic
def halve_row(typingctx: Any, x: Any, num_vectors: Any, factor: Any, out: Any) -> Any:
    """out = x * factor in half precision; x: bfloat16."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        factor = emit.splat(args[2])
        with cgutils.for_range(builder, args[1]) as loop:
            offset = builder.mul(loop.index, I64(32))
            value = builder.fmul(emit.load_bfloat(builder.add(args[0], offset)), factor)
            emit.store(builder.fptrunc(value, F16X16), builder.add(args[3], offset), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64), codegen


@intrinsic
def store_sums(typingctx: Any, sums: Any, factor: Any, bias: Any, y: Any, is_float: Any) -> Any:
    """y = (even + odd sums) * factor + bias, 16 outputs, in float32 or bfloat16."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        sums, factor, bias, y, is_float = args
        low, high = (emit.load(emit.at(sums, 64 * part), F32X16, align=64) for part in (0, 1))
        even, odd = (
            builder.shuffle_vector(
                low, high, ir.Constant(I32X16, [2 * lane + parity for lane in range(16)])
            )
            for parity in (0, 1)
        )
        total = emit.fma(
            builder.fadd(even, odd), emit.splat(factor), emit.load(bias, F32X16, align=4)
        )
        with builder.if_else(builder.icmp_signed("!=", is_float, I64(0))) as (then, otherwise):
            with then:
                emit.store(total, y, align=4)
            with otherwise:
                emit.store_bfloat(total, y)
        return context.get_dummy_value()

    kinds = (types.int64, types.float32, types.int64, types.int64, types.int64)
    return types.void(*kinds), codegen
