"""Repairs the numbers of Triton's interpreter for bfloat16 and float8. For tests only.

The interpreter keeps bfloat16 as integers in numpy: sums, products and `tl.dot` then work on bit
patterns, conversions from float32 truncate, and those to float8 are wrong for some values (Triton
3.6 and 3.9; upstream does not mean to support them, see triton-lang/triton issue 11584). Here
bfloat16 is widened for each operation and its result rounded to the nearest even, as the device
does.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from numpy.typing import NDArray

Builder = interpreter.InterpreterBuilder
Handle = interpreter.TensorHandle
_FLOAT8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
_ON_BITS = {
    np.bitwise_and,
    np.bitwise_or,
    np.bitwise_xor,
    np.left_shift,
    np.right_shift,
}


def widen(bits: Any) -> NDArray[np.float32]:
    """Bits of bfloat16 -> float32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def narrow(values: Any) -> NDArray[np.uint16]:
    """float32 -> bits of the nearest bfloat16, even among two; NaN stays NaN."""
    wide = np.asarray(values, dtype=np.float32)
    bits = np.ascontiguousarray(wide).view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded.reshape(wide.shape))


def _is_bf16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _typed(result: Any) -> Any:
    """A handle for what came out of float32 operations on bfloat16."""
    if result.dtype == np.bool_:
        return Handle(result, tl.int1)
    return Handle(narrow(result), tl.bfloat16)


def _convert(source: Any, target: Any) -> Any:
    """Any conversion that has bfloat16 or float8 on a side."""
    from_type, to_type = source.dtype.scalar, target.scalar
    if from_type == to_type:
        return source
    data = np.ascontiguousarray(source.data)
    if from_type in _FLOAT8:
        values = torch.from_numpy(data).view(_FLOAT8[from_type]).float().numpy()
        values = values.reshape(np.shape(source.data))
    elif from_type == tl.bfloat16:
        values = widen(source.data)
    else:
        values = np.asarray(source.data)
    if to_type in _FLOAT8:
        wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        largest = torch.finfo(_FLOAT8[to_type]).max  # the device saturates
        wide = torch.where(wide.isnan(), wide, wide.clamp(-largest, largest))
        octets = wide.to(_FLOAT8[to_type]).view(torch.uint8).numpy()
        return Handle(octets.reshape(np.shape(source.data)), to_type)
    if to_type == tl.bfloat16:
        return Handle(narrow(values.astype(np.float32)), to_type)
    return Handle(values.astype(interpreter._get_np_dtype(to_type)), to_type)


def install() -> None:
    """Replace the interpreter's operations; once, before any kernel is launched."""
    _install_arithmetic()
    _install_conversions()
    _install_products()
    _install_infinities()
    for reduction in (interpreter.ReduceOps, interpreter.ScanOps):
        reduction.apply_impl = _widened(reduction.apply_impl)


def _install_arithmetic() -> None:
    binary, unary, ternary = Builder.binary_op, Builder.unary_op, Builder.ternary_op

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if _is_bf16(lhs) and op not in _ON_BITS:
            return _typed(op(widen(lhs.data), widen(rhs.data)))
        result = binary(self, lhs, rhs, op)
        # The handle of a comparison keeps its operands' type: as a mask it would be refused.
        return Handle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    def unary_op(self: Any, operand: Any, op: Any) -> Any:
        if _is_bf16(operand):
            return _typed(op(widen(operand.data)))
        return unary(self, operand, op)

    def ternary_op(self: Any, first: Any, second: Any, third: Any, op: Any) -> Any:
        if _is_bf16(third) and op is not np.where:
            return _typed(op(widen(first.data), widen(second.data), widen(third.data)))
        return ternary(self, first, second, third, op)

    Builder.binary_op, Builder.unary_op, Builder.ternary_op = binary_op, unary_op, ternary_op


def _install_conversions() -> None:
    cast, between_floats = Builder.cast_impl, Builder.create_fp_to_fp

    def is_special(scalar: Any) -> bool:
        return scalar == tl.bfloat16 or scalar in _FLOAT8

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if is_special(source.dtype.scalar) or is_special(target.scalar):
            return _convert(source, target)
        return cast(self, source, target)

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if is_special(source.dtype.scalar) or is_special(target.scalar):
            return _convert(source, target)
        return between_floats(self, source, target, rounding)

    def get_bf16(self: Any, value: float) -> Any:
        return Handle(narrow([value]), tl.bfloat16)

    Builder.cast_impl, Builder.create_fp_to_fp = cast_impl, create_fp_to_fp
    Builder.get_bf16 = get_bf16


def _install_products() -> None:
    dot = Builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        a, b = (Handle(widen(x.data), tl.float32) if _is_bf16(x) else x for x in (a, b))
        return dot(self, a, b, d, *options)

    Builder.create_dot = create_dot


def _install_infinities() -> None:
    """Let exponentials overflow to infinity in silence, as they do on the device."""
    call = interpreter.GridExecutor.__call__

    def call_quietly(self: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(over="ignore"):
            return call(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = call_quietly


def _widened(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction or scan that computes bfloat16 in float32."""

    def to_type(tensor: Any, scalar: Any, data: Any) -> Any:
        is_block = tensor.type.is_block()
        kind = tl.block_type(scalar, list(tensor.shape)) if is_block else scalar
        return tl.core.tensor(Handle(data, scalar), kind)

    def apply_impl(self: Any, inputs: tuple[Any, ...]) -> Any:
        is_narrow = [tensor.dtype.scalar == tl.bfloat16 for tensor in inputs]
        if not any(is_narrow):
            return apply(self, inputs)
        wide = tuple(
            to_type(tensor, tl.float32, widen(tensor.handle.data)) if flag else tensor
            for tensor, flag in zip(inputs, is_narrow, strict=True)
        )
        outputs = apply(self, wide)
        many = outputs if isinstance(outputs, tuple | list) else (outputs,)
        results = tuple(
            to_type(output, tl.bfloat16, narrow(output.handle.data)) if flag else output
            for output, flag in zip(many, is_narrow, strict=True)
        )
        return results if isinstance(outputs, tuple | list) else results[0]

    return apply_impl
