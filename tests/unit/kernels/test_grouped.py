"""Quantized weights: what they stand for, and their native product against float64."""

import pytest
import torch

from umbel.kernels.grouped import GROUP, GroupedWeight, stack_rows
from umbel.kernels.linear import GroupedLinear, NativeLinear, can_group
from umbel.kernels.native import threads

if threads.is_available():
    from umbel.kernels.native.products import NativeProduct

ARITHMETIC = threads.arithmetic() if threads.is_available() else None

native_only = pytest.mark.skipif(ARITHMETIC is None, reason="needs numba and a CPU with AVX2")
codes_only = pytest.mark.skipif(
    ARITHMETIC in (None, "halves"), reason="codes are converted, or not multiplied, on this CPU"
)
bfloats_only = pytest.mark.skipif(ARITHMETIC != "bfloats", reason="is for bfloat16 arithmetic")
all_rows_only = pytest.mark.skipif(
    ARITHMETIC in (None, "bfloats"), reason="oneDNN multiplies many rows on this CPU"
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


@codes_only
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 8, 9, 31, 101])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("outputs", [48, 80])  # an odd number of panels, and more than at once
def test_the_native_product_is_the_exact_one_rounded_once(
    bits: int, has_bias: bool, outputs: int, num_rows: int
) -> None:
    weight = make_weight(bits, outputs, 96)
    bias = make_rows(1, outputs)[0] if has_bias else None
    x = make_rows(num_rows, 100)[:, 2:98]  # rows with a stride

    with torch.inference_mode():
        got = NativeProduct(weight, bias)(x)

    exact = x.double() @ weight.dequantized().double().T
    if bias is not None:
        exact += bias.double()
    assert got.shape == (num_rows, outputs)
    # Half a unit in the last place of bfloat16, and what float32 sums lose.
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=2e-5 * 96)


@bfloats_only
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


def dense(weight: GroupedWeight | torch.Tensor) -> torch.Tensor:
    return weight.dequantized() if isinstance(weight, GroupedWeight) else weight.float()


def half_weight(kind: str) -> GroupedWeight | torch.Tensor:
    """48 outputs of 224 inputs: whole panels, but neither blocks nor groups of panels are full."""
    if kind in ("4", "8"):
        return make_weight(int(kind), 48 + 32, 224)
    scale = {"bfloat16": 0.05, "tiny": 1e-30, "huge": 1e30}[kind]
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(80, 224, generator=generator) * scale).bfloat16()


@all_rows_only
@pytest.mark.parametrize("kind", ["4", "8", "bfloat16", "tiny", "huge"])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 5, 8, 19])
def test_native_products_err_at_most_like_weights_rounded_to_bfloat16(
    kind: str, num_rows: int
) -> None:
    weight, bias, x = half_weight(kind), make_rows(1, 80)[0], make_rows(num_rows, 230)[:, 3:227]

    got = NativeLinear(weight, bias, out_dtype=torch.float32)(x)

    exact = x.double() @ dense(weight).double().T + bias.double()
    rounded = x.double() @ dense(weight).bfloat16().double().T + bias.double()
    error, allowed = (got - exact).norm(), (rounded - exact).norm()
    if kind not in ("4", "8"):  # bfloat16 weights are exact: what rounding them anew would cost
        allowed = 2**-9 * exact.norm()
    assert got.shape == (num_rows, 80)
    assert error <= 1.5 * allowed


@all_rows_only
@pytest.mark.parametrize("kind", ["4", "8", "bfloat16"])
def test_natively_a_row_has_the_same_bits_alone_and_among_others(kind: str) -> None:
    layer, x = NativeLinear(half_weight(kind)), make_rows(23, 224)

    together = layer(x)

    for count in (1, 2, 3, 4, 7, 8, 11):
        assert torch.equal(layer(x[23 - count :]), together[23 - count :])


@all_rows_only
@pytest.mark.parametrize("factor", [1e-30, 1.0, 1e4, 1e30])
def test_natively_the_size_of_a_row_does_not_matter(factor: float) -> None:
    layer, x = NativeLinear(half_weight("4"), out_dtype=torch.float32), make_rows(2, 224)
    scaled = (x.float() * 2.0 ** round(torch.tensor(factor).log2().item())).bfloat16()

    got = layer(scaled) / 2.0 ** round(torch.tensor(factor).log2().item())

    assert torch.equal(got, layer(x))


@all_rows_only
def test_natively_one_huge_element_costs_the_others_little() -> None:
    weight = half_weight("4")
    x = make_rows(1, 224)
    x[0, 7] = 3e4

    got = NativeLinear(weight, out_dtype=torch.float32)(x)

    exact = x.double() @ dense(weight).double().T
    assert (got - exact).norm() <= 2**-9 * exact.norm()


@all_rows_only
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_natively_a_row_that_is_not_finite_stays_so_and_harms_no_other(value: float) -> None:
    layer, x = NativeLinear(half_weight("8")), make_rows(9, 224)
    clean = layer(x)
    x[4, 5] = value

    got = layer(x)

    assert not got[4].isfinite().any()
    assert torch.equal(got[[0, 1, 2, 3, 5, 6, 7, 8]], clean[[0, 1, 2, 3, 5, 6, 7, 8]])


