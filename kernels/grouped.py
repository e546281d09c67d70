"""Quantized weights as model files store them: integer codes with a scale for each group of inputs.

Made by the loader, multiplied by `linear.GroupedLinear`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32  # inputs that share a scale


@dataclass(slots=True)
class GroupedWeight:
    """weight[o, i] = codes[o, i] * scales[o, i // 32] + offsets[o, i // 32].

    codes: [O, I], uint8 of 0..15 (with offsets) or int8 (without); scales, offsets: [O, I / 32]
    float16.
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor | None

    def __post_init__(self) -> None:
        outputs, inputs = self.codes.shape
        expected = torch.uint8 if self.offsets is not None else torch.int8
        if self.codes.dtype != expected or inputs % GROUP:
            raise ValueError(
                f"codes have shape {list(self.codes.shape)} and dtype {self.codes.dtype}; expected "
                f"{expected} and a multiple of {GROUP} inputs"
            )
        for steps in (self.scales, self.offsets):
            wanted = (outputs, inputs // GROUP)
            if steps is not None and (steps.shape != wanted or steps.dtype != torch.float16):
                raise ValueError(
                    f"scales have shape {list(steps.shape)} and dtype {steps.dtype}; expected "
                    f"{list(wanted)} and float16"
                )

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.codes.shape
        return outputs, inputs

    def copied(self, copy: Callable[[Tensor], Tensor]) -> "GroupedWeight":
        """The same weight, of copies that `copy` makes."""
        offsets = None if self.offsets is None else copy(self.offsets)
        return GroupedWeight(copy(self.codes), copy(self.scales), offsets)

    def dequantized(self) -> Tensor:
        """[O, I] float32."""
        outputs, inputs = self.shape
        groups = self.codes.float().view(outputs, inputs // GROUP, GROUP)
        groups.mul_(self.scales.float().unsqueeze(2))
        if self.offsets is not None:
            groups.add_(self.offsets.float().unsqueeze(2))
        return groups.view(outputs, inputs)

    @property
    def size_bytes(self) -> int:
        offset_bytes = 0 if self.offsets is None else self.offsets.nbytes
        return self.codes.nbytes + self.scales.nbytes + offset_bytes

    def select_rows(self, idxs: Tensor) -> "GroupedWeight":
        """The outputs `idxs` in that order. idxs: [n] int64. Raises `IndexError` for others."""
        offsets = None if self.offsets is None else self.offsets.index_select(0, idxs)
        return GroupedWeight(
            self.codes.index_select(0, idxs), self.scales.index_select(0, idxs), offsets
        )


def stack_rows(weights: Sequence[GroupedWeight]) -> GroupedWeight | None:
    """One weight with the outputs of all, in order; None if they are not of one kind."""
    if len({weight.codes.dtype for weight in weights}) > 1:
        return None
    offsets = [weight.offsets for weight in weights if weight.offsets is not None]
    return GroupedWeight(
        torch.cat([weight.codes for weight in weights]),
        torch.cat([weight.scales for weight in weights]),
        torch.cat(offsets) if offsets else None,
    )
