"""Quantized products against float64 over the dequantized weight, and the packing itself."""

import pytest
import torch

from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.quantized import (
    QuantizedFormat,
    dequantize,
    pack_int4,
    quantize,
    quantized_linear,
)

BACKENDS: tuple[Backend, ...] = ("triton", "torch")
TOLERANCES = {torch.float16: 1e-3, torch.bfloat16: 6e-3}
STEPS = {"int4": 1 / 7, "int8": 1 / 127, "float8": 1 / 8}  # relative to a group's largest


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("format", ["int4", "int8", "float8"])
@pytest.mark.parametrize(
    ("rows", "outputs", "size", "splits"),
    [(0, 64, 128, 1), (1, 64, 128, None), (3, 100, 384, 2), (17, 64, 256, 1), (70, 65, 128, 1)],
)
def test_products_are_those_of_the_dequantized_weight(
    rows: int,
    outputs: int,
    size: int,
    splits: int | None,
    format: QuantizedFormat,
    dtype: torch.dtype,
    backend: Backend,
) -> None:
    weight = quantize(draw(outputs, size), format)
    x = draw(rows, size, seed=1).to(dtype)
    expected = x.double() @ dequantize(weight).double().T

    out = quantized_linear(x, weight, num_splits=splits, backend=backend)

    assert out.dtype == dtype
    assert rows == 0 or (out.double() - expected).norm() / expected.norm() < TOLERANCES[dtype]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("format", ["int8", "float8"])
def test_a_scale_per_output_is_enough_for_bytes(format: QuantizedFormat, backend: Backend) -> None:
    weight = quantize(draw(33, 256), format, per_group=False)
    x = draw(2, 300, seed=1).bfloat16()[:, :256]
    expected = x.double() @ dequantize(weight).double().T

    out = quantized_linear(x, weight, backend=backend)

    assert weight.scales.shape == (33, 1)
    assert (out.double() - expected).norm() / expected.norm() < TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("format", ["int4", "int8", "float8"])
def test_quantizing_errs_by_half_a_step(format: QuantizedFormat) -> None:
    weight = draw(20, 384)
    weight[3] = 0

    quantized = quantize(weight, format)

    largest = weight.view(20, 3, 128).abs().amax(2, keepdim=True)
    error = (dequantize(quantized) - weight).view(20, 3, 128).abs()
    assert (error <= largest * (STEPS[format] / 2 + 2**-8)).all()  # bfloat16 rounds the scale


def test_every_code_keeps_its_place() -> None:
    codes = torch.arange(-8, 8, dtype=torch.int8).repeat(16)[None].repeat(2, 1)
    codes[1] = codes[1].flip(0)

    words = pack_int4(codes)

    places = [(word, bits) for word in range(16) for bits in range(8)]
    for row in range(2):
        for word, bits in places:
            assert ((int(words[row, word]) >> 4 * bits) & 0xF) - 8 == codes[row, 16 * bits + word]


def test_a_weight_that_no_group_divides_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 128"):
        quantize(draw(4, 130), "int4")
    with pytest.raises(ValueError, match="per_group for int4"):
        quantize(draw(4, 128), "int4", per_group=False)
