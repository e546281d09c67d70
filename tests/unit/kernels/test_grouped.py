"""Quantized weights: what they stand for, and their native product against float64."""

import pytest
import torch

from umbel.kernels.grouped import GROUP, GroupedWeight, stack_rows
from umbel.kernels.linear import GroupedLinear, can_group
from umbel.kernels.native import threads

native_only = pytest.mark.skipif(
    not threads.is_available(), reason="needs numba and a CPU with AVX-512 BF16"
)


def make_weight(bits: int, outputs: int, inputs: int) -> GroupedWeight:
    generator = torch.Generator().manual_seed(bits)
    scales = torch.rand(outputs, inputs // GROUP, generator=generator).half() / 10
    if bits == 8:
        codes = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        return GroupedWeight(codes, scales, None)
    codes = torch.randint(0, 16, (outputs, inputs), generator=generator, dtype=torch.uint8)
    return GroupedWeight(codes, scales, torch.randn(scales.shape, generator=generator).half())


def make_rows(count: int, width: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(1)).bfloat16()


def test_a_weight_is_code_times_scale_plus_offset_of_its_group() -> None:
    codes = torch.tensor([[0] * 31 + [15] + [1] * 32], dtype=torch.uint8)
    steps = torch.tensor([[0.5, 2.0]]).half(), torch.tensor([[-1.0, 3.0]]).half()

    dense = GroupedWeight(codes, *steps).dequantized()

    assert dense.tolist() == [[-1.0] * 31 + [6.5] + [5.0] * 32]


def test_codes_and_scales_must_fit_each_other() -> None:
    codes = torch.zeros(4, 64, dtype=torch.uint8)
    steps = torch.zeros(4, 2).half()

    with pytest.raises(ValueError, match=r"expected torch\.int8"):
        GroupedWeight(codes, steps, None)
    with pytest.raises(ValueError, match="float16"):
        GroupedWeight(codes, steps.float(), steps)
    with pytest.raises(ValueError, match="multiple of 32"):
        GroupedWeight(codes[:, :40], steps, steps)


def test_stacked_weights_keep_their_rows_and_kinds_do_not_mix() -> None:
    one, two = make_weight(4, 16, 64), make_weight(4, 32, 64)

    stacked = stack_rows([one, two])

    assert stacked is not None
    assert torch.equal(stacked.dequantized(), torch.cat([one.dequantized(), two.dequantized()]))
    assert stack_rows([one, make_weight(8, 16, 64)]) is None


def test_selected_rows_are_the_rows_of_the_weight() -> None:
    weight, idxs = make_weight(4, 16, 64), torch.tensor([3, 0, 15])

    assert torch.equal(weight.select_rows(idxs).dequantized(), weight.dequantized()[idxs])


@native_only
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 8, 9, 31])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_native_product_is_the_exact_one_rounded_once(
    bits: int, has_bias: bool, num_rows: int
) -> None:
    weight = make_weight(bits, 48, 96)
    bias = make_rows(1, 48)[0] if has_bias else None
    x = make_rows(num_rows, 100)[:, 2:98]  # rows with a stride

    with torch.inference_mode():
        got = GroupedLinear(weight, bias, max_native_rows=64)(x)

    exact = x.double() @ weight.dequantized().double().T
    if bias is not None:
        exact += bias.double()
    assert got.shape == (num_rows, 48)
    # Half a unit in the last place of bfloat16, and what float32 sums lose.
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=2e-5 * 96)


@native_only
@pytest.mark.parametrize("bits", [4, 8])
def test_above_the_limit_the_dense_form_computes_the_same_product(bits: int) -> None:
    weight, x = make_weight(bits, 32, 64), make_rows(9, 64)
    layer = GroupedLinear(weight, None, max_native_rows=8)

    with torch.inference_mode():
        many, few = layer(x), torch.cat([layer(x[:8]), layer(x[8:])])

    # The dense form rounds its weights to bfloat16.
    torch.testing.assert_close(many.double(), few.double(), rtol=2e-2, atol=0.2)
    assert not torch.equal(many, torch.zeros_like(many))


@native_only
def test_shapes_that_do_not_fill_panels_are_refused() -> None:
    assert can_group((32, 64))
    assert not can_group((40, 64))
    with pytest.raises(ValueError, match="panels"):
        GroupedLinear(make_weight(4, 40, 64), None, max_native_rows=8)
