"""The inner loops of attention in integers, for tasks with many queries where AVX2 is all there is.

An instruction multiplies 16 integers of 16 bits and sums neighbours, where one of float32
multiplies 8. Queries and keys are scaled by powers of two, each to a norm below 2 ** 15, values by
one for each dimension of a block: bfloat16 has 8 bits, so only elements far below the largest lose
any. Both products are of rows of pairs with a panel: 16 columns side by side, pair by pair.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.simd import F32, I16, I32, I64, Builder, Emitter, Value
from umbel.kernels.native.task_rows import BLOCK

TILE_ROWS = 4  # with the two vectors of a panel: 8 sums, which leaves registers for operands
COLUMNS = 16  # of a panel
_LANES = 8
_VALUE_BITS = 14  # of the largest in its dimension
MAX_WEIGHT = (1 << 15) - 1
# What the weights of a row with a block may sum up to before each of at most `BLOCK` is rounded, so
# that no sum of products overflows.
MAX_WEIGHT_SUM = (1 << (31 - _VALUE_BITS)) - BLOCK
FINER = 1024.0  # times as fine the rests of `BLOCK` weights, a half each, sum up to no more

_F32X8, _I32X8 = ir.VectorType(F32, _LANES), ir.VectorType(I32, _LANES)
_I16X8, _I16X16 = ir.VectorType(I16, _LANES), ir.VectorType(I16, 2 * _LANES)


class _Eights:
    """Vectors of 8 lanes, at the emitter's place."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.emit = Emitter(builder)

    def load(self, address: Value) -> Value:
        return self.emit.load(address, _F32X8, align=4)

    def store(self, value: Value, address: Value) -> None:
        self.emit.store(value, address, align=4)

    def splat(self, value: Value) -> Value:
        undefined = ir.Constant(ir.VectorType(value.type, _LANES), ir.Undefined)
        one = self.builder.insert_element(undefined, value, I32(0))
        return self.builder.shuffle_vector(one, undefined, ir.Constant(_I32X8, [0] * _LANES))

    def floats(self, value: float) -> Value:
        return ir.Constant(_F32X8, [float(np.float32(value))] * _LANES)

    def ints(self, value: int) -> Value:
        return ir.Constant(_I32X8, [value] * _LANES)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.emit.call("llvm.fma.v8f32", _F32X8, [a, b, c])

    def higher(self, a: Value, b: Value) -> Value:
        """One instruction, unlike LLVM's maximum: b where one is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def to_ints(self, value: Value) -> Value:
        """The nearest int32."""
        return self.emit.call("llvm.x86.avx.cvt.ps2dq.256", _I32X8, [value])

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.builder.shuffle_vector(a, b, mask)

    def even_odd(self, address: Value) -> tuple[Value, Value]:
        """16 bfloat16 as float32: those at even places, those at odd ones."""
        bits = self.emit.load(address, _I32X8, align=2)
        even = self.builder.shl(bits, self.ints(16))
        odd = self.builder.and_(bits, self.ints(0xFFFF0000))
        return self.builder.bitcast(even, _F32X8), self.builder.bitcast(odd, _F32X8)

    def in_order(self, address: Value) -> Value:
        """8 bfloat16 as float32."""
        bits = self.builder.zext(self.emit.load(address, _I16X8, align=2), _I32X8)
        return self.builder.bitcast(self.builder.shl(bits, self.ints(16)), _F32X8)

    def pairs(self, first: Value, second: Value) -> Value:
        """Two vectors of float32 as neighbours: 8 pairs of int16."""
        low, high = self.to_ints(first), self.to_ints(second)
        low = self.builder.bitcast(low, _I16X16)
        high = self.builder.bitcast(self.builder.shl(high, self.ints(16)), _I16X16)
        lanes = [lane if lane % 2 == 0 else 16 + lane for lane in range(16)]
        return self.builder.bitcast(self.shuffle(low, high, lanes), _I32X8)

    def lane_of(self, vector: Value, operation: Callable[[Value, Value], Value]) -> Value:
        """One element of all 8."""
        for step in (4, 2, 1):
            other = self.shuffle(vector, vector, [(lane + step) % 8 for lane in range(8)])
            vector = operation(vector, other)
        return self.builder.extract_element(vector, I32(0))

    def sum_of_lanes(self, vectors: Sequence[Value]) -> Value:
        """8 vectors -> the 8 sums."""
        columns = _transposed(self, vectors)
        while len(columns) > 1:
            columns = [
                self.builder.fadd(a, b) for a, b in zip(columns[::2], columns[1::2], strict=True)
            ]
        return columns[0]


def _transposed(eights: _Eights, rows: Sequence[Value]) -> list[Value]:
    """8 vectors of 8 lanes: lane j of vector i becomes lane i of vector j."""
    singles = [[0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]]
    doubles = [[0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]]
    halves = [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]]
    fours = []
    for first in (0, 4):
        a, b, c, d = rows[first : first + 4]
        fours.append(
            [
                eights.shuffle(eights.shuffle(a, b, single), eights.shuffle(c, d, single), double)
                for single in singles
                for double in doubles
            ]
        )
    return [eights.shuffle(a, b, half) for half in halves for a, b in zip(*fours, strict=True)]


def _norm_scales(eights: _Eights, squares: Value) -> tuple[Value, Value]:
    """Powers of two that take vectors whose squared norms these are to below 2 ** 15, and their
    inverses."""
    builder = eights.builder
    exponents = builder.lshr(builder.bitcast(squares, _I32X8), eights.ints(23))
    # The norm is below 2 ** halved.
    halved = builder.ashr(builder.sub(exponents, eights.ints(125)), eights.ints(1))
    up = builder.shl(builder.sub(eights.ints(127 + 15), halved), eights.ints(23))
    down = builder.shl(builder.add(eights.ints(127 - 15), halved), eights.ints(23))
    return builder.bitcast(up, _F32X8), builder.bitcast(down, _F32X8)


@intrinsic
def pack_row(typingctx: Any, x: Any, num_parts: Any, factor: Any, out: Any) -> Any:
    """`num_parts` times 32 bfloat16 * factor as int16 of a norm below 2 ** 15; the factor back."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        x, num_parts, factor, out = args
        factor = eights.splat(factor)
        total = cgutils.alloca_once_value(builder, eights.floats(0.0))
        num_vectors = builder.mul(num_parts, I64(2))
        with cgutils.for_range(builder, num_vectors) as loop:
            place = builder.add(x, builder.mul(loop.index, I64(32)))
            for value in eights.even_odd(place):
                value = builder.fmul(value, factor)
                builder.store(eights.fma(value, value, builder.load(total)), total)
        squares = eights.sum_of_lanes([builder.load(total)] * 8)
        up, down = _norm_scales(eights, squares)
        with cgutils.for_range(builder, num_vectors) as loop:
            offset = builder.mul(loop.index, I64(32))
            values = [
                builder.fmul(builder.fmul(value, factor), up)
                for value in eights.even_odd(builder.add(x, offset))
            ]
            eights.store(eights.pairs(*values), builder.add(out, offset))
        return builder.extract_element(down, I32(0))

    return types.float32(types.int64, types.int64, types.float32, types.int64), codegen


