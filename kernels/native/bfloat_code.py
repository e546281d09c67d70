"""Weights as bfloat16 dot products take them: pairs of neighbouring inputs. For `product_code`."""

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
    BF16X32,
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


def _pairs_4bit(emit: Emitter, address: Value) -> Iterator[Value]:
    """The 16 vectors of pairs of a group of 4-bit codes, 256 bytes at `address`."""
    builder = emit.builder
    # The table holds 0..15 twice: an index has five bits, the fifth of which is the neighbour's.
    codes = [_bf16_bits(code) for code in range(16)] * 2
    table = ir.Constant(I16X32, codes)
    for part in range(4):
        words = emit.load(emit.at(address, 64 * part), I16X32, align=64)
        for nibble in range(4):
            shift = ir.Constant(I16X32, [4 * nibble] * 32)
            index = builder.lshr(words, shift) if nibble else words
            looked_up = emit.call("llvm.x86.avx512.permvar.hi.512", I16X32, [table, index])
            yield builder.bitcast(looked_up, I32X16)


def _pairs_8bit(emit: Emitter, address: Value) -> Iterator[Value]:
    """The 16 vectors of pairs of a group of signed bytes, 512 bytes at `address`."""
    builder = emit.builder
    for pair in range(16):
        halves = []
        for half in range(2):
            octets = emit.load(emit.at(address, 32 * pair + 16 * half), I8X16, align=16)
            halves.append(builder.sitofp(builder.sext(octets, I32X16), F32X16))
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        yield builder.bitcast(emit.call(name, BF16X32, [halves[1], halves[0]]), I32X16)


def _bf16_bits(value: int) -> int:
    """Of a small non-negative integer."""
    if value == 0:
        return 0
    exponent = value.bit_length() - 1
    return ((127 + exponent) << 7) | ((value << 7 >> exponent) & 0x7F)


def _add(emit: Emitter, total: Value, weights: Value, x: Value, offset: int) -> Value:
    return emit.dot_pairs(total, weights, emit.load(emit.at(x, offset), I32, align=4))


def _make_tiles(kind: WeightKind) -> Any:
    """Of 8, 4, 2 or 1 rows, with one panel."""
    # A chain of dependent sums must not be the limit.
    return choose_by_count(
        {count: make_tile(kind, count, num_chains=max(1, 4 // count)) for count in (1, 2, 4, 8)}
    )


q4_tiles = _make_tiles(WeightKind(256, 2 * GROUP, _pairs_4bit, _add, num_steps=2))
q8_tiles = _make_tiles(WeightKind(512, 2 * GROUP, _pairs_8bit, _add, num_steps=1))


@intrinsic
def sum_groups(typingctx: Any, x: Any, num_groups: Any, out: Any) -> Any:
    """The float32 sum of each group of one bfloat16 row."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        two_ones = I32(0x3F803F80)
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(2 * GROUP)))
            pairs = emit.dot_pairs(emit.zeros(), emit.load(at, I32X16, align=2), two_ones)
            place = builder.add(args[2], builder.mul(loop.index, I64(4)))
            emit.store(emit.reduce("fadd", pairs), place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen
