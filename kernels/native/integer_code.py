"""What products of integers have in common, whatever the width of a row's: AVX2 is enough."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.product_code import GROUP, WeightKind, choose_by_count, make_tile
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

WIDE_ROWS = 6
Halves: TypeAlias = tuple[Value, Value]  # of 8 outputs each


def _codes_8bit(emit: Emitter, address: Value) -> Iterator[Halves]:
    """Of two inputs in turn, the signed codes in 16 bits, [16 outputs, 2 inputs]."""
    for pair in range(GROUP // 2):
        octets = [emit.load(emit.at(address, 32 * pair + 16 * h), I8X16, align=16) for h in (0, 1)]
        yield emit.builder.sext(octets[0], I16X16), emit.builder.sext(octets[1], I16X16)


def add_pairs(emit: Emitter, total: Halves, codes: Halves, x: Value, offset: int) -> Halves:
    """total + codes * row, [16 outputs, 2 inputs] of 16 bits, in 32 bits."""
    return multiply_and_add(emit, "vpmaddwd", "vpaddd", total, codes, x, offset)


def multiply_and_add(
    emit: Emitter, multiply: str, add: str, total: Halves, codes: Halves, x: Value, offset: int
) -> Halves:
    """total + codes * the 32 bits at `x` + `offset`, by the instructions of these names.

    One piece of assembly, in its place: sums of integers may be taken in any order, so LLVM would
    multiply first and add later, with more products under way than there are registers.
    """
    # Of `vpmaddubsw`, the operand in the middle has no sign.
    code = f"""
        vpbroadcastd {offset}($6), $3
        {multiply} $3, $4, $2
        {multiply} $3, $5, $3
        {add} $2, $0, $0
        {add} $3, $1, $1
    """
    args = [*codes, x, *total]
    results = ir.LiteralStructType([total[0].type] * 4)
    assembly = ir.InlineAsm(
        ir.FunctionType(results, [arg.type for arg in args]), code,
        "=&x,=&x,=&x,=&x,x,x,r,0,1", side_effect=True,
    )  # fmt: skip
    result = emit.builder.call(assembly, args)
    return emit.builder.extract_value(result, 0), emit.builder.extract_value(result, 1)


def zeros(emit: Emitter) -> Halves:
    zero = ir.Constant(I32X8, [0] * 8)
    return zero, zero


def to_floats(emit: Emitter, total: Halves) -> Value:
    return emit.builder.sitofp(emit.joined(*total), F32X16)


def store_steps(
    emit: Emitter, at: Value, whole: list[Any], scale: Value, total: Value, is_4bit: Value
) -> None:
    """Of a group that was rounded to the integers `whole`, three float32: the scale; what the
    correction of codes of 4 bits takes; `total`, the sum of the inputs as they were.

    Codes of 4 bits have a mean of 8 or so, which would multiply the rounding errors: they are to
    count from there. Of the middle, 8, the exact sum is known, and the difference is made up for.
    """
    builder = emit.builder
    sums = [builder.sitofp(half, F32X16) for half in whole]
    rounded_total = builder.fmul(scale, emit.reduce("fadd", builder.fadd(*sums)))
    middle = builder.select(is_4bit, F32(8.0), F32(0.0))
    correction = builder.fmul(middle, builder.fsub(total, rounded_total))
    for i, value in enumerate((scale, correction, total)):
        emit.store(value, emit.at(at, 4 * i), align=4)


_Q8 = WeightKind(
    512, 2 * GROUP, _codes_8bit, add_pairs, num_steps=1, zero=zeros, to_floats=to_floats,
    is_rounded=True,
)  # fmt: skip


def make_tiles(kind: WeightKind) -> Any:
    """(count, ...): of 6, 4, 2 or 1 rows. With those of 6 rows all 16 registers are in use."""
    return choose_by_count({n: make_tile(kind, n, prefetches=True) for n in (1, 2, 4, 6)})


def make_wide_tile(narrow: WeightKind) -> tuple[Any, Any]:
    """For weights of 4 bits and many rows: an intrinsic (weights, groups, bytes to the next panel,
    out) that widens the codes of a panel, and a tile of `WIDE_ROWS` rows that takes them so.

    Of each group [16 inputs of 32 bits, 16 outputs]: 1,024 or, of bytes, 512 bytes. The results are
    those of narrow tiles, bit by bit.
    """

    @intrinsic
    def widen(typingctx: Any, weights: Any, num_groups: Any, ahead_bytes: Any, out: Any) -> Any:
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit = Emitter(builder)
            weights, num_groups, ahead_bytes, out = args
            with cgutils.for_range(builder, num_groups) as loop:
                at = builder.add(weights, builder.mul(loop.index, I64(narrow.group_bytes)))
                emit.prefetch(builder.add(at, ahead_bytes), narrow.group_bytes)
                place = builder.add(out, builder.mul(loop.index, I64(16 * narrow.x_group_bytes)))
                for i, halves in enumerate(narrow.weights(emit, at)):
                    for half, codes in enumerate(halves):
                        emit.store(codes, emit.at(place, 64 * i + 32 * half), align=32)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    def load(emit: Emitter, address: Value) -> Iterator[Halves]:
        kind = I8X32 if narrow.x_group_bytes == GROUP else I16X16
        for i in range(narrow.x_group_bytes // 4):
            low, high = (
                emit.load(emit.at(address, 64 * i + 32 * h), kind, align=32) for h in (0, 1)
            )
            yield low, high

    wide = dataclasses.replace(narrow, group_bytes=16 * narrow.x_group_bytes, weights=load)
    return widen, make_tile(wide, WIDE_ROWS)


q8_tiles = make_tiles(_Q8)
