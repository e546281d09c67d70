"""Gated MLP activations over the fused product of gate and up projections."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

GatedActivation = Callable[[Tensor], Tensor]


def gated_silu(gate_up: Tensor) -> Tensor:
    """gate_up: [T, 2F], gate first -> silu(gate) * up, [T, F], contiguous, of the same dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def gated_gelu_tanh(gate_up: Tensor) -> Tensor:
    """gate_up: [T, 2F], gate first -> gelu(gate) * up with the tanh form of gelu, [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


GATED_ACTIVATIONS: dict[str, GatedActivation] = {
    "silu": gated_silu,
    "gelu_tanh": gated_gelu_tanh,
}
