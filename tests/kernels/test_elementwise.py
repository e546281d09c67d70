"""Norm, rotation with the write to the pool, gating and copies, against float64."""

import pytest
import torch
from torch import Tensor

from umbel.kernels.rope import RopeSpec, RopeTable, apply_rope
from umbel.kernels.triton.attention import KVScales
from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.elementwise import (
    ActivationKind,
    HeadNormWeights,
    add_rms_norm,
    gated_activation,
    rotate_and_write,
)
from umbel.kernels.triton.slot_copy import copy_slots, gather_slots, scatter_slots

BACKENDS: tuple[Backend, ...] = ("triton", "torch")
TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
both_backends = pytest.mark.parametrize("backend", BACKENDS)
all_dtypes = pytest.mark.parametrize("dtype", TOLERANCES)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relative_error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@both_backends
@all_dtypes
@pytest.mark.parametrize(("rows", "size"), [(0, 64), (1, 576), (5, 100), (3, 4096)])
def test_norm_adds_the_residual_and_keeps_the_sum(
    rows: int, size: int, dtype: torch.dtype, backend: Backend
) -> None:
    x, residual = draw(rows, size, dtype=dtype), draw(rows, size, dtype=dtype, seed=1)
    weight = draw(size, seed=2)
    total = (x.double() + residual.double()).to(dtype)
    mean = total.double().pow(2).mean(1, keepdim=True)
    expected = total.double() * (mean + 1e-5).rsqrt() * weight.double()

    out = add_rms_norm(x, residual, weight, 1e-5, backend=backend)

    assert torch.equal(residual, total)
    assert rows == 0 or relative_error(out, expected) < TOLERANCES[dtype]


@both_backends
def test_norm_without_residual_reads_rows_of_a_wider_tensor(backend: Backend) -> None:
    x, weight = draw(4, 96)[:, :48], draw(48, seed=1)
    expected = x.double() * (x.double().pow(2).mean(1, keepdim=True) + 1e-6).rsqrt()

    out = add_rms_norm(x, None, weight, 1e-6, backend=backend)

    assert relative_error(out, expected * weight.double()) < 1e-6


@both_backends
@all_dtypes
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("token_major", [False, True])
def test_rotation_writes_keys_and_values_to_their_slots(
    token_major: bool, has_norm: bool, dtype: torch.dtype, backend: Backend
) -> None:
    rows, heads, kv_heads, dim = 5, 6, 2, 40
    qkv = draw(rows, (heads + 2 * kv_heads) * dim, dtype=dtype)
    positions = torch.tensor([0, 7, 3, 100, 1], dtype=torch.int32)
    slots = torch.tensor([4, 0, -1, 9, 2], dtype=torch.int32)
    norm = HeadNormWeights(draw(dim, seed=1), draw(dim, seed=2), 1e-6) if has_norm else None
    pools = [_empty_pool(10, kv_heads, dim, dtype, token_major) for _ in range(2)]
    ropes = RopeTable(RopeSpec(dim=dim, theta=10000.0), 128)
    expected = _rotated_as_on_the_cpu(qkv, positions, ropes, heads, kv_heads, norm)

    q = rotate_and_write(
        qkv, slots, *pools, table=_table(dim), positions=positions, head_norm=norm, backend=backend
    )

    tolerance = TOLERANCES[dtype]
    assert relative_error(q, expected[:, :heads].double()) < tolerance
    written = [4, 0, 9, 2]
    kept = expected[[0, 1, 3, 4]].double()
    assert relative_error(pools[0][written], kept[:, heads : heads + kv_heads]) < tolerance
    assert torch.equal(pools[1][written], qkv.view(rows, -1, dim)[[0, 1, 3, 4], heads + kv_heads :])
    assert all(pool[[1, 3, 5, 6, 7, 8]].isnan().all() for pool in pools)


