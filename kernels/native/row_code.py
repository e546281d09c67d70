"""Inner loops over one bfloat16 row, in vectors of 16 elements."""

from collections.abc import Sequence
from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

from umbel.kernels.native.simd import F32X16, I64, Builder, Emitter, Value


def _places(builder: Builder, idx: Value, *starts: Value) -> list[Value]:
    offset = builder.mul(idx, I64(32))
    return [builder.add(start, offset) for start in starts]


@intrinsic
def gate_vectors(typingctx: Any, gate: Any, up: Any, y: Any, num_vectors: Any) -> Any:
    """y = silu(gate) * up; silu is rounded in between, as the twin does."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        with cgutils.for_range(builder, args[3]) as loop:
            gate_at, up_at, y_at = _places(builder, loop.index, *args[:3])
            x = emit.load_bfloat(gate_at)
            limited = emit.call("llvm.maxnum.v16f32", F32X16, [x, emit.constant(-87.0)])
            power = emit.exp(builder.fneg(limited))
            silu = builder.fdiv(x, builder.fadd(emit.constant(1.0), power))
            product = builder.fmul(emit.round_to_bfloat(silu), emit.load_bfloat(up_at))
            emit.store_bfloat(product, y_at)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def add_vectors(typingctx: Any, x: Any, added: Any, num_vectors: Any) -> Any:
    """x += added."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        with cgutils.for_range(builder, args[2]) as loop:
            x_at, added_at = _places(builder, loop.index, *args[:2])
            emit.store_bfloat(
                builder.fadd(emit.load_bfloat(x_at), emit.load_bfloat(added_at)), x_at
            )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def sum_squares(typingctx: Any, x: Any, num_vectors: Any) -> Any:
    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        total = cgutils.alloca_once_value(builder, emit.zeros())
        with cgutils.for_range(builder, args[1]) as loop:
            (x_at,) = _places(builder, loop.index, args[0])
            value = emit.load_bfloat(x_at)
            builder.store(emit.fma(value, value, builder.load(total)), total)
        return emit.reduce("fadd", builder.load(total))

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def scale_vectors(
    typingctx: Any, x: Any, factor: Any, weight: Any, y: Any, num_vectors: Any
) -> Any:
    """y = x * factor * weight; weight is float32."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        emit = Emitter(builder)
        factor = emit.splat(args[1])
        with cgutils.for_range(builder, args[4]) as loop:
            x_at, y_at = _places(builder, loop.index, args[0], args[3])
            weight_at = builder.add(args[2], builder.mul(loop.index, I64(64)))
            scaled = builder.fmul(emit.load_bfloat(x_at), factor)
            emit.store_bfloat(builder.fmul(scaled, emit.load(weight_at, F32X16, align=4)), y_at)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, *[types.int64] * 3), codegen
