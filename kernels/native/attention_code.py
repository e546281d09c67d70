"""The inner loops of attention over one block of keys, for a tile of query rows.

Keys are packed so that 16 of them lie in the lanes, by pairs of dimensions; values so that 16
dimensions lie in the lanes, by pairs of keys. Then both products are bfloat16 dot products with a
broadcast pair, without a sum across lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.simd import (
    F32X16,
    I16X32,
    I32,
    I32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

_PAIRS_AT_ONCE = 4


def _transpose(builder: Builder, rows: list[Value]) -> list[Value]:
    """16 vectors of 16 lanes: lane j of vector i becomes lane i of vector j."""
    step = 1
    while step < 16:
        low = [lane if not lane & step else 16 + lane - step for lane in range(16)]
        high = [lane + step if not lane & step else 16 + lane for lane in range(16)]
        low_mask, high_mask = ir.Constant(I32X16, low), ir.Constant(I32X16, high)
        for i in range(16):
            if not i & step:
                a, b = rows[i], rows[i + step]
                rows[i] = builder.shuffle_vector(a, b, low_mask)
                rows[i + step] = builder.shuffle_vector(a, b, high_mask)
        step *= 2
    return rows


@intrinsic
def pack_keys(typingctx: Any, pool: Any, offsets: Any, num_parts: Any, out: Any) -> Any:
    """16 keys, at byte `offsets` [16] int64 from `pool`, each of `num_parts` times 32 dimensions.

    out: [dimensions / 2, 16, 2] bfloat16.
    """

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        pool, offsets, num_parts, out = args
        with cgutils.for_range(builder, num_parts) as loop:
            start = builder.add(pool, builder.mul(loop.index, I64(64)))
            rows = []
            for key in range(16):
                offset = emit.load(emit.at(offsets, 8 * key), I64, align=8)
                rows.append(emit.load(builder.add(start, offset), I32X16, align=2))
            place = builder.add(out, builder.mul(loop.index, I64(16 * 64)))
            for pair, vector in enumerate(_transpose(builder, rows)):
                emit.store(vector, emit.at(place, 64 * pair), align=64)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def pack_values(typingctx: Any, pool: Any, offsets: Any, num_parts: Any, out: Any) -> Any:
    """16 values, placed as in `pack_keys`. out: [8, dimensions, 2] bfloat16."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        pool, offsets, num_parts, out = args
        masks = [
            ir.Constant(
                ir.VectorType(I32, 32),
                [32 * (lane % 2) + 16 * half + lane // 2 for lane in range(32)],
            )
            for half in range(2)
        ]
        with cgutils.for_range(builder, num_parts) as loop:
            start = builder.add(pool, builder.mul(loop.index, I64(64)))
            for pair in range(8):
                keys = []
                for key in (2 * pair, 2 * pair + 1):
                    offset = emit.load(emit.at(offsets, 8 * key), I64, align=8)
                    keys.append(emit.load(builder.add(start, offset), I16X32, align=2))
                row = builder.mul(num_parts, I64(128 * pair))
                place = builder.add(out, builder.add(row, builder.mul(loop.index, I64(128))))
                for half in range(2):
                    vector = builder.shuffle_vector(keys[0], keys[1], masks[half])
                    emit.store(vector, emit.at(place, 64 * half), align=64)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


def _make_score_tile(num_rows: int) -> Any:
    """Scores of `num_rows` queries with 16 packed keys.

    (q, q_stride, keys, num_pairs, out, out_stride): strides in bytes; out: float32 [rows, 16].
    """

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        q, q_stride, keys, num_pairs, out, out_stride = args
        builder = emit.builder
        totals = [cgutils.alloca_once_value(builder, emit.zeros()) for _ in range(num_rows)]
        rows = [builder.add(q, builder.mul(q_stride, I64(row))) for row in range(num_rows)]
        with cgutils.for_range(builder, builder.sdiv(num_pairs, I64(_PAIRS_AT_ONCE))) as loop:
            sums = [builder.load(total) for total in totals]
            first = builder.mul(loop.index, I64(_PAIRS_AT_ONCE))
            keys_at = builder.add(keys, builder.mul(first, I64(64)))
            offset = builder.mul(first, I64(4))
            for pair in range(_PAIRS_AT_ONCE):
                vector = emit.load(emit.at(keys_at, 64 * pair), I32X16, align=64)
                for row in range(num_rows):
                    place = emit.at(builder.add(rows[row], offset), 4 * pair)
                    sums[row] = emit.dot_pairs(sums[row], vector, emit.load(place, I32, align=4))
            for total, value in zip(totals, sums, strict=True):
                builder.store(value, total)
        for row in range(num_rows):
            place = builder.add(out, builder.mul(out_stride, I64(row)))
            emit.store(builder.load(totals[row]), place, align=4)

    @intrinsic
    def tile(
        typingctx: Any, q: Any, q_stride: Any, keys: Any, num_pairs: Any, out: Any, out_stride: Any
    ) -> Any:
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), codegen

    return tile


