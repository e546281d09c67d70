"""Native norms, activation, rotation and writes give what their torch twins give, bit for bit or
within one rounding.
"""

import pytest
import torch

from umbel.kernels.activation import gated_silu, gated_silu_plain
from umbel.kernels.kv_cache import KVCache
from umbel.kernels.norm import RMSNorm
from umbel.kernels.rope import RopeSpec, RopeTable, apply_rope, rotate

COUNTS = [0, 1, 5, 64]


def rows(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("width", [16, 576, 580])
def test_a_norm_with_a_sum_gives_what_sum_and_norm_give(count: int, width: int) -> None:
    norm = RMSNorm(torch.rand(width, generator=torch.Generator().manual_seed(1)), 1e-5)
    x, added = rows(count, width), rows(count, width, 2)
    wanted_x = x + added

    got = norm.add(x, added)

    assert torch.equal(x, wanted_x)
    torch.testing.assert_close(got, norm.plain(wanted_x), rtol=2**-7, atol=0.0)
    torch.testing.assert_close(norm(x), got, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("width", [16, 1536, 20])
def test_the_gated_activation_gives_what_its_twin_gives(count: int, width: int) -> None:
    x = rows(count, 2 * width) * 4
    x[:1, :3] = torch.tensor([-200.0, 200.0, torch.nan])

    got = gated_silu(x)

    torch.testing.assert_close(got, gated_silu_plain(x), rtol=2**-7, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dim", [8, 64])
def test_rotating_in_place_gives_what_the_twin_gives(count: int, dim: int) -> None:
    rotation = RopeTable(RopeSpec(dim=dim, theta=1e4), 4096).rotation(torch.arange(count) * 37)
    fused = rows(count, 5 * dim).view(count, 5, dim)
    untouched, wanted = fused[:, 4:].clone(), apply_rope(fused[:, :4], rotation)

    got = rotate(fused[:, :4], rotation)

    torch.testing.assert_close(got, wanted, rtol=2**-7, atol=2**-9)
    assert torch.equal(fused[:, 4:], untouched)


@pytest.mark.parametrize("written", [None, [0, 3, 4]])
def test_written_rows_are_found_in_their_slots_and_nowhere_else(written: list[int] | None) -> None:
    cache = KVCache(num_layers=2, num_kv_heads=3, num_slots=40, head_dim=32, dtype=torch.bfloat16)
    cache.k.zero_()
    cache.v.zero_()
    fused = rows(6, 9 * 32).view(6, 9, 32)
    k, v = fused[:, 3:6], fused[:, 6:]
    chosen = list(range(6)) if written is None else written
    slots = torch.tensor([39, 0, 7, 20, 21, 5][: len(chosen)])

    cache.write(1, k, v, None if written is None else torch.tensor(written), slots)

    assert torch.equal(cache.k[1][:, slots], k[chosen].transpose(0, 1))
    assert torch.equal(cache.v[1][:, slots], v[chosen].transpose(0, 1))
    assert int(cache.k.any(-1).sum()) == int(cache.v.any(-1).sum()) == 3 * len(chosen)
