"""Where the keys and values of a step go, and what its rows see: made by the runner, called by the
decoder in every layer.
"""

from torch import Tensor

from umbel.kernels.attention import AttentionStep
from umbel.kernels.kv_cache import KVCache


class StepContext:
    """What the decoder knows of a step: see `AttentionContext` in `models.decoder`."""

    def __init__(
        self, cache: KVCache, step: AttentionStep, written_rows: Tensor | None, slots: Tensor
    ) -> None:
        self._cache = cache
        self.step = step
        self.written_rows = written_rows  # [n] int64; None: all rows
        self.slots = slots  # [n] int64

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """Write the new keys and values [T, Hkv, D], then attend: q [T, Hq, D] -> [T, Hq, D]."""
        if len(self.slots):
            self._cache.write(layer, k, v, self.written_rows, self.slots)
        return self.step.attend(
            q, self._cache.k[layer], self._cache.v[layer], scale=scale, window=window
        )
