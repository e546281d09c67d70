"""Rotary position embedding in the half-split layout of Hugging Face, with its scalings.

Frequencies and tables are computed in float64 and kept in float32; the rotation is done in float32.
Methods: RoPE https://arxiv.org/abs/2104.09864, YaRN https://arxiv.org/abs/2309.00071, and the
frequency bands of Llama 3.1.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from umbel.kernels.native import threads

if threads.is_available():
    from umbel.kernels.native import rows

RopeKind = Literal["default", "linear", "llama3", "yarn", "factors"]
_FIRST_ROWS = 2048  # positions computed at first; grown by doubling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """One rotation of all `dim` values of a head. Fields not named by `kind` are not used.

    linear: factor. llama3: factor, low_freq_factor, high_freq_factor, original_context_len.
    yarn: factor, original_context_len, beta_fast, beta_slow, truncate, attention_factor.
    factors: freq_factors, one divisor per frequency.
    """

    dim: int
    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context_len: int = 0  # tokens
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # multiplies cos and sin
    freq_factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.dim < 2 or self.dim % 2:
            raise ValueError(
                f"rope dim={self.dim} is not valid: expected an even number of at least 2"
            )
        if not self.theta > 1.0 or not self.factor > 0.0:
            raise ValueError(
                f"rope theta={self.theta}, factor={self.factor}: expected theta > 1 and factor > 0"
            )
        if self.kind in ("llama3", "yarn") and self.original_context_len < 1:
            raise ValueError(
                f"{self.kind} rope needs original_context_len, got {self.original_context_len}"
            )
        if self.kind == "factors" and len(self.freq_factors) != self.dim // 2:
            raise ValueError(
                f"rope has {len(self.freq_factors)} frequency factors; "
                f"expected dim / 2 = {self.dim // 2}"
            )


class Rotation(NamedTuple):
    """cos, sin: [T, 1, D] float32; the first half of sin carries the minus sign of the rotation."""

    cos: Tensor
    sin: Tensor


class RopeTable:
    """cos and sin of every position, filled as far as positions were asked for."""

    def __init__(self, spec: RopeSpec, context_len: int) -> None:
        """context_len: tokens; the table never grows past it."""
        self.spec = spec
        self._context_len = context_len
        self._table = rotation_table(spec, min(_FIRST_ROWS, context_len))

    def rotation(self, positions: Tensor) -> Rotation:
        """positions: [T] int64 -> the rotation of T rows, for `apply_rope` in every layer.

        Raises `IndexError` for a position outside the context.
        """
        if positions.numel():
            self._cover(int(positions.max()))
        cos, sin = (
            self._table.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
        )  # [T, 1, D/2]
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))

    def _cover(self, position: int) -> None:
        if position < self._table.shape[0]:
            return
        if position >= self._context_len:
            raise IndexError(
                f"position {position} is outside the context of {self._context_len} tokens"
            )
        rows = self._table.shape[0]
        while rows <= position:
            rows *= 2
        self._table = rotation_table(self.spec, min(rows, self._context_len))


def rotation_table(spec: RopeSpec, count: int) -> Tensor:
    """Cosines, then sines, of the positions 0 .. count - 1: [count, D] float32."""
    angles = torch.arange(count, dtype=torch.float64)[:, None] * inverse_frequencies(spec)
    both = torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(spec.attention_factor)
    return both.float()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """`apply_rope` in place where that is faster. x: [T, H, D], whose heads are contiguous."""
    if (
        x.dtype == torch.bfloat16
        and x.is_cpu
        and x.stride(1) == x.shape[2]
        and threads.is_available()
    ):
        rows.rotate_rows(x, rotation.cos, rotation.sin)
        return x
    return apply_rope(x, rotation)


def apply_rope(x: Tensor, rotation: Rotation) -> Tensor:
    """x: [T, H, D] -> the rows rotated by their positions, [T, H, D], contiguous, of x's dtype."""
    rows = x.float()
    swapped = rows.roll(rows.shape[-1] // 2, dims=-1)  # halves exchanged
    return (rows * rotation.cos).addcmul_(swapped, rotation.sin).to(x.dtype)


def inverse_frequencies(spec: RopeSpec) -> Tensor:
    """Radians per position of each pair of dimensions: [D/2] float64."""
    exponents = torch.arange(0, spec.dim, 2, dtype=torch.float64) / spec.dim
    plain = spec.theta**-exponents
    match spec.kind:
        case "default":
            return plain
        case "linear":
            return plain / spec.factor
        case "llama3":
            return _llama3(spec, plain)
        case "yarn":
            return _yarn(spec, plain)
        case "factors":
            return plain / torch.tensor(spec.freq_factors, dtype=torch.float64)


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature as a factor of cos and sin: 0.1 * mscale * ln(factor) + 1."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    turns = spec.original_context_len * plain / (2 * math.pi)  # in the original context
    span = spec.high_freq_factor - spec.low_freq_factor
    keep = ((turns - spec.low_freq_factor) / span).clamp(0.0, 1.0)
    return keep * plain + (1.0 - keep) * plain / spec.factor


def _yarn(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Dimensions that turn often in the original context are kept, the slow ones interpolated."""

    def dimension_of(turns: float) -> float:
        waves = spec.original_context_len / (turns * 2 * math.pi)
        return spec.dim * math.log(waves) / (2 * math.log(spec.theta))

    low, high = dimension_of(spec.beta_fast), dimension_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, spec.dim - 1.0)
    if low == high:
        high += 0.001  # a step, without dividing by zero
    ramp = (torch.arange(spec.dim // 2, dtype=torch.float64) - low) / (high - low)
    interpolate = ramp.clamp(0.0, 1.0)
    return interpolate * plain / spec.factor + (1.0 - interpolate) * plain
