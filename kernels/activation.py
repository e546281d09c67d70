"""Gated MLP activations over the fused product of gate and up projections."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from umbel.kernels.native import threads

if threads.is_available():
    from umbel.kernels.native import rows

GatedActivation = Callable[[Tensor], Tensor]


def gated_silu(gate_up: Tensor) -> Tensor:
    """gate_up: [T, 2F], gate first -> silu(gate) * up, [T, F], contiguous, of the same dtype."""
    if (
        gate_up.dtype == torch.bfloat16
        and gate_up.ndim == 2
        and gate_up.shape[1] % 32 == 0
        and gate_up.is_contiguous()
        and gate_up.is_cpu
        and threads.is_available()
    ):
        return rows.gated_silu_rows(gate_up)
    return gated_silu_plain(gate_up)


def gated_silu_plain(gate_up: Tensor) -> Tensor:
    """The twin in torch."""
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
