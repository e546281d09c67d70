"""`quantize="int8"`: products whose rows are rounded to 8 bits, and how exact they are."""

import logging

import torch
from torch import Tensor

from umbel.kernels.grouped import GROUP, GroupedWeight
from umbel.kernels.linear import Linear, NativeLinear, can_group
from umbel.kernels.native import threads
from umbel.kernels.native.memory import WeightMemory
from umbel.runtime.errors import InvalidRequest

logger = logging.getLogger(__name__)

_NUM_MEASURED_ROWS = 16
_MAX_MEASURED_OUTPUTS = 4096


def check_quantize(quantize: str, dtype: torch.dtype, device: str) -> None:
    """Raises `InvalidRequest` where products of integers cannot be had."""
    if quantize == "off":
        return
    if device != "cpu" or dtype != torch.bfloat16:
        raise InvalidRequest(
            f"quantize={quantize!r} works on a CPU with dtype bfloat16, not on {device} with "
            f"{str(dtype).removeprefix('torch.')}",
            param="quantize",
        )
    if not threads.is_available():
        raise InvalidRequest(
            f"quantize={quantize!r} needs numba and a CPU with AVX2, which are not both here (or "
            "UMBEL_NATIVE=0 is set)",
            param="quantize",
        )


class Int8Layers:
    """Makes the layers of a model, and notes how far their products are from the exact ones."""

    def __init__(self, memory: WeightMemory) -> None:
        self._memory = memory
        self._errors: list[float] = []
        self._num_plain = 0

    def make(
        self, weight: GroupedWeight | Tensor, bias: Tensor | None, out_dtype: torch.dtype
    ) -> Linear | None:
        """weight: [O, I], as the file has it; None if its shape does not fill panels."""
        if not can_group(weight.shape):
            self._num_plain += 1
            return None
        grouped = weight if isinstance(weight, GroupedWeight) else round_weight(weight)
        layer = NativeLinear(
            grouped, bias, out_dtype=out_dtype, memory=self._memory, arithmetic="int8s"
        )
        if len(self._errors) < 4:  # the products of one layer stand for those of all
            self._errors.append(_error(layer, weight, bias))
        return layer

    def report(self) -> None:
        """Say what it costs: a warning, since outputs are others than without."""
        if self._errors:
            logger.warning(
                "int8: products of the first layer err by %s %% of their norm, against float32",
                ", ".join(f"{100 * error:.2f}" for error in self._errors),
            )
        if self._num_plain:
            logger.info("int8: %d products have shapes that stay in bfloat16", self._num_plain)


def round_weight(weight: Tensor) -> GroupedWeight:
    """[O, I] floating -> signed bytes with a scale for each group of 32 inputs."""
    outputs, inputs = weight.shape
    groups = weight.float().view(outputs, inputs // GROUP, GROUP)
    smallest = torch.finfo(torch.float16).tiny  # below, scales would have fewer bits
    scales = (groups.abs().amax(2) / 127).clamp(min=smallest).half()
    codes = (groups / scales.float().unsqueeze(2)).round().clamp(-127, 127).to(torch.int8)
    return GroupedWeight(codes.view(outputs, inputs), scales, None)


def _error(layer: Linear, weight: GroupedWeight | Tensor, bias: Tensor | None) -> float:
    """Relative to the norm of the exact product of normal rows, bias apart."""
    idxs = torch.arange(min(weight.shape[0], _MAX_MEASURED_OUTPUTS))
    if isinstance(weight, GroupedWeight):
        dense = weight.select_rows(idxs).dequantized()
    else:
        dense = weight[idxs].float()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_NUM_MEASURED_ROWS, weight.shape[1], generator=generator).bfloat16()
    exact = x.float() @ dense.T
    got = layer(x)[:, : len(idxs)].float()
    if bias is not None:
        got = got - bias[idxs].float()
    return float((got - exact).norm() / exact.norm())
