"""How large a prefill chunk may be, so that a step beside decoding rows keeps a target of time.

Called by the scheduler, once a step with decoding rows; fed by the engine with each measured step.
The one idea: time per FLOP is remembered by the number of rows, and the widest kind of step that
keeps the target tells the rate to plan with. From a narrow step, which waits for the weights, the
rate is low and the next chunk too small; but then the next step is wider, its rate higher, and so
the chunks grow until the target is met: t(n) = T is the only fixed point.
"""

from dataclasses import dataclass

from umbel.runtime.roofline import cost
from umbel.runtime.roofline.gauge import round_up
from umbel.runtime.roofline.records import ModelShape, above_zero

MIN_CHUNK = 16  # rows: a prompt gets on even when the target cannot be kept
NEWEST_SHARE = 0.25  # of a new step in the memory of its kind: follows load, survives a hiccup


@dataclass(slots=True)
class _Kind:
    """Mean step of about the same number of rows."""

    seconds: float
    flops: float


class ChunkPacer:
    """Learns from measured steps, and says what chunk keeps `target_s`. Has no clock."""

    def __init__(self, shape: ModelShape, target_s: float) -> None:
        """Raises `InvalidRequest` for a target that is not above 0."""
        above_zero("target_s", target_s)
        self._shape = shape
        self._target_s = target_s
        self._kinds: dict[int, _Kind] = {}

    def learn(self, rows: int, flops: float, seconds: float) -> None:
        """A step of `rows` rows took `seconds`, host time included."""
        if rows == 0 or flops <= 0 or seconds <= 0:
            return
        kind = self._kinds.setdefault(round_up(rows), _Kind(seconds, flops))
        kind.seconds += NEWEST_SHARE * (seconds - kind.seconds)
        kind.flops += NEWEST_SHARE * (flops - kind.flops)

    def chunk_beside(self, decode_rows: int) -> int:
        """Rows of prompts beside `decode_rows` in the next step, at least `MIN_CHUNK`."""
        kept = [size for size, kind in self._kinds.items() if kind.seconds <= self._target_s]
        if not kept:
            return MIN_CHUNK
        kind = self._kinds[max(kept)]
        rate = kind.flops / kind.seconds
        chunk = cost.chunk_for_step_s(self._shape, self._target_s, decode_rows, rate)
        return max(MIN_CHUNK, chunk)
