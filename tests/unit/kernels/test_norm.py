"""RMS norms against float64."""

import pytest
import torch

from umbel.kernels.norm import HeadNorm, RMSNorm

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}  # relative


def _exact(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows = x.double()
    return rows / (rows.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_rows_are_divided_by_their_root_mean_square(dtype: torch.dtype, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (30 * torch.randn(num_rows, 96, generator=generator)).to(dtype)
    weight = torch.randn(96, generator=generator)

    y = RMSNorm(weight, 1e-5)(x)

    assert y.dtype == dtype
    expected = _exact(x, weight, 1e-5)
    torch.testing.assert_close(y.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)


def test_a_row_of_zeros_stays_zero() -> None:
    assert RMSNorm(torch.ones(4), 1e-5)(torch.zeros(1, 4)).tolist() == [[0.0] * 4]


def test_eps_counts_for_small_rows() -> None:
    y = RMSNorm(torch.ones(4), 1.0)(torch.full((1, 4), 1e-3))

    torch.testing.assert_close(y, torch.full((1, 4), 1e-3), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_and_keys_are_normalized_with_their_own_weights(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(5, 8 * 16, generator=generator).to(dtype)
    x = fused[:, : 6 * 16].view(5, 6, 16)  # as in the decoder: a part of the fused product
    query, key = torch.randn(16, generator=generator), torch.randn(16, generator=generator)

    y = HeadNorm(query, key, num_queries=4, num_keys=2, eps=1e-6)(x)

    assert y.dtype == dtype
    expected = torch.cat((_exact(x[:, :4], query, 1e-6), _exact(x[:, 4:], key, 1e-6)), dim=1)
    torch.testing.assert_close(y.double(), expected, rtol=TOLERANCE[dtype], atol=1e-6)


def test_weights_of_another_shape_or_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[E\] float32"):
        RMSNorm(torch.ones(2, 2), 1e-5)
    with pytest.raises(ValueError, match="bfloat16"):
        RMSNorm(torch.ones(2, dtype=torch.bfloat16), 1e-5)
    with pytest.raises(ValueError, match=r"\[4\] and \[6\]"):
        HeadNorm(torch.ones(4), torch.ones(6), num_queries=1, num_keys=1, eps=1e-5)
