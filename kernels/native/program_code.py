"""Runs a list of kernels in one parallel region: see `program`."""

import ctypes
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

from umbel.kernels.native.simd import I64, Builder, Value, fetch_add, load_int64
from umbel.kernels.native.threads import keeps_code

# Turns of a wait until the core is offered to others, who may be the one that is waited for.
_PATIENCE = 2000
# Fields of the header. What the threads change lies in cache lines of its own.
TICKET, NUM_OPS, KERNELS, ARGS, ARG_BYTES, YIELD = 0, 8, 9, 10, 11, 12
CURRENT, INSIDE = 16, 24
NUM_FIELDS = 32
SCHED_YIELD = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0


@intrinsic
def _call(typingctx: Any, function: Any, args: Any) -> Any:
    """The C function at an address, with one int64."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        kind = ir.FunctionType(ir.VoidType(), [I64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _read(typingctx: Any, address: Any) -> Any:
    """An int64 that other threads change."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.load_atomic(pointer, "seq_cst", 8)

    return types.int64(types.int64), codegen


@intrinsic
def _write(typingctx: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        builder.store_atomic(args[1], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Like `fetch_add`, in one order with all that threads read and write here."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        pointer = builder.inttoptr(args[0], I64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _pause(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        kind = ir.FunctionType(ir.VoidType(), [])
        name = "llvm.x86.sse2.pause"
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _call_plain(typingctx: Any, function: Any) -> Any:
    """The C function `int f(void)` at an address."""

    def codegen(context: Any, builder: Builder, sig: Any, args: Sequence[Value]) -> Value:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@cfunc(types.void(types.int64), cache=keeps_code())
def _run(header):
    current, inside = header + 8 * CURRENT, header + 8 * INSIDE
    num_ops, kernels, args = (
        load_int64(header, NUM_OPS), load_int64(header, KERNELS), load_int64(header, ARGS),
    )  # fmt: skip
    arg_bytes, sched_yield = load_int64(header, ARG_BYTES), load_int64(header, YIELD)
    if fetch_add(header + 8 * TICKET, 1) == 0:
        for op in range(num_ops):
            _write(current, op + 1)
            _call(load_int64(kernels, op), args + op * arg_bytes)
            turns = 0
            while _read(inside) != 0:
                _pause()
                turns += 1
                if turns % _PATIENCE == 0:
                    _call_plain(sched_yield)
        _write(current, -1)
        return
    done, turns = 0, 0
    while True:
        op = _read(current)
        if op == -1:
            break
        if op == done:
            _pause()
            turns += 1
            if turns % _PATIENCE == 0:
                _call_plain(sched_yield)
            continue
        _add(inside, 1)
        if _read(current) == op:
            _call(load_int64(kernels, op - 1), args + (op - 1) * arg_bytes)
        _add(inside, -1)
        done, turns = op, 0


RUN: int = _run.address
