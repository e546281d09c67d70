"""The inner loops of attention in float32, for processors that do not multiply bfloat16.

Keys and values are read where they lie: to pack them costs such a processor more than to score
them for a few queries. A score is a sum across lanes, of eight at a time; four keys share the last
steps of it.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.attention_code import make_soften
from umbel.kernels.native.simd import F32, I32, I64, Builder, Emitter, Value

# Queries of a tile: with four keys, or four vectors of values, their sums fill 12 of 16 registers.
MAX_FLOAT_TILE = 3
_KEYS = 4
_LANES = 8
_PART = 4  # vectors of a part of 32 dimensions
_F32X8, _I32X8 = ir.VectorType(F32, _LANES), ir.VectorType(I32, _LANES)
_I16X8 = ir.VectorType(ir.IntType(16), _LANES)


def _load_bfloat(emit: Emitter, address: Value) -> Value:
    """8 bfloat16 as float32."""
    bits = emit.builder.zext(emit.load(address, _I16X8, align=2), _I32X8)
    return emit.builder.bitcast(emit.builder.shl(bits, ir.Constant(_I32X8, [16] * 8)), _F32X8)


def _splat(emit: Emitter, value: Value) -> Value:
    undefined = ir.Constant(_F32X8, ir.Undefined)
    one = emit.builder.insert_element(undefined, value, I32(0))
    return emit.builder.shuffle_vector(one, undefined, ir.Constant(_I32X8, [0] * 8))


def _fma(emit: Emitter, a: Value, b: Value, c: Value) -> Value:
    return emit.call("llvm.fma.v8f32", _F32X8, [a, b, c])


def _sum_of_lanes(emit: Emitter, vectors: Sequence[Value]) -> Value:
    """Four vectors of 8 lanes -> the four sums."""
    builder = emit.builder

    def add_neighbours(a: Value, b: Value, first: list[int], second: list[int]) -> Value:
        parts = [
            builder.shuffle_vector(a, b, ir.Constant(_I32X8, lanes)) for lanes in (first, second)
        ]
        return builder.fadd(*parts)

    pairs = [[0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]]
    a, b, c, d = vectors
    both = add_neighbours(add_neighbours(a, b, *pairs), add_neighbours(c, d, *pairs), *pairs)
    halves = [
        builder.shuffle_vector(both, both, ir.Constant(ir.VectorType(I32, 4), lanes))
        for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])
    ]
    return builder.fadd(*halves)


def _make_score_tile(num_queries: int) -> Any:
    """Scores of `num_queries` queries with `num_quads` times four keys.

    (q, q_stride, pool, offsets, num_quads, num_parts, out, out_stride, wanted): q: float32; keys:
    bfloat16 at byte `offsets` [4 num_quads] int64 from `pool`, `num_parts` times 32 dimensions;
    out: float32 [queries, 4 num_quads]; strides in bytes. wanted: what lies at the same offsets
    from here is asked for meanwhile, since nothing else of a task waits for memory but this.
    """

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        q, q_stride, pool, offsets, num_quads, num_parts, out, out_stride, wanted = args
        builder = emit.builder
        queries = [builder.add(q, builder.mul(q_stride, I64(i))) for i in range(num_queries)]
        zero = ir.Constant(_F32X8, [0.0] * _LANES)
        totals = [[cgutils.alloca_once(builder, _F32X8) for _ in range(_KEYS)] for _ in queries]
        with cgutils.for_range(builder, num_quads) as quad:
            at = builder.add(offsets, builder.mul(quad.index, I64(8 * _KEYS)))
            places = [emit.load(emit.at(at, 8 * key), I64, align=8) for key in range(_KEYS)]
            keys = [builder.add(pool, place) for place in places]
            for of_query in totals:
                for total in of_query:
                    builder.store(zero, total)
            with cgutils.for_range(builder, num_parts) as part:
                of_keys = builder.mul(part.index, I64(2 * _LANES * _PART))
                of_queries = builder.mul(part.index, I64(4 * _LANES * _PART))
                for place in places:
                    at = builder.add(builder.add(wanted, place), of_keys)
                    emit.prefetch(at, 2 * _LANES * _PART)
                sums = [[builder.load(total) for total in of_query] for of_query in totals]
                for i in range(_PART):
                    vectors = [
                        emit.load(
                            emit.at(builder.add(query, of_queries), 4 * _LANES * i), _F32X8, align=4
                        )
                        for query in queries
                    ]
                    for key, address in enumerate(keys):
                        place = emit.at(builder.add(address, of_keys), 2 * _LANES * i)
                        of_key = _load_bfloat(emit, place)
                        for of_query, vector in zip(sums, vectors, strict=True):
                            of_query[key] = _fma(emit, vector, of_key, of_query[key])
                for of_query, values in zip(totals, sums, strict=True):
                    for total, value in zip(of_query, values, strict=True):
                        builder.store(value, total)
            place = builder.add(out, builder.mul(quad.index, I64(4 * _KEYS)))
            for i, of_query in enumerate(totals):
                scores = _sum_of_lanes(emit, [builder.load(total) for total in of_query])
                at = builder.add(place, builder.mul(out_stride, I64(i)))
                emit.store(scores, at, align=4)

    return _as_intrinsic(emit_tile)


def _make_mix_tile(num_queries: int) -> Any:
    """out += weights @ values for `num_queries` queries.

    (p, p_stride, pool, offsets, num_keys, num_parts, out, out_stride, wanted): p: float32 weights;
    values: bfloat16 at byte `offsets` [num_keys] int64 from `pool`; out: float32, `num_parts` times
    32 dimensions; the rest as of scores.
    """

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        p, p_stride, pool, offsets, num_keys, num_parts, out, out_stride, wanted = args
        builder = emit.builder
        p_rows = [builder.add(p, builder.mul(p_stride, I64(i))) for i in range(num_queries)]
        outs = [builder.add(out, builder.mul(out_stride, I64(i))) for i in range(num_queries)]
        totals = [[cgutils.alloca_once(builder, _F32X8) for _ in range(_PART)] for _ in outs]
        with cgutils.for_range(builder, num_parts) as part:
            of_outs = builder.mul(part.index, I64(4 * _LANES * _PART))
            of_values = builder.mul(part.index, I64(2 * _LANES * _PART))
            places = [
                [emit.at(builder.add(at, of_outs), 4 * _LANES * i) for i in range(_PART)]
                for at in outs
            ]
            for of_query, at in zip(totals, places, strict=True):
                for total, place in zip(of_query, at, strict=True):
                    builder.store(emit.load(place, _F32X8, align=4), total)
            with cgutils.for_range(builder, num_keys) as key:
                offset = emit.load(
                    builder.add(offsets, builder.mul(key.index, I64(8))), I64, align=8
                )
                offset = builder.add(offset, of_values)
                emit.prefetch(builder.add(wanted, offset), 2 * _LANES * _PART)
                start = builder.add(pool, offset)
                weights = [
                    emit.load(builder.add(row, builder.mul(key.index, I64(4))), F32, align=4)
                    for row in p_rows
                ]
                factors = [_splat(emit, weight) for weight in weights]
                for i in range(_PART):
                    values = _load_bfloat(emit, emit.at(start, 2 * _LANES * i))
                    for of_query, factor in zip(totals, factors, strict=True):
                        total = _fma(emit, factor, values, builder.load(of_query[i]))
                        builder.store(total, of_query[i])
            for of_query, at in zip(totals, places, strict=True):
                for total, place in zip(of_query, at, strict=True):
                    emit.store(builder.load(total), place, align=4)

    return _as_intrinsic(emit_tile)


def _as_intrinsic(emit_tile: Any) -> Any:
    @intrinsic
    def tile(
        typingctx: Any, rows: Any, stride: Any, pool: Any, offsets: Any, count: Any, num_parts: Any,
        out: Any, out_stride: Any, wanted: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return tile


def _by_count(one: Any, two: Any, three: Any) -> Any:
    """(count, ...): the tile of so many queries, at most `MAX_FLOAT_TILE`."""

    @njit
    def call(count, rows, stride, pool, offsets, num, num_parts, out, out_stride, wanted):
        if count == 3:
            three(rows, stride, pool, offsets, num, num_parts, out, out_stride, wanted)
        elif count == 2:
            two(rows, stride, pool, offsets, num, num_parts, out, out_stride, wanted)
        else:
            one(rows, stride, pool, offsets, num, num_parts, out, out_stride, wanted)

    return call


score_floats = _by_count(*map(_make_score_tile, (1, 2, 3)))
mix_floats = _by_count(*map(_make_mix_tile, (1, 2, 3)))


@intrinsic
def widen(typingctx: Any, x: Any, num_vectors: Any, out: Any) -> Any:
    """16 `num_vectors` bfloat16 as float32."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        with cgutils.for_range(builder, args[1]) as loop:
            value = emit.load_bfloat(builder.add(args[0], builder.mul(loop.index, I64(32))))
            emit.store(value, builder.add(args[2], builder.mul(loop.index, I64(64))), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


def _store_floats(emit: Emitter, weights: Value, address: Value) -> None:
    emit.store(weights, address, align=4)


soften_to_floats = make_soften(_store_floats, 64)
