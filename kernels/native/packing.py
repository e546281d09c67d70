"""Weights in the panels that the native products read: 16 outputs side by side, input after input.

How a panel lies differs by arithmetic: see `half_code`, `bfloat_code`, `float_code`, `int16_code`,
`int8_code`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.native.threads import Arithmetic

LANES = 16  # outputs of a panel
# The largest weight that sums of half precision are sure to hold, with rows scaled to below 2.
_LARGEST = 128.0


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """scales: [panels, groups, 1 or 2, 16] float16, scales and then offsets; empty without codes.
    factor: what products are multiplied with, a power of two."""

    panels: Tensor
    scales: Tensor
    bits: int
    factor: float


def fits(shape: tuple[int, int]) -> bool:
    """Whether a weight of this shape can be cut into whole panels."""
    return shape[0] % LANES == 0 and shape[1] % GROUP == 0


def pack(weight: GroupedWeight | Tensor, arithmetic: Arithmetic) -> PackedWeight:
    """weight: [O, I], quantized (unless `arithmetic` is "floats"), or bfloat16 where it is "halves"
    or "floats". The tensors of the result may be views.

    Raises `ValueError` for shapes that do not fill panels.
    """
    outputs, inputs = weight.shape
    if not fits((outputs, inputs)):
        raise ValueError(
            f"a weight of shape {list(weight.shape)} does not fill panels; expected multiples of "
            f"{LANES} outputs and {GROUP} inputs"
        )
    if isinstance(weight, GroupedWeight):
        return _pack_codes(weight, arithmetic)
    assert arithmetic in ("halves", "floats"), "only these multiply weights without codes"
    if arithmetic == "halves":
        panels, factor = _pack_halves(weight)
    else:
        panels, factor = weight.view(-1, LANES, inputs).transpose(1, 2), 1.0
    return PackedWeight(panels, torch.empty(0), 16, factor)


def _pack_codes(weight: GroupedWeight, arithmetic: Arithmetic) -> PackedWeight:
    factor = 1.0
    if arithmetic == "halves":
        weight, factor = _limited(weight)
    bits = 4 if weight.codes.dtype == torch.uint8 else 8
    panels = _CODES[arithmetic, bits](weight.codes)
    return PackedWeight(panels, _pack_scales(weight), bits, factor)


def _limited(weight: GroupedWeight) -> tuple[GroupedWeight, float]:
    """The weight divided by a power of two, if it is that large; and that power."""
    offsets = torch.zeros(1) if weight.offsets is None else weight.offsets.float()
    largest_code = 128 if weight.offsets is None else 15
    largest = float((weight.scales.float().abs() * largest_code + offsets.abs()).max())
    if not _LARGEST < largest < math.inf:
        return weight, 1.0
    factor = 2.0 ** math.ceil(math.log2(largest / _LARGEST))
    return (
        GroupedWeight(
            weight.codes,
            (weight.scales / factor).half(),
            None if weight.offsets is None else (weight.offsets / factor).half(),
        ),
        factor,
    )


def _pack_halves(weight: Tensor) -> tuple[Tensor, float]:
    """[O, I] bfloat16 -> panels of pairs of halves, scaled to below `_LARGEST`, and the factor
    back. Exact but for weights 2**-20 times smaller than the largest."""
    outputs, inputs = weight.shape
    largest = float(weight.abs().max())
    factor = 1.0
    if 0 < largest < math.inf:
        factor = 2.0 ** (math.floor(math.log2(largest)) + 1) / _LARGEST
    halves = (weight.float() / factor).half().view(outputs // LANES, LANES, inputs // 2, 2)
    return halves.permute(0, 2, 1, 3), factor


def _pack_4bit_pairs(codes: Tensor) -> Tensor:
    """[O, I] of 0..15 -> panels: words of four codes, whose inputs are two apart."""
    octets = _join_nibbles(codes, torch.int16).view(-1, LANES, codes.shape[1] // GROUP, 4, 2, 2)
    return octets.permute(0, 2, 3, 1, 5, 4)  # panel, group, vector, output, input of pair, octet


def _pack_words(codes: Tensor) -> Tensor:
    """[O, I] of 0..15 -> panels: words of eight codes, whose inputs are four apart."""
    octets = _join_nibbles(codes, torch.int32).view(-1, LANES, codes.shape[1] // GROUP, 4, 4)
    return octets.permute(0, 2, 4, 1, 3)  # panel, group, word, output, octet


def _pack_quads(codes: Tensor) -> Tensor:
    """[O, I] of 0..15 -> panels: four inputs of each output, and in the upper nibbles the next."""
    octets = _join_nibbles(codes, torch.int32).view(-1, LANES, codes.shape[1] // 8, 4)
    return octets.permute(0, 2, 1, 3)  # panel, eight inputs, output, input


def _join_nibbles(codes: Tensor, word: torch.dtype) -> Tensor:
    """[O, I] of 0..15 -> [O, I / 2] bytes: the codes of one word, and above them the next word's.
    Words, not bytes: with steps of this size both reading and writing are vectors."""
    pairs = codes.view(word).view(len(codes), -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).view(torch.uint8)


def _pack_8bit_pairs(codes: Tensor) -> Tensor:
    """[O, I] of signed bytes -> panels: pairs of inputs, output by output."""
    outputs, inputs = codes.shape
    pairs = codes.view(outputs // LANES, LANES, inputs // 2, 2)
    return pairs.permute(0, 2, 1, 3)


def _pack_scales(weight: GroupedWeight) -> Tensor:
    """[panels, groups, 1 or 2, 16] float16: scales, then offsets."""
    kinds = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
    stacked = torch.stack(kinds).view(len(kinds), -1, LANES, weight.scales.shape[1])
    return stacked.permute(1, 3, 0, 2)


_CODES: dict[tuple[Arithmetic, int], Callable[[Tensor], Tensor]] = {
    ("halves", 4): _pack_4bit_pairs,
    ("halves", 8): _pack_8bit_pairs,
    ("bfloats", 4): _pack_4bit_pairs,
    ("bfloats", 8): _pack_8bit_pairs,
    ("int8s", 4): _pack_quads,
    ("int8s", 8): _pack_8bit_pairs,
    ("int16s", 4): _pack_words,
    ("int16s", 8): _pack_8bit_pairs,
}
