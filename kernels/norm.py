"""RMS norms (https://arxiv.org/abs/1910.07467), computed in float32, with results in x's dtype.

Weights arrive in float32 and complete: where `w` is stored for a factor `1 + w`, the one is added
at load.
"""

import torch
from torch import Tensor
from torch.nn import functional

from umbel.kernels.native import threads

if threads.is_available():
    from umbel.kernels.native import rows


class RMSNorm:
    """`norm(x)`: x [T, E] -> x / rms(x) * weight, [T, E], of x's dtype."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """weight: [E] float32; eps is added to the mean square."""
        if weight.ndim != 1 or weight.dtype != torch.float32:
            raise ValueError(
                f"norm weight has shape {list(weight.shape)} and dtype {weight.dtype}; "
                f"expected [E] float32"
            )
        self._weight = weight.contiguous()
        self._shape = (weight.shape[0],)
        self._eps = eps
        self._native = weight.shape[0] % 16 == 0 and threads.is_available()
        self._eps_bits = threads.float_bits(eps)

    def __call__(self, x: Tensor) -> Tensor:
        if self._native and _is_native(x):
            return rows.norm_rows(x, self._weight, self._eps_bits, None)
        return self.plain(x)

    def add(self, x: Tensor, added: Tensor) -> Tensor:
        """x [T, E] becomes x + added, in place, and is normed: [T, E]."""
        if self._native and _is_native(x) and _is_native(added):
            return rows.norm_rows(x, self._weight, self._eps_bits, added)
        return self.plain(x.add_(added))

    def plain(self, x: Tensor) -> Tensor:
        """The twin in torch."""
        # .float() and .to() return their argument when there is nothing to convert.
        y = functional.rms_norm(x.float(), self._shape, self._weight, self._eps)
        return y.to(x.dtype)


def _is_native(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.ndim == 2 and x.stride(1) == 1 and x.is_cpu


class HeadNorm:
    """`norm(x)`: x [T, H, D] -> each head's row / its rms * that head's weight, of x's dtype.

    One call normalizes the queries and keys of a layer together.
    """

    def __init__(
        self,
        query_weight: Tensor,
        key_weight: Tensor,
        *,
        num_queries: int,
        num_keys: int,
        eps: float,
    ) -> None:
        """Weights: [D] float32 each, for the first num_queries and the next num_keys heads of x."""
        if query_weight.ndim != 1 or query_weight.shape != key_weight.shape:
            raise ValueError(
                f"head norm weights have shapes {list(query_weight.shape)} and "
                f"{list(key_weight.shape)}; expected [D] twice"
            )
        rows = query_weight.expand(num_queries, -1), key_weight.expand(num_keys, -1)
        self._weight = torch.cat(rows).float()  # [H, D]
        self._shape = (query_weight.shape[0],)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        y = functional.rms_norm(x.float(), self._shape, None, self._eps)
        return y.mul_(self._weight).to(x.dtype)