def _make_mix_tile(num_rows: int) -> Any:
    """out += weights @ values for `num_rows` rows.

    (p, p_stride, values, num_parts, num_pairs, out, out_stride): p: bfloat16 weights, by pairs of
    keys; values: packed, `num_pairs` pairs of `num_parts` times 32 dimensions; out: float32.
    """
    at_once = 2  # vectors whose sums are kept: all 32 dimensions of a part

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        p, p_stride, values, num_parts, num_pairs, out, out_stride = args
        builder = emit.builder
        p_rows = [builder.add(p, builder.mul(p_stride, I64(row))) for row in range(num_rows)]
        out_rows = [builder.add(out, builder.mul(out_stride, I64(row))) for row in range(num_rows)]
        places = [
            [cgutils.alloca_once(builder, F32X16) for _ in range(at_once)] for _ in range(num_rows)
        ]
        row_bytes = builder.mul(num_parts, I64(128))
        with cgutils.for_range(builder, num_parts) as part:
            offset = builder.mul(part.index, I64(64 * at_once))
            for row in range(num_rows):
                for i in range(at_once):
                    at = emit.at(builder.add(out_rows[row], offset), 64 * i)
                    builder.store(emit.load(at, F32X16, align=4), places[row][i])
            with cgutils.for_range(builder, num_pairs) as pair:
                start = builder.add(values, builder.mul(pair.index, row_bytes))
                start = builder.add(start, offset)
                vectors = [
                    emit.load(emit.at(start, 64 * i), I32X16, align=64) for i in range(at_once)
                ]
                for row in range(num_rows):
                    at = builder.add(p_rows[row], builder.mul(pair.index, I64(4)))
                    weight = emit.load(at, I32, align=4)
                    for place, vector in zip(places[row], vectors, strict=True):
                        total = emit.dot_pairs(builder.load(place), vector, weight)
                        builder.store(total, place)
            for row in range(num_rows):
                for i in range(at_once):
                    at = emit.at(builder.add(out_rows[row], offset), 64 * i)
                    emit.store(builder.load(places[row][i]), at, align=4)

    @intrinsic
    def tile(
        typingctx: Any, p: Any, p_stride: Any, values: Any, num_parts: Any, num_pairs: Any,
        out: Any, out_stride: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), codegen

    return tile


score_tile_1, score_tile_2, score_tile_4, score_tile_8 = map(_make_score_tile, (1, 2, 4, 8))
mix_tile_1, mix_tile_2, mix_tile_4, mix_tile_8 = map(_make_mix_tile, (1, 2, 4, 8))


@intrinsic
def highest(typingctx: Any, scores: Any, num_vectors: Any) -> Any:
    """The highest of 16 `num_vectors` float32, at least one vector."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        first = emit.load(args[0], F32X16, align=4)
        best = cgutils.alloca_once_value(builder, first)
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(64)))
            value = emit.load(at, F32X16, align=4)
            builder.store(
                emit.call("llvm.maxnum.v16f32", F32X16, [builder.load(best), value]), best
            )
        return emit.reduce("fmax", builder.load(best))

    return types.float32(types.int64, types.int64), codegen


def make_soften(store: Callable[[Emitter, Value, Value], None], vector_bytes: int) -> Any:
    """(scores, num_vectors, scale, top, out): out = exp((scores - top) * scale) by `store` (emit,
    16 weights, address), a vector every `vector_bytes`; returns the sum, in float32."""

    @intrinsic
    def soften(
        typingctx: Any, scores: Any, num_vectors: Any, scale: Any, top: Any, out: Any
    ) -> Any:
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit = Emitter(builder)
            scale, top = emit.splat(args[2]), emit.splat(args[3])
            total = cgutils.alloca_once_value(builder, emit.zeros())
            with cgutils.for_range(builder, args[1]) as loop:
                at = builder.add(args[0], builder.mul(loop.index, I64(64)))
                x = builder.fsub(emit.load(at, F32X16, align=4), top)
                weight = emit.exp(builder.fmul(x, scale))
                builder.store(builder.fadd(builder.load(total), weight), total)
                place = builder.mul(loop.index, I64(vector_bytes))
                store(emit, weight, builder.add(args[4], place))
            return emit.reduce("fadd", builder.load(total))

        of_float = types.float32
        return of_float(types.int64, types.int64, of_float, of_float, types.int64), codegen

    return soften


soften = make_soften(Emitter.store_bfloat, 32)


@intrinsic
def scale_floats(typingctx: Any, values: Any, num_vectors: Any, factor: Any, out: Any) -> Any:
    """out = values * factor, float32."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        factor = emit.splat(args[2])
        with cgutils.for_range(builder, args[1]) as loop:
            offset = builder.mul(loop.index, I64(64))
            value = emit.load(builder.add(args[0], offset), F32X16, align=4)
            emit.store(builder.fmul(value, factor), builder.add(args[3], offset), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64), codegen


@intrinsic
def scale_to_bfloat(typingctx: Any, values: Any, num_vectors: Any, factor: Any, out: Any) -> Any:
    """out = values * factor in bfloat16."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        factor = emit.splat(args[2])
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(64)))
            scaled = builder.fmul(emit.load(at, F32X16, align=4), factor)
            emit.store_bfloat(scaled, builder.add(args[3], builder.mul(loop.index, I64(32))))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64), codegen
