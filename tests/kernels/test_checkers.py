"""The repaired interpreter itself: faults are found, numbers are those of the device's formats."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def copy_kernel(X, OUT, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.store(OUT + at, tl.load(X + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def arithmetic_kernel(A, B, C, PRODUCT, SUM, TOTAL):
    at = tl.arange(0, 16)
    square = at[:, None] * 16 + at[None, :]
    a, b = tl.load(A + square), tl.load(B + square)
    tl.store(PRODUCT + square, tl.dot(a, b, input_precision="ieee"))
    tl.store(SUM + square, a + b)
    tl.store(TOTAL + at, tl.sum(a, 1))
    tl.store(C + square, (a.to(tl.float32) * 1.001).to(C.dtype.element_ty))


@triton.jit
def convert_kernel(X, OUT, BACK, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    narrow = tl.load(X + at).to(OUT.dtype.element_ty)
    tl.store(OUT + at, narrow)
    tl.store(BACK + at, narrow.to(tl.float32))


def test_an_access_past_the_end_is_found() -> None:
    x, out = torch.zeros(20), torch.zeros(16)

    with pytest.raises(InterpreterError, match="store out of bounds"):
        copy_kernel[(2,)](x, out, 20, STEP=16, BLOCK=16)


def test_two_programs_that_store_the_same_bytes_are_found() -> None:
    x, out = torch.zeros(32), torch.zeros(32)

    with pytest.raises(InterpreterError, match="race"):
        copy_kernel[(2,)](x, out, 32, STEP=8, BLOCK=16)


def test_a_sound_launch_passes() -> None:
    x, out = torch.arange(20.0), torch.zeros(20)

    copy_kernel[(2,)](x, out, 20, STEP=16, BLOCK=16)

    assert torch.equal(out, x)


def test_bfloat16_is_computed_in_float32_and_rounded_to_nearest() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(16, 16, generator=generator).bfloat16() for _ in range(2))
    c, total_of_two = torch.empty_like(a), torch.empty_like(a)
    product, total = torch.empty(16, 16), torch.empty(16, dtype=torch.bfloat16)

    arithmetic_kernel[(1,)](a, b, c, product, total_of_two, total)

    torch.testing.assert_close(product.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(total_of_two, a + b)
    assert torch.equal(c, (a.float() * 1.001).bfloat16())
    torch.testing.assert_close(total, a.float().sum(1).bfloat16(), rtol=2**-7, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_rounded_to_nearest_and_saturates(dtype: torch.dtype) -> None:
    values = np.concatenate([np.linspace(-500, 500, 1023), [1e9]]).astype(np.float32)
    x = torch.from_numpy(values)
    out, back = torch.empty(1024, dtype=dtype), torch.empty(1024)

    convert_kernel[(1,)](x, out, back, BLOCK=1024)

    largest = torch.finfo(dtype).max
    expected = x.clamp(-largest, largest).to(dtype).float()
    assert torch.equal(out.float(), expected)
    assert torch.equal(back, expected)
