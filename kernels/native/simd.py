"""Vector code for the native kernels: what numba cannot say, written as LLVM instructions.

Each intrinsic takes plain addresses (int64) and leaves its results in memory, so that the kernels
around it stay ordinary numba code. Vectors of 16 float32 become two of 8 where there is no AVX-512;
what is done in bfloat16 has a form for processors that have no such instructions.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from llvmlite import binding, ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.threads import has_bfloats

# For the pieces that are written as assembly; numba needs none.
binding.initialize_native_asmparser()


class _BFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32 = ir.FloatType()
F32X16 = ir.VectorType(F32, 16)
F16X16 = ir.VectorType(ir.HalfType(), 16)
F16X32 = ir.VectorType(ir.HalfType(), 32)
I8X16 = ir.VectorType(I8, 16)
I8X32 = ir.VectorType(I8, 32)
I32X8 = ir.VectorType(I32, 8)
I32X16 = ir.VectorType(I32, 16)
I16X16 = ir.VectorType(I16, 16)
I16X32 = ir.VectorType(I16, 32)
BF16X16 = ir.VectorType(_BFloat(), 16)
BF16X32 = ir.VectorType(_BFloat(), 32)

Value: TypeAlias = Any  # llvmlite.ir.Value
Builder: TypeAlias = Any  # llvmlite.ir.IRBuilder


class Emitter:
    """Writes vector instructions at the builder's place."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._module = builder.module

    def call(self, name: str, result: ir.Type, args: Sequence[Value]) -> Value:
        kind = ir.FunctionType(result, [arg.type for arg in args])
        return self.builder.call(cgutils.get_or_insert_function(self._module, kind, name), args)

    def load(self, address: Value, kind: ir.Type, *, align: int) -> Value:
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.load(pointer, align=align)

    def store(self, value: Value, address: Value, *, align: int) -> None:
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=align)

    def prefetch(self, address: Value, size_bytes: int) -> None:
        """Ask for memory that will be read; any address will do."""
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(self._module, kind, "llvm.prefetch.p0i8")
        for offset in range(0, size_bytes, 64):
            pointer = self.builder.inttoptr(self.at(address, offset), I8.as_pointer())
            self.builder.call(function, [pointer, I32(0), I32(2), I32(1)])

    def at(self, address: Value, offset: int) -> Value:
        return self.builder.add(address, ir.Constant(I64, offset)) if offset else address

    def load_bfloat(self, address: Value) -> Value:
        """16 bfloat16 as float32."""
        bits = self.builder.zext(self.load(address, I16X16, align=2), I32X16)
        bits = self.builder.shl(bits, ir.Constant(I32X16, [16] * 16))
        return self.builder.bitcast(bits, F32X16)

    def store_bfloat(self, value: Value, address: Value) -> None:
        if has_bfloats():
            self.store(self.builder.fptrunc(value, BF16X16), address, align=2)
            return
        bits = self.builder.lshr(self._rounded_bits(value), ir.Constant(I32X16, [16] * 16))
        self.store(self.builder.trunc(bits, I16X16), address, align=2)

    def round_to_bfloat(self, value: Value) -> Value:
        if not has_bfloats():
            bits = self.builder.and_(
                self._rounded_bits(value), ir.Constant(I32X16, [0xFFFF0000] * 16)
            )
            return self.builder.bitcast(bits, F32X16)
        bits = self.builder.bitcast(self.builder.fptrunc(value, BF16X16), I16X16)
        bits = self.builder.shl(self.builder.zext(bits, I32X16), ir.Constant(I32X16, [16] * 16))
        return self.builder.bitcast(bits, F32X16)

    def _rounded_bits(self, value: Value) -> Value:
        """Whose upper halves are the nearest bfloat16, ties to even; a NaN stays one."""
        builder = self.builder
        bits = builder.bitcast(value, I32X16)
        odd = builder.and_(
            builder.lshr(bits, ir.Constant(I32X16, [16] * 16)), ir.Constant(I32X16, [1] * 16)
        )
        rounded = builder.add(builder.add(bits, ir.Constant(I32X16, [0x7FFF] * 16)), odd)
        quiet = builder.or_(bits, ir.Constant(I32X16, [0x400000] * 16))
        return builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)

    def splat(self, value: Value) -> Value:
        """16 lanes of one 32-bit value."""
        kind = ir.VectorType(value.type, 16)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        mask = ir.Constant(I32X16, [0] * 16)
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)

    def to_nearest_int(self, value: Value) -> Value:
        """16 float32 as int32, ties to even."""
        if has_bfloats():
            return self.builder.fptosi(self.call("llvm.rint.v16f32", F32X16, [value]), I32X16)
        halves = []
        for first in (0, 8):
            lanes = ir.Constant(I32X8, list(range(first, first + 8)))
            half = self.builder.shuffle_vector(value, ir.Constant(F32X16, ir.Undefined), lanes)
            halves.append(self.call("llvm.x86.avx.cvt.ps2dq.256", I32X8, [half]))
        return self.joined(*halves)

    def joined(self, low: Value, high: Value) -> Value:
        """Two vectors of 8 lanes as one."""
        return self.builder.shuffle_vector(low, high, ir.Constant(I32X16, list(range(16))))

    def zeros(self) -> Value:
        return ir.Constant(F32X16, [0.0] * 16)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.call("llvm.fma.v16f32", F32X16, [a, b, c])

    def exp(self, x: Value) -> Value:
        """e ** x within 2 units in the last place for x <= 88; about 1e-38 for all below -87."""
        builder, splat = self.builder, self.constant
        x = self.call("llvm.maxnum.v16f32", F32X16, [x, splat(-87.0)])
        whole = self.call("llvm.rint.v16f32", F32X16, [builder.fmul(x, splat(1.4426950408889634))])
        # ln 2 in two parts, the first of which has few bits: their product with `whole` is exact.
        rest = self.fma(whole, splat(-0.693359375), x)
        rest = self.fma(whole, splat(2.12194440e-4), rest)
        # Cephes' polynomial for e ** rest, |rest| <= ln 2 / 2.
        value = splat(1.9875691500e-4)
        for factor in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
            value = self.fma(value, rest, splat(factor))
        value = self.fma(value, builder.fmul(rest, rest), builder.fadd(rest, splat(1.0)))
        exponent = builder.shl(builder.fptosi(whole, I32X16), ir.Constant(I32X16, [23] * 16))
        return builder.bitcast(builder.add(builder.bitcast(value, I32X16), exponent), F32X16)

    def constant(self, value: float) -> Value:
        return ir.Constant(F32X16, [float(np.float32(value))] * 16)

    def reduce(self, operation: str, vector: Value) -> Value:
        """One float32 of 16 lanes: `fadd` (in a tree) or `fmax`."""
        lanes = 8
        while lanes:
            low = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
            high = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes, 2 * lanes)))
            undefined = ir.Constant(vector.type, ir.Undefined)
            a = self.builder.shuffle_vector(vector, undefined, low)
            b = self.builder.shuffle_vector(vector, undefined, high)
            if operation == "fadd":
                vector = self.builder.fadd(a, b)
            else:
                vector = self.call(f"llvm.maxnum.v{lanes}f32", ir.VectorType(F32, lanes), [a, b])
            lanes //= 2
        return self.builder.extract_element(vector, I32(0))

    def dot_pairs(self, total: Value, weights: Value, pair: Value) -> Value:
        """total + the product of 16 pairs of bfloat16 with one pair, all given as 32 bits; only for
        processors with bfloat16."""
        both = [self.builder.bitcast(bits, BF16X32) for bits in (weights, self.splat(pair))]
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", F32X16, [total, *both])


