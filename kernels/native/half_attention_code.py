"""The inner loops of attention in half precision, for tasks with many query rows.

The layouts are those of `attention_code`. Keys, values and queries are bfloat16 scaled by powers of
two, so that no sum of half precision overflows; sums across blocks are in float32.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.attention_code import make_soften
from umbel.kernels.native.simd import (
    F16X16,
    F16X32,
    F32X16,
    I32,
    I32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

_PAIRS_AT_ONCE = 2
VECTORS = 2  # of 16 keys, scored together


@intrinsic
def to_halves(typingctx: Any, x: Any, num_vectors: Any, factor: Any) -> Any:
    """bfloat16 * factor in half precision, in place; 16 `num_vectors` elements."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        factor = emit.splat(args[2])
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(32)))
            value = builder.fmul(emit.load_bfloat(at), factor)
            emit.store(builder.fptrunc(value, F16X16), at, align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


def _float_sums(emit: Emitter, total: Value) -> Value:
    """16 float32: the sums of the neighbours among 32 halves."""
    builder = emit.builder
    undefined = ir.Constant(F16X32, ir.Undefined)
    low, high = (
        builder.fpext(
            builder.shuffle_vector(
                total, undefined, ir.Constant(I32X16, [16 * part + lane for lane in range(16)])
            ),
            F32X16,
        )
        for part in (0, 1)
    )
    even, odd = (
        builder.shuffle_vector(
            low, high, ir.Constant(I32X16, [2 * lane + parity for lane in range(16)])
        )
        for parity in (0, 1)
    )
    return builder.fadd(even, odd)


def _make_score_tile(num_rows: int) -> Any:
    """Scores of `num_rows` queries with `VECTORS` times 16 packed keys.

    (q, q_stride, keys, num_pairs, factors, out, out_stride): strides in bytes; factors: a float32
    per row, which its scores are multiplied with; out: float32 [rows, 32].
    """

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        q, q_stride, keys, num_pairs, factors, out, out_stride = args
        builder = emit.builder
        zero = ir.Constant(F16X32, [0.0] * 32)
        totals = [
            [cgutils.alloca_once(builder, F16X32) for _ in range(VECTORS)] for _ in range(num_rows)
        ]
        for of_row in totals:
            for total in of_row:
                builder.store(zero, total)
        rows = [builder.add(q, builder.mul(q_stride, I64(row))) for row in range(num_rows)]
        vector_bytes = builder.mul(num_pairs, I64(64))
        with cgutils.for_range(builder, builder.sdiv(num_pairs, I64(_PAIRS_AT_ONCE))) as loop:
            sums = [[builder.load(total) for total in of_row] for of_row in totals]
            first = builder.mul(loop.index, I64(_PAIRS_AT_ONCE))
            starts = [
                builder.add(
                    builder.add(keys, builder.mul(vector_bytes, I64(i))),
                    builder.mul(first, I64(64)),
                )
                for i in range(VECTORS)
            ]
            offset = builder.mul(first, I64(4))
            for pair in range(_PAIRS_AT_ONCE):
                vectors = [emit.load(emit.at(at, 64 * pair), F16X32, align=64) for at in starts]
                for row in range(num_rows):
                    place = emit.at(builder.add(rows[row], offset), 4 * pair)
                    two = builder.bitcast(emit.splat(emit.load(place, I32, align=4)), F16X32)
                    for i in range(VECTORS):
                        sums[row][i] = emit.call(
                            "llvm.fma.v32f16", F16X32, [vectors[i], two, sums[row][i]]
                        )
            for of_row, values in zip(totals, sums, strict=True):
                for total, value in zip(of_row, values, strict=True):
                    builder.store(value, total)
        for row in range(num_rows):
            place = builder.add(out, builder.mul(out_stride, I64(row)))
            factor = emit.load(emit.at(factors, 4 * row), ir.FloatType(), align=4)
            for i in range(VECTORS):
                score = _float_sums(emit, builder.load(totals[row][i]))
                score = builder.fmul(score, emit.splat(factor))
                emit.store(score, emit.at(place, 64 * i), align=4)

    @intrinsic
    def tile(
        typingctx: Any, q: Any, q_stride: Any, keys: Any, num_pairs: Any, factors: Any, out: Any,
        out_stride: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return tile


def _make_mix_tile(num_rows: int) -> Any:
    """out += weights @ values * factor for `num_rows` rows.

    (p, p_stride, values, num_parts, num_pairs, out, out_stride, factor): p: weights in half
    precision, by pairs of keys; values: packed, `num_pairs` pairs of `num_parts` times 32
    dimensions; out: float32.
    """

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        p, p_stride, values, num_parts, num_pairs, out, out_stride, factor = args
        builder = emit.builder
        zero = ir.Constant(F16X32, [0.0] * 32)
        factor = emit.splat(factor)
        p_rows = [builder.add(p, builder.mul(p_stride, I64(row))) for row in range(num_rows)]
        out_rows = [builder.add(out, builder.mul(out_stride, I64(row))) for row in range(num_rows)]
        places = [[cgutils.alloca_once(builder, F16X32) for _ in range(2)] for _ in range(num_rows)]
        with cgutils.for_range(builder, num_parts) as part:
            offset = builder.mul(part.index, I64(128))
            for of_row in places:
                for place in of_row:
                    builder.store(zero, place)
            with cgutils.for_range(builder, num_pairs) as pair:
                row_bytes = builder.mul(num_parts, I64(128))
                start = builder.add(values, builder.mul(pair.index, row_bytes))
                start = builder.add(start, offset)
                halves = [emit.load(emit.at(start, 64 * h), F16X32, align=64) for h in range(2)]
                for row in range(num_rows):
                    at = builder.add(p_rows[row], builder.mul(pair.index, I64(4)))
                    two = builder.bitcast(emit.splat(emit.load(at, I32, align=4)), F16X32)
                    for half in range(2):
                        place = places[row][half]
                        total = emit.call(
                            "llvm.fma.v32f16", F16X32, [halves[half], two, builder.load(place)]
                        )
                        builder.store(total, place)
            for row in range(num_rows):
                for half in range(2):
                    at = emit.at(builder.add(out_rows[row], offset), 64 * half)
                    value = _float_sums(emit, builder.load(places[row][half]))
                    before = emit.load(at, F32X16, align=4)
                    emit.store(emit.fma(value, factor, before), at, align=4)

    @intrinsic
    def tile(
        typingctx: Any, p: Any, p_stride: Any, values: Any, num_parts: Any, num_pairs: Any,
        out: Any, out_stride: Any, factor: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7, types.float32), codegen

    return tile


half_score_1, half_score_2, half_score_4, half_score_8 = map(_make_score_tile, (1, 2, 4, 8))
half_mix_1, half_mix_2, half_mix_4, half_mix_8 = map(_make_mix_tile, (1, 2, 4, 8))


def _store_halves(emit: Emitter, weights: Value, address: Value) -> None:
    emit.store(emit.builder.fptrunc(weights, F16X16), address, align=2)


soften_to_halves = make_soften(_store_halves, 32)
