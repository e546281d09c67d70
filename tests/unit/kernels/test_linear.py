"""Packed linear layers against the plain twin, and what both refuse."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from umbel.kernels.linear import Linear, PackedLinear, PlainLinear, can_pack, make_linear

DTYPES = [torch.float32, torch.bfloat16]


def _weights(dtype: torch.dtype, *, has_bias: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 72, generator=generator).to(dtype)
    bias = torch.randn(40, generator=generator).to(dtype) if has_bias else None
    return weight, bias


def _exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = x.double() @ weight.double().T
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 16, 17, 64, 65, 200])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_layer_gives_what_the_plain_twin_gives(
    dtype: torch.dtype, has_bias: bool, num_rows: int
) -> None:
    weight, bias = _weights(dtype, has_bias=has_bias)
    x = torch.randn(num_rows, 72, generator=torch.Generator().manual_seed(1)).to(dtype)

    with torch.inference_mode():
        packed, plain = make_linear(weight, bias)(x), PlainLinear(weight, bias)(x)

    exact = _exact(x, weight, bias)
    tolerance = 1e-4 if dtype is torch.float32 else 0.2  # half a unit in the last place at 32
    assert packed.shape == plain.shape == (num_rows, 40)
    assert packed.dtype == plain.dtype == dtype
    torch.testing.assert_close(packed.double(), exact, atol=tolerance, rtol=0.0)
    torch.testing.assert_close(plain.double(), exact, atol=tolerance, rtol=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_a_stride_are_read_correctly(dtype: torch.dtype) -> None:
    weight, _ = _weights(dtype, has_bias=False)
    wide = torch.randn(9, 200, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = wide[:, 50:122]

    with torch.inference_mode():
        y = make_linear(weight)(x)
        of_copy = make_linear(weight)(x.contiguous())

    assert torch.equal(y, of_copy)


def test_float32_can_be_packed_here_and_float64_never() -> None:
    assert can_pack(torch.float32)
    assert not can_pack(torch.float64)
    assert isinstance(make_linear(torch.ones(4, 4)), PackedLinear)
    assert isinstance(make_linear(torch.ones(4, 4, dtype=torch.float64)), PlainLinear)


def test_packing_can_be_declined() -> None:
    assert isinstance(make_linear(torch.ones(4, 4), pack=False), PlainLinear)


def test_a_packed_layer_does_not_keep_the_plain_weight_alive() -> None:
    weight = torch.ones(64, 64)
    alive = weakref.ref(weight)

    layer = PackedLinear(weight)
    del weight
    gc.collect()

    assert alive() is None
    assert layer(torch.ones(1, 64)).tolist() == [[64.0] * 64]


@pytest.mark.parametrize("make", [PlainLinear, PackedLinear])
def test_sizes_are_those_of_the_weight_and_bias(make: type[PlainLinear | PackedLinear]) -> None:
    layer: Linear = make(torch.ones(6, 10), torch.ones(6))

    assert (layer.out_features, layer.in_features) == (6, 10)
    assert layer.weight_bytes == 4 * (6 * 10 + 6)


@pytest.mark.parametrize("make", [PlainLinear, PackedLinear])
@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.ones(3), None, r"weight has shape \[3\]"),
        (torch.ones(3, 3, dtype=torch.int32), None, "torch.int32"),
        (torch.ones(3, 4), torch.ones(4), r"bias has shape \[4\]"),
        (torch.ones(3, 4), torch.ones(3, dtype=torch.bfloat16), "bfloat16"),
    ],
)
def test_unfitting_weights_are_refused(
    make: type[PlainLinear | PackedLinear],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        make(weight, bias)


def test_a_dtype_that_cannot_be_packed_is_refused_by_the_packed_layer() -> None:
    with pytest.raises(ValueError, match=r"float64 .* cannot be packed"):
        PackedLinear(torch.ones(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("pack", [False, True])
def test_rows_of_another_width_raise(pack: bool) -> None:
    layer = make_linear(torch.ones(3, 4), pack=pack)

    with torch.inference_mode(), pytest.raises(RuntimeError):
        layer(torch.ones(2, 5))


_MANY_SHAPES = """
import random, resource, sys, torch
from umbel.kernels.linear import bound_shape_caches, make_linear

def resident_mib():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)

bound_shape_caches()
torch.set_num_threads(1)
with torch.inference_mode():
    layers = [make_linear(torch.zeros(128 * n, 128)) for n in (1, 2)]
    x = torch.zeros(512, 128)
    [layer(x) for layer in layers]
    before = resident_mib()
    for num_rows in random.Random(0).sample(range(1, 512), 400):
        [layer(x[:num_rows]) for layer in layers]
    print(resident_mib() - before)
"""


def test_memory_does_not_grow_with_the_number_of_row_counts() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _MANY_SHAPES], capture_output=True, text=True, check=True
    )

    assert float(told.stdout) < 40