def _table(dim: int) -> Tensor:
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    angles = torch.arange(128, dtype=torch.float64)[:, None] * 10000.0**-exponents
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


def _empty_pool(slots: int, heads: int, dim: int, dtype: torch.dtype, token_major: bool) -> Tensor:
    if token_major:
        return torch.full((slots, heads, dim), torch.nan, dtype=dtype)
    return torch.full((heads, slots, dim), torch.nan, dtype=dtype).transpose(0, 1)


def _rotated_as_on_the_cpu(
    qkv: Tensor,
    positions: Tensor,
    ropes: RopeTable,
    heads: int,
    kv_heads: int,
    norm: HeadNormWeights | None,
) -> Tensor:
    qk = qkv.view(len(qkv), -1, ropes.spec.dim)[:, : heads + kv_heads]
    if norm is not None:
        weights = torch.cat((norm.q.expand(heads, -1), norm.k.expand(kv_heads, -1)))
        mean = qk.double().pow(2).mean(2, keepdim=True)
        qk = (qk.double() * (mean + norm.eps).rsqrt() * weights).to(qkv.dtype)
    return apply_rope(qk, ropes.rotation(positions.long()))


@both_backends
def test_an_fp8_pool_gets_saturated_values_over_their_scale(backend: Backend) -> None:
    qkv = draw(3, 4 * 32, dtype=torch.bfloat16) * 30
    scales = KVScales(torch.tensor([0.5]), torch.tensor([0.125]))
    pools = [torch.zeros(4, 1, 32).to(torch.float8_e4m3fn) for _ in range(2)]
    positions = torch.arange(3, dtype=torch.int32)

    rotate_and_write(
        qkv,
        positions,
        *pools,
        table=None,
        positions=positions,
        kv_scales=scales,
        backend=backend,
    )

    heads = qkv.view(3, 4, 32).float()
    for pool, values, scale in ((pools[0], heads[:, 2], 0.5), (pools[1], heads[:, 3], 0.125)):
        expected = (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        assert torch.equal(pool[:3, 0].float(), expected.float())
    assert pools[1].float().abs().max() == 448


@both_backends
@all_dtypes
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1536), (3, 77), (2, 5000)])
def test_gating_is_that_of_float64(
    rows: int, size: int, kind: ActivationKind, dtype: torch.dtype, backend: Backend
) -> None:
    gate_up = draw(rows, 2 * size, dtype=dtype) * 4
    gate, up = gate_up.double().chunk(2, dim=1)
    active = (
        torch.nn.functional.silu(gate)
        if kind == "silu"
        else torch.nn.functional.gelu(gate, approximate="tanh")
    )

    out = gated_activation(gate_up, kind, backend=backend)

    assert rows == 0 or relative_error(out, active * up) < TOLERANCES[dtype]


@both_backends
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32])
def test_copies_read_all_slots_before_they_write_any(dtype: torch.dtype, backend: Backend) -> None:
    pool = draw(3, 8, 2, 36).to(dtype)
    before = pool.clone()

    copy_slots(
        pool,
        torch.tensor([0, 1, 5], dtype=torch.int32),
        torch.tensor([1, 0, 7], dtype=torch.int32),
        backend=backend,
    )

    order = torch.tensor([1, 0, 2, 3, 4, 5, 6, 5])
    assert torch.equal(pool.view(torch.uint8), before.view(torch.uint8)[:, order])


@both_backends
def test_slots_return_from_another_tier_as_they_left(backend: Backend) -> None:
    pool = draw(2, 6, 4, 320)
    slots = torch.tensor([5, 0, 2], dtype=torch.int32)

    away = gather_slots(pool, slots, backend=backend)
    expected = pool.clone()
    pool[:, slots.long()] = torch.nan
    scatter_slots(away, pool, slots, backend=backend)

    assert torch.equal(pool, expected)
    assert gather_slots(pool, slots[:0], backend=backend).shape == (2, 0, 4, 320)