@all_rows_only
def test_natively_rows_and_weights_of_zeros_give_the_bias() -> None:
    bias, x = make_rows(1, 32)[0], make_rows(3, 64)

    assert torch.equal(
        NativeLinear(half_weight("4"))(torch.zeros(1, 224).bfloat16()).norm(),
        torch.tensor(0.0).bfloat16(),
    )
    assert torch.equal(NativeLinear(torch.zeros(32, 64).bfloat16(), bias)(x), bias.expand(3, -1))


@native_only
@pytest.mark.parametrize(("row_bits", "most"), [(8, 0.012), (16, 3e-5)])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 12, 17, 101])
def test_rounded_rows_err_by_what_rounding_costs(
    bits: int, num_rows: int, row_bits: int, most: float
) -> None:
    weight, bias, x = make_weight(bits, 80, 224), make_rows(1, 80)[0], make_rows(num_rows, 230)

    got = integer_product(row_bits, weight, bias)(x[:, 3:227])  # rows with a stride

    exact = x[:, 3:227].double() @ weight.dequantized().double().T + bias.double()
    assert got.shape == (num_rows, 80)
    assert (got - exact).norm() <= most * exact.norm()


@native_only
@pytest.mark.parametrize("row_bits", [8, 16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_rows", [5, 15])
def test_rows_of_integers_are_multiplied_exactly(bits: int, num_rows: int, row_bits: int) -> None:
    """Sums of the largest codes with the largest inputs, which must not overflow."""
    largest = 15 if bits == 4 else -127
    weight = make_weight(bits, 32, 64)
    weight.codes.fill_(largest)
    steps = torch.full_like(weight.scales, 0.5)
    weight = GroupedWeight(weight.codes, steps, None if bits == 8 else steps)
    most = 127.0 if row_bits == 8 else 255.0 * 2**7  # what fills the bits that there are
    x = torch.full((num_rows, 64), most).bfloat16()
    x[1::2] = -most
    x[4, 5:] = 3 if row_bits == 8 else 255

    got = integer_product(row_bits, weight, None)(x)

    exact = x.double() @ weight.dequantized().double().T
    # Sums of 16 bits with 8 have up to 28, of which float32 holds 24.
    assert ((got - exact).abs() <= (bits + row_bits == 24) * 2.0**-23 * exact.abs()).all()


@native_only
@pytest.mark.parametrize("bits", [4, 8])
def test_in_16_bits_what_is_near_the_largest_of_its_group_is_exact(bits: int) -> None:
    generator = torch.Generator().manual_seed(5)
    x = (1 + torch.rand(13, 224, generator=generator)).bfloat16()  # 8 significant bits
    x *= 2.0 ** torch.randint(0, 8, x.shape, generator=generator)
    x *= (torch.randint(0, 2, x.shape, generator=generator) * 2 - 1).bfloat16()
    weight = make_weight(bits, 48, 224)
    ones = torch.ones_like(weight.scales)
    weight = GroupedWeight(weight.codes, ones, None if bits == 8 else -8 * ones)

    got = integer_product(16, weight, None)(x)

    exact, sizes = (
        a.double() @ b.double().T
        for a, b in ((x, weight.dequantized()), (x.abs(), weight.dequantized().abs()))
    )
    # With codes of 4 bits all sums are integers that float32 holds; of others it holds 24 bits.
    assert ((got - exact).abs() <= (bits == 8) * 2.0**-22 * sizes).all()


@native_only
@pytest.mark.parametrize("row_bits", [8, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_rounded_rows_have_the_same_bits_alone_and_among_others(bits: int, row_bits: int) -> None:
    layer, x = integer_product(row_bits, make_weight(bits, 80, 224), None), make_rows(103, 224)

    together = layer(x)

    for count in (1, 2, 3, 4, 7, 8, 11, 12, 13, 18, 99):
        assert torch.equal(layer(x[103 - count :]), together[103 - count :])


@native_only
@pytest.mark.parametrize("row_bits", [8, 16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_cannot_be_rounded_stays_not_finite_and_harms_no_other(
    bits: int, value: float, row_bits: int
) -> None:
    layer, x = integer_product(row_bits, make_weight(bits, 32, 224), None), make_rows(19, 224)
    clean = layer(x)
    x[4, 5] = value

    got = layer(x)

    others = [row for row in range(19) if row != 4]
    assert not got[4].isfinite().any()
    assert torch.equal(got[others], clean[others])


@native_only
@pytest.mark.parametrize("row_bits", [8, 16])
def test_rows_too_small_to_round_and_zeros_give_the_bias(row_bits: int) -> None:
    bias, x = make_rows(1, 80)[0], make_rows(3, 224) * 1e-36
    x[1] = 0

    got = integer_product(row_bits, make_weight(8, 80, 224), bias)(x)

    torch.testing.assert_close(got, bias.float().expand(3, -1), rtol=0, atol=1e-30)


def integer_product(
    row_bits: int, weight: GroupedWeight, bias: torch.Tensor | None
) -> NativeProduct:
    arithmetic: threads.Arithmetic = "int8s" if row_bits == 8 else "int16s"
    return NativeProduct(weight, bias, out_dtype=torch.float32, arithmetic=arithmetic)
