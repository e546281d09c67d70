"""Rotary embeddings against rotations written out in Python floats, for every scaling."""

import math

import pytest
import torch

from umbel.kernels.rope import RopeKind, RopeSpec, RopeTable, apply_rope, yarn_attention_factor

DIM, THETA, CONTEXT = 16, 10_000.0, 4096
SPECS: dict[RopeKind, RopeSpec] = {
    "default": RopeSpec(dim=DIM, theta=THETA),
    "linear": RopeSpec(dim=DIM, theta=THETA, kind="linear", factor=4.0),
    "llama3": RopeSpec(dim=DIM, theta=THETA, kind="llama3", factor=8.0, original_context_len=256),
    "yarn": RopeSpec(
        dim=DIM,
        theta=THETA,
        kind="yarn",
        factor=4.0,
        original_context_len=512,
        attention_factor=yarn_attention_factor(4.0),
    ),
    "factors": RopeSpec(
        dim=DIM, theta=THETA, kind="factors", freq_factors=(1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 8.0)
    ),
}


def _frequency(spec: RopeSpec, pair: int) -> float:
    """Radians per position, from the formulas of the papers."""
    plain = spec.theta ** (-2 * pair / spec.dim)
    match spec.kind:
        case "default":
            return plain
        case "linear":
            return plain / spec.factor
        case "factors":
            return plain / spec.freq_factors[pair]
        case "llama3":
            wavelength = 2 * math.pi / plain
            if wavelength < spec.original_context_len / spec.high_freq_factor:
                return plain
            if wavelength > spec.original_context_len / spec.low_freq_factor:
                return plain / spec.factor
            smooth = spec.original_context_len / wavelength - spec.low_freq_factor
            smooth /= spec.high_freq_factor - spec.low_freq_factor
            return (1 - smooth) * plain / spec.factor + smooth * plain
        case "yarn":
            bounds = [
                spec.dim
                * math.log(spec.original_context_len / (turns * 2 * math.pi))
                / (2 * math.log(spec.theta))
                for turns in (spec.beta_fast, spec.beta_slow)
            ]
            low, high = max(math.floor(bounds[0]), 0), min(math.ceil(bounds[1]), spec.dim - 1)
            ramp = min(max((pair - low) / (high - low), 0.0), 1.0)
            return plain / spec.factor * ramp + plain * (1 - ramp)


def _rotated(spec: RopeSpec, head: list[float], position: int) -> list[float]:
    half = spec.dim // 2
    out = [0.0] * spec.dim
    for pair in range(half):
        angle = position * _frequency(spec, pair)
        cos, sin = (f(angle) * spec.attention_factor for f in (math.cos, math.sin))
        out[pair] = head[pair] * cos - head[pair + half] * sin
        out[pair + half] = head[pair + half] * cos + head[pair] * sin
    return out


@pytest.mark.parametrize("kind", SPECS)
def test_rows_are_rotated_by_the_formula_of_their_scaling(kind: RopeKind) -> None:
    spec = SPECS[kind]
    positions = [0, 1, 2, 63, 511, 2047, 2048, 4095]
    x = torch.randn(len(positions), 3, DIM, generator=torch.Generator().manual_seed(0))

    y = apply_rope(x, RopeTable(spec, CONTEXT).rotation(torch.tensor(positions)))

    exact = [
        [_rotated(spec, head, position) for head in row]
        for row, position in zip(x.tolist(), positions, strict=True)
    ]
    torch.testing.assert_close(y, torch.tensor(exact), atol=2e-6, rtol=0.0)


def test_the_scalings_of_the_test_differ_from_each_other() -> None:
    frequencies = {
        kind: [_frequency(spec, pair) for pair in range(8)] for kind, spec in SPECS.items()
    }

    assert len({tuple(values) for values in frequencies.values()}) == len(SPECS)
    ratios = [frequencies["default"][i] / frequencies["yarn"][i] for i in range(8)]
    assert ratios[0] == 1.0
    assert ratios[-1] == pytest.approx(4.0)
    assert any(1.0 < ratio < 4.0 for ratio in ratios)


def test_bfloat16_rows_are_rotated_in_float32_and_rounded_once() -> None:
    x = torch.randn(5, 2, DIM, generator=torch.Generator().manual_seed(0)).bfloat16()
    rotation = RopeTable(SPECS["default"], CONTEXT).rotation(torch.arange(100, 105))

    y = apply_rope(x, rotation)

    assert torch.equal(y, apply_rope(x.float(), rotation).bfloat16())


def test_strided_heads_are_rotated_like_contiguous_ones() -> None:
    fused = torch.randn(4, 7 * DIM, generator=torch.Generator().manual_seed(0))
    x = fused[:, : 5 * DIM].view(4, 5, DIM)
    rotation = RopeTable(SPECS["default"], CONTEXT).rotation(torch.arange(4))

    assert torch.equal(apply_rope(x, rotation), apply_rope(x.contiguous(), rotation))


def test_positions_may_repeat_and_come_in_any_order() -> None:
    table = RopeTable(SPECS["default"], CONTEXT)

    mixed = table.rotation(torch.tensor([3000, 5, 5, 0]))
    single = table.rotation(torch.tensor([5]))

    assert torch.equal(mixed.cos[1:2], single.cos)
    assert torch.equal(mixed.sin[2:3], single.sin)


def test_no_positions_give_an_empty_rotation() -> None:
    rotation = RopeTable(SPECS["default"], CONTEXT).rotation(torch.zeros(0, dtype=torch.int64))

    assert rotation.cos.shape == rotation.sin.shape == (0, 1, DIM)


def test_a_position_outside_the_context_raises() -> None:
    table = RopeTable(SPECS["default"], CONTEXT)

    with pytest.raises(IndexError, match="position 4096 is outside the context of 4096"):
        table.rotation(torch.tensor([4096]))


def test_yarn_without_rounding_of_its_bounds_interpolates_otherwise() -> None:
    rounded = SPECS["yarn"]
    exact = RopeSpec(
        dim=DIM, theta=THETA, kind="yarn", factor=4.0, original_context_len=512, truncate=False
    )
    positions = torch.tensor([50])

    first, second = (RopeTable(spec, 64).rotation(positions).sin for spec in (rounded, exact))

    assert not torch.allclose(first / rounded.attention_factor, second, atol=1e-3)


def test_the_temperature_of_yarn_grows_with_the_logarithm_of_the_factor() -> None:
    assert yarn_attention_factor(1.0) == 1.0
    assert yarn_attention_factor(math.e) == pytest.approx(1.1)
    assert yarn_attention_factor(math.e, mscale=0.5) == pytest.approx(1.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 15, "theta": 1e4}, "dim=15"),
        ({"dim": 16, "theta": 0.5}, "theta=0.5"),
        ({"dim": 16, "theta": 1e4, "kind": "linear", "factor": 0.0}, "factor=0.0"),
        ({"dim": 16, "theta": 1e4, "kind": "yarn", "factor": 2.0}, "original_context_len, got 0"),
        ({"dim": 16, "theta": 1e4, "kind": "factors", "freq_factors": (1.0,)}, "dim / 2 = 8"),
    ],
)
def test_impossible_rotations_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeSpec(**fields)  # type: ignore[arg-type]  # wrong values are the point
