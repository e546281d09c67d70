"""The inner loop of the grouped products, one intrinsic for each number of rows.

A panel holds 16 outputs, one in each lane, as pairs of neighbouring inputs: the layout that the
bfloat16 dot product multiplies with one broadcast pair, without a sum across lanes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.simd import (
    BF16X32,
    F16X16,
    F32,
    F32X16,
    I8X16,
    I16X32,
    I32,
    I32X16,
    I64,
    Builder,
    Emitter,
    Value,
)  # fmt: skip

LANES = 16  # outputs of a panel
GROUP = 32  # inputs that share a scale

_Unpack = Callable[[Emitter, Value], list[Value]]


def _unpack_4bit(emit: Emitter, address: Value) -> list[Value]:
    """The 16 vectors of bfloat16 pairs of a group of 4-bit codes, 256 bytes at `address`."""
    builder = emit.builder
    # The table holds 0..15 twice: an index has five bits, the fifth of which is the neighbour's.
    codes = [_bf16_bits(code) for code in range(16)] * 2
    table = ir.Constant(I16X32, codes)
    vectors = []
    for part in range(4):
        words = emit.load(emit.at(address, 64 * part), I16X32, align=64)
        for nibble in range(4):
            shift = ir.Constant(I16X32, [4 * nibble] * 32)
            index = builder.lshr(words, shift) if nibble else words
            looked_up = emit.call("llvm.x86.avx512.permvar.hi.512", I16X32, [table, index])
            vectors.append(builder.bitcast(looked_up, BF16X32))
    return vectors


def _unpack_8bit(emit: Emitter, address: Value) -> list[Value]:
    """The 16 vectors of bfloat16 pairs of a group of signed bytes, 512 bytes at `address`."""
    vectors = []
    for pair in range(16):
        halves = []
        for half in range(2):
            octets = emit.load(emit.at(address, 32 * pair + 16 * half), I8X16, align=16)
            halves.append(emit.builder.sitofp(emit.builder.sext(octets, I32X16), F32X16))
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        vectors.append(emit.call(name, BF16X32, [halves[1], halves[0]]))
    return vectors


def _bf16_bits(value: int) -> int:
    """Of a small non-negative integer."""
    if value == 0:
        return 0
    exponent = value.bit_length() - 1
    return ((127 + exponent) << 7) | ((value << 7 >> exponent) & 0x7F)


def _make_tile(num_rows: int, group_bytes: int, unpack: _Unpack, *, has_offsets: bool) -> Any:
    """A product of `num_rows` rows with one panel, as an intrinsic for numba.

    (panel, scales, x, x_stride, sums, num_groups, bias, y, y_stride, is_float): the panel's codes;
    its float16 scales [groups, 16], each followed by 16 offsets if there are any; bfloat16 rows
    `x_stride` bytes apart; float32 sums [rows, groups] of the rows' groups; 16 float32 to begin
    with; results [rows, 16] in float32 or bfloat16, `y_stride` bytes apart.
    """
    scale_bytes = 2 * LANES * (2 if has_offsets else 1)
    num_chains = max(1, 4 // num_rows)  # a chain of dependent sums must not be the limit

    def emit_tile(emit: Emitter, args: Sequence[Value]) -> None:
        panel, scales, x, stride, sums, num_groups, bias, y, y_stride, is_float = args
        builder = emit.builder
        first = emit.load(bias, F32X16, align=4)
        totals = [cgutils.alloca_once(builder, F32X16) for _ in range(num_rows)]
        for total in totals:
            builder.store(first, total)
        rows = [builder.add(x, builder.mul(stride, I64(row))) for row in range(num_rows)]
        with cgutils.for_range(builder, num_groups) as loop:
            group = loop.index
            weights = unpack(emit, builder.add(panel, builder.mul(group, I64(group_bytes))))
            inputs = builder.mul(group, I64(2 * GROUP))
            partials = [[emit.zeros()] * num_chains for _ in range(num_rows)]
            for pair, weight in enumerate(weights):
                chain = pair % num_chains
                for row in range(num_rows):
                    address = emit.at(builder.add(rows[row], inputs), 4 * pair)
                    value = emit.load(address, I32, align=4)
                    partials[row][chain] = emit.dot_pairs(partials[row][chain], weight, value)
            place = builder.add(scales, builder.mul(group, I64(scale_bytes)))
            scale = builder.fpext(emit.load(place, F16X16, align=32), F32X16)
            offset = None
            if has_offsets:
                place = emit.at(place, 2 * LANES)
                offset = builder.fpext(emit.load(place, F16X16, align=32), F32X16)
            for row in range(num_rows):
                product = partials[row][0]
                for other in partials[row][1:]:
                    product = builder.fadd(product, other)
                total = emit.fma(product, scale, builder.load(totals[row]))
                if offset is not None:
                    idx = builder.add(builder.mul(num_groups, I64(row)), group)
                    address = builder.add(sums, builder.mul(idx, I64(4)))
                    sum_of_group = emit.splat(emit.load(address, F32, align=4))
                    total = emit.fma(offset, sum_of_group, total)
                builder.store(total, totals[row])
        places = [builder.add(y, builder.mul(y_stride, I64(row))) for row in range(num_rows)]
        with builder.if_else(builder.icmp_signed("!=", is_float, I64(0))) as (then, otherwise):
            with then:
                for place, total in zip(places, totals, strict=True):
                    emit.store(builder.load(total), place, align=4)
            with otherwise:
                for place, total in zip(places, totals, strict=True):
                    emit.store_bfloat(builder.load(total), place)

    @intrinsic
    def tile(
        typingctx: Any, panel: Any, scales: Any, x: Any, stride: Any, sums: Any, num_groups: Any,
        bias: Any, y: Any, y_stride: Any, is_float: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(*[types.int64] * 10)

        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            emit_tile(Emitter(builder), args)
            return context.get_dummy_value()

        return signature, codegen

    return tile


q4_tile_1, q4_tile_2, q4_tile_4, q4_tile_8 = (
    _make_tile(num_rows, 256, _unpack_4bit, has_offsets=True) for num_rows in (1, 2, 4, 8)
)
q8_tile_1, q8_tile_2, q8_tile_4, q8_tile_8 = (
    _make_tile(num_rows, 512, _unpack_8bit, has_offsets=False) for num_rows in (1, 2, 4, 8)
)


@intrinsic
def sum_groups(typingctx: Any, x: Any, num_groups: Any, out: Any) -> Any:
    """The float32 sum of each group of one bfloat16 row."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        two_ones = I32(0x3F803F80)
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(2 * GROUP)))
            pairs = emit.dot_pairs(emit.zeros(), emit.load(at, BF16X32, align=2), two_ones)
            place = builder.add(args[2], builder.mul(loop.index, I64(4)))
            emit.store(emit.reduce("fadd", pairs), place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