@intrinsic
def pack_int16_keys(
    typingctx: Any, pool: Any, offsets: Any, num_parts: Any, out: Any, factors: Any
) -> Any:
    """8 keys, at byte `offsets` [8] int64 from `pool`, each of `num_parts` times 32 dimensions.

    out: half of a panel [pairs of dimensions, 8 of 16 keys, 2] int16. factors: [8] float32, which
    scores are to be multiplied with. Returns 0 if all is finite.
    """

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        emit = eights.emit
        pool, offsets, num_parts, out, factors = args
        keys = [
            builder.add(pool, emit.load(emit.at(offsets, 8 * key), I64, align=8))
            for key in range(8)
        ]
        totals = [cgutils.alloca_once_value(builder, eights.floats(0.0)) for _ in keys]
        with cgutils.for_range(builder, num_parts) as loop:
            offset = builder.mul(loop.index, I64(64))
            for key, total in zip(keys, totals, strict=True):
                for half in range(2):
                    for value in eights.even_odd(emit.at(builder.add(key, offset), 32 * half)):
                        builder.store(eights.fma(value, value, builder.load(total)), total)
        squares = eights.sum_of_lanes([builder.load(total) for total in totals])
        up, down = _norm_scales(eights, squares)
        eights.store(down, factors)
        scales = cgutils.alloca_once_value(builder, up)
        scales_at = builder.ptrtoint(scales, I64)
        with cgutils.for_range(builder, num_parts) as loop:
            offset = builder.mul(loop.index, I64(64))
            for half in range(2):
                rows = []
                for i, key in enumerate(keys):
                    scale = eights.splat(emit.load(emit.at(scales_at, 4 * i), F32, align=4))
                    values = eights.even_odd(emit.at(builder.add(key, offset), 32 * half))
                    rows.append(eights.pairs(*[builder.fmul(value, scale) for value in values]))
                place = builder.add(out, builder.mul(loop.index, I64(16 * 64)))
                for pair, vector in enumerate(_transposed(eights, rows)):
                    eights.store(vector, emit.at(place, 64 * (8 * half + pair)))
        infinity = eights.floats(float("inf"))
        bits = builder.bitcast(builder.fcmp_unordered(">=", squares, infinity), ir.IntType(8))
        return builder.zext(bits, I64)

    return types.int64(*[types.int64] * 5), codegen