@intrinsic
def fetch_add(typingctx: Any, address: Any, amount: Any) -> Any:
    """The int64 at `address` before `amount` is added, in one step for all threads."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "monotonic")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_int64(typingctx: Any, address: Any, idx: Any) -> Any:
    """The `idx`-th int64 at `address`."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        return emit.load(builder.add(args[0], builder.mul(args[1], I64(8))), I64, align=8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def float_of_bits(typingctx: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        return builder.bitcast(args[0], F32)

    return types.float32(types.uint32), codegen


@intrinsic
def bits_of_float(typingctx: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        return builder.bitcast(args[0], I32)

    return types.uint32(types.float32), codegen


def _array_at(dtype: Any) -> Any:
    """An intrinsic (address) -> numba pointer of `dtype`, for `carray`."""

    @intrinsic
    def pointer(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return types.CPointer(dtype)(types.int64), codegen

    return pointer


uint16_pointer = _array_at(types.uint16)
float32_pointer = _array_at(types.float32)
int64_pointer = _array_at(types.int64)


@njit
def to_float(bits):
    """float32 of a bfloat16, given as uint16."""
    return float_of_bits(np.uint32(bits) << np.uint32(16))


@njit
def to_bfloat(value):
    """The nearest bfloat16, ties to even, as uint16."""
    bits = bits_of_float(np.float32(value))
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(bits >> np.uint32(16))


@intrinsic
def highest_bits(typingctx: Any, x: Any, num_vectors: Any) -> Any:
    """The highest of the bfloat16 magnitudes, as bits: ordered like the numbers, NaN above all."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        mask = ir.Constant(I16X16, [0x7FFF] * 16)
        best = cgutils.alloca_once_value(builder, ir.Constant(I16X16, [0] * 16))
        with cgutils.for_range(builder, args[1]) as loop:
            at = builder.add(args[0], builder.mul(loop.index, I64(32)))
            bits = builder.and_(emit.load(at, I16X16, align=2), mask)
            builder.store(emit.call("llvm.umax.v16i16", I16X16, [builder.load(best), bits]), best)
        kind = ir.IntType(16)
        top = emit.call("llvm.vector.reduce.umax.v16i16", kind, [builder.load(best)])
        return builder.zext(top, I64)

    return types.int64(types.int64, types.int64), codegen


@njit
def scale_of(bits):
    """A power of two that takes a row whose highest magnitude has these bits into [1, 2), and its
    inverse; 1 for a row of zeros and for one with an infinity or a NaN."""
    exponent = bits >> 7
    if exponent == 0 or exponent == 255:
        exponent = 127
    exponent = min(max(exponent, 1), 253)
    up = float_of_bits(np.uint32((254 - exponent) << 23))
    down = float_of_bits(np.uint32(exponent << 23))
    return up, down
