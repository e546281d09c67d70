"""How large a prefill chunk may be, so that a step beside decoding rows keeps a target of time.

Called by the scheduler, once a step with decoding rows; fed by the engine with each measured step.
The one idea: FLOP/s are remembered by the number of rows, and the widest kind of step that keeps
the target tells the rate to plan with. From a narrow step, which waits for the weights, the rate is
low and the next chunk too small; but then the next step is wider, its rate higher, and so the
chunks grow until the target is met: t(n) = T is the only fixed point.
"""

from dataclasses import dataclass

from umbel.runtime.roofline import cost
from umbel.runtime.roofline.gauge import round_up
from umbel.runtime.roofline.records import ModelShape, above_zero

MIN_CHUNK = 16  # rows: a prompt gets on even when the target cannot be kept
NEWEST_SHARE = 0.25  # of a new step in the memory of its kind: follows load, survives a hiccup
STALE_STEPS = 64  # what was not seen for so long is forgotten: the machine may be slower or faster


@dataclass(slots=True)
class _Kind:
    """Mean step of about the same number of rows."""

    seconds: float
    flops: float
    last_step: int = 0

    @property
    def rate(self) -> float:
        return self.flops / self.seconds


class ChunkPacer:
    """Learns from measured steps, and says what chunk keeps `target_s`. Has no clock."""

    def __init__(self, shape: ModelShape, target_s: float) -> None:
        """Raises `InvalidRequest` for a target that is not above 0."""
        above_zero("target_s", target_s)
        self._shape = shape
        self._target_s = target_s
        self._kinds: dict[int, _Kind] = {}  # by rows, rounded up to a power of two
        self._num_steps = 0

    def learn(self, rows: int, flops: float, seconds: float) -> None:
        """A step of `rows` rows took `seconds`, host time included."""
        if rows == 0 or flops <= 0 or seconds <= 0:
            return
        self._num_steps += 1
        kind = self._kinds.setdefault(round_up(rows), _Kind(seconds, flops))
        kind.seconds += NEWEST_SHARE * (seconds - kind.seconds)
        kind.flops += NEWEST_SHARE * (flops - kind.flops)
        kind.last_step = self._num_steps
        oldest = self._num_steps - STALE_STEPS
        self._kinds = {s: kind for s, kind in self._kinds.items() if kind.last_step > oldest}

    def chunk_beside(self, decode_rows: int) -> int:
        """Rows of prompts beside `decode_rows` in the next step, at least `MIN_CHUNK`."""
        kept = [size for size, kind in self._kinds.items() if kind.seconds <= self._target_s]
        if not kept:
            return MIN_CHUNK
        # Rates rise with rows. A wider kind with a lower one is news: the machine became slower.
        rate = min(kind.rate for size, kind in self._kinds.items() if size >= max(kept))
        chunk = cost.chunk_for_step_s(self._shape, self._target_s, decode_rows, rate)
        return max(MIN_CHUNK, chunk)