@intrinsic
def pack_int16_values(
    typingctx: Any, pool: Any, offsets: Any, num_pairs: Any, num_parts: Any, out: Any,
    panel_bytes: Any, factors: Any,
) -> Any:  # fmt: skip
    """Twice `num_pairs` values, placed as in `pack_int16_keys`.

    out: panels [pairs of keys, 16 dimensions, 2] int16, `panel_bytes` apart. factors: [dimensions]
    float32, which sums are to be multiplied with. Returns 0 if all is finite.
    """

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        emit = eights.emit
        pool, offsets, num_pairs, num_parts, out, panel_bytes, factors = args
        infinite = cgutils.alloca_once_value(builder, ir.Constant(_I32X8, [0] * 8))
        highest = [cgutils.alloca_once(builder, _I16X16) for _ in range(2)]
        with cgutils.for_range(builder, num_parts) as loop:
            start = builder.add(pool, builder.mul(loop.index, I64(64)))

            def places(pair: Value, start: Value = start) -> list[Value]:
                at = builder.add(offsets, builder.mul(pair, I64(16)))
                return [
                    builder.add(start, emit.load(emit.at(at, 8 * i), I64, align=8)) for i in (0, 1)
                ]

            for place in highest:
                builder.store(ir.Constant(_I16X16, [0] * 16), place)
            with cgutils.for_range(builder, num_pairs) as pair:
                for key in places(pair.index):
                    for half, place in enumerate(highest):
                        bits = emit.load(emit.at(key, 32 * half), _I16X16, align=2)
                        bits = builder.and_(bits, ir.Constant(_I16X16, [0x7FFF] * 16))
                        best = emit.call("llvm.umax.v16i16", _I16X16, [builder.load(place), bits])
                        builder.store(best, place)
            scales = []
            for vector in range(4):
                best = builder.load(highest[vector // 2])
                first = vector % 2 * 8
                best = builder.zext(eights.shuffle(best, best, range(first, first + 8)), _I32X8)
                exponents = builder.lshr(best, eights.ints(7))
                is_infinite = builder.icmp_signed("==", exponents, eights.ints(255))
                is_infinite = builder.sext(is_infinite, _I32X8)
                builder.store(builder.or_(builder.load(infinite), is_infinite), infinite)
                # The largest is below 2 ** (exponent - 126), and scaled to below 2 ** bits.
                up = builder.sub(eights.ints(127 + 126 + _VALUE_BITS), exponents)
                most = eights.ints(253)
                up = builder.select(builder.icmp_signed("<", up, most), up, most)
                down = builder.shl(builder.sub(eights.ints(254), up), eights.ints(23))
                at = builder.add(factors, builder.mul(loop.index, I64(128)))
                eights.store(down, emit.at(at, 32 * vector))
                scales.append(builder.bitcast(builder.shl(up, eights.ints(23)), _F32X8))
            panels = builder.add(out, builder.mul(builder.mul(loop.index, I64(2)), panel_bytes))
            with cgutils.for_range(builder, num_pairs) as pair:
                keys = places(pair.index)
                place = builder.add(panels, builder.mul(pair.index, I64(64)))
                for vector, scale in enumerate(scales):
                    values = [
                        builder.fmul(eights.in_order(emit.at(key, 16 * vector)), scale)
                        for key in keys
                    ]
                    at = emit.at(place, 32 * (vector % 2))
                    if vector >= 2:
                        at = builder.add(at, panel_bytes)
                    eights.store(eights.pairs(*values), at)
        zero = ir.Constant(_I32X8, [0] * 8)
        bits = builder.bitcast(
            builder.icmp_signed("!=", builder.load(infinite), zero), ir.IntType(8)
        )
        return builder.zext(bits, I64)

    return types.int64(*[types.int64] * 7), codegen


def _sums(
    eights: _Eights, rows: Sequence[Value], panel: Value, num_pairs: Value
) -> list[list[Value]]:
    """int32 of each row with the two vectors of a panel's columns."""
    builder, emit = eights.builder, eights.emit
    totals = [[cgutils.alloca_once_value(builder, eights.ints(0)) for _ in range(2)] for _ in rows]
    # One pair at a time: of more, LLVM would sum the products first, for which registers lack.
    with cgutils.for_range(builder, num_pairs) as loop:
        of_panel = builder.add(panel, builder.mul(loop.index, I64(64)))
        offset = builder.mul(loop.index, I64(4))
        columns = [emit.load(emit.at(of_panel, 32 * half), _I16X16, align=32) for half in range(2)]
        for row, of_row in zip(rows, totals, strict=True):
            two = eights.splat(emit.load(builder.add(row, offset), I32, align=4))
            two = builder.bitcast(two, _I16X16)
            for column, total in zip(columns, of_row, strict=True):
                product = emit.call("llvm.x86.avx2.pmadd.wd", _I32X8, [two, column])
                builder.store(builder.add(builder.load(total), product), total)
    return [[builder.load(total) for total in of_row] for of_row in totals]


@intrinsic
def score_panel(
    typingctx: Any, q: Any, q_stride: Any, keys: Any, num_pairs: Any, factors: Any, out: Any,
    out_stride: Any,
) -> Any:  # fmt: skip
    """Scores of `TILE_ROWS` queries with a panel of 16 keys, each times its key's factor: float32.

    Strides in bytes; num_pairs: of dimensions.
    """

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        q, q_stride, keys, num_pairs, factors, out, out_stride = args
        rows = [builder.add(q, builder.mul(q_stride, I64(row))) for row in range(TILE_ROWS)]
        of_keys = [eights.load(eights.emit.at(factors, 32 * half)) for half in range(2)]
        for row, of_row in enumerate(_sums(eights, rows, keys, num_pairs)):
            place = builder.add(out, builder.mul(out_stride, I64(row)))
            for half, total in enumerate(of_row):
                score = builder.fmul(builder.sitofp(total, _F32X8), of_keys[half])
                eights.store(score, eights.emit.at(place, 32 * half))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


@intrinsic
def mix_panel(
    typingctx: Any, p: Any, p_stride: Any, values: Any, num_pairs: Any, factors: Any,
    row_factors: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """out += weights @ values of a panel of 16 dimensions, times their factors and those of rows.

    p: [TILE_ROWS, num_pairs of keys, 2] int16; out: float32.
    """

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        emit = eights.emit
        p, p_stride, values, num_pairs, factors, row_factors, out, out_stride = args
        rows = [builder.add(p, builder.mul(p_stride, I64(row))) for row in range(TILE_ROWS)]
        of_columns = [eights.load(emit.at(factors, 32 * half)) for half in range(2)]
        for row, of_row in enumerate(_sums(eights, rows, values, num_pairs)):
            place = builder.add(out, builder.mul(out_stride, I64(row)))
            factor = eights.splat(emit.load(emit.at(row_factors, 4 * row), F32, align=4))
            for half, total in enumerate(of_row):
                value = builder.fmul(builder.sitofp(total, _F32X8), of_columns[half])
                at = emit.at(place, 32 * half)
                eights.store(eights.fma(value, factor, eights.load(at)), at)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), codegen


@intrinsic
def highest_score(typingctx: Any, scores: Any, num_vectors: Any) -> Any:
    """The highest of 16 `num_vectors` float32, none of which is NaN."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        lowest = eights.floats(float("-inf"))
        bests = [cgutils.alloca_once_value(builder, lowest) for _ in range(2)]
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(64)))
            for half, place in enumerate(bests):
                value = eights.load(eights.emit.at(at, 32 * half))
                builder.store(eights.higher(value, builder.load(place)), place)
        best = eights.higher(*[builder.load(place) for place in bests])
        return eights.lane_of(best, eights.higher)

    return types.float32(types.int64, types.int64), codegen


# Of 2 ** x, |x| <= 1/2, with the smallest relative error.
_EXP2 = (0.009582853619933955, 0.05590642480859686, 0.24024098598344795, 0.6931241933881168, 1.0)


def _exp2(eights: _Eights, x: Value) -> Value:
    """2 ** x for x <= 0 to 3e-6 of it; about 1e-38 for all below -126; NaN for NaN."""
    builder = eights.builder
    x = eights.higher(eights.floats(-126.0), x)
    magic = eights.floats(1.5 * 2**23)
    shifted = builder.fadd(x, magic)  # the nearest integer, in the lowest bits
    rest = builder.fsub(x, builder.fsub(shifted, magic))
    value = eights.floats(_EXP2[0])
    for factor in _EXP2[1:]:
        value = eights.fma(value, rest, eights.floats(factor))
    exponent = builder.shl(builder.bitcast(shifted, _I32X8), eights.ints(23))
    return builder.bitcast(builder.add(builder.bitcast(value, _I32X8), exponent), _F32X8)


@intrinsic
def exp2_float(typingctx: Any, x: Any) -> Any:
    """`_exp2` of one float32, without a call."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        return builder.extract_element(_exp2(eights, eights.splat(args[0])), I32(0))

    return types.float32(types.float32), codegen


@intrinsic
def exp2_floats(typingctx: Any, scores: Any, num_vectors: Any, top: Any, factor: Any) -> Any:
    """2 ** ((scores - top) * factor) in place, 16 `num_vectors` float32; returns their sum."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        eights = _Eights(builder)
        top, factor = eights.splat(args[2]), eights.splat(args[3])
        totals = [cgutils.alloca_once_value(builder, eights.floats(0.0)) for _ in range(2)]
        with cgutils.for_range(builder, args[1]) as loop:
            start = builder.add(args[0], builder.mul(loop.index, I64(64)))
            for half, total in enumerate(totals):
                at = eights.emit.at(start, 32 * half)
                weight = _exp2(eights, builder.fmul(builder.fsub(eights.load(at), top), factor))
                builder.store(builder.fadd(builder.load(total), weight), total)
                eights.store(weight, at)
        total = builder.fadd(*[builder.load(total) for total in totals])
        return eights.lane_of(total, builder.fadd)

    kinds = (types.int64, types.int64, types.float32, types.float32)
    return types.float32(*kinds), codegen


def _make_round(rounded: Callable[[_Eights, Value], Value]) -> Any:
    """(weights, num_vectors, factor, out): out = `rounded` weights * factor as int16; their sum."""

    @intrinsic
    def round_all(typingctx: Any, weights: Any, num_vectors: Any, factor: Any, out: Any) -> Any:
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            eights = _Eights(builder)
            weights, num_vectors, factor, out = args
            factor = eights.splat(factor)
            totals = [cgutils.alloca_once_value(builder, eights.ints(0)) for _ in range(2)]
            with cgutils.for_range(builder, num_vectors) as loop:
                at = builder.add(weights, builder.mul(loop.index, I64(64)))
                halves = []
                for half, total in enumerate(totals):
                    value = builder.fmul(eights.load(eights.emit.at(at, 32 * half)), factor)
                    halves.append(rounded(eights, value))
                    builder.store(builder.add(builder.load(total), halves[-1]), total)
                both = eights.emit.call("llvm.x86.avx2.packssdw", _I16X16, halves)
                both = eights.shuffle(
                    both, both, [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)]
                )
                eights.store(both, builder.add(out, builder.mul(loop.index, I64(32))))
            total = builder.add(*[builder.load(total) for total in totals])
            return eights.lane_of(builder.sitofp(total, _F32X8), builder.fadd)

        return types.float32(types.int64, types.int64, types.float32, types.int64), codegen

    return round_all


def _rest(eights: _Eights, value: Value) -> Value:
    """What rounding to an integer leaves, `FINER` times it."""
    whole = eights.builder.sitofp(eights.to_ints(value), _F32X8)
    rest = eights.builder.fsub(value, whole)
    return eights.to_ints(eights.builder.fmul(rest, eights.floats(FINER)))


round_weights = _make_round(_Eights.to_ints)
round_rests = _make_round(_rest)
