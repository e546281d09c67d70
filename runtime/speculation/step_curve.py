"""What a row more costs, and how many guesses are worth theirs. Fed by the engine; has no clock."""

import math
from collections.abc import Sequence

LONGEST_DRAFT = 16  # tokens


class StepCurve:
    """What a row more costs, learned from measured steps. Has no clock.

    Around the rows that are asked for, the time of a step is taken as a line through the means of
    steps with about as many rows.
    """

    PRIOR_SLOPE = 0.1  # of the time of a step, a row; before two sizes were seen
    NEWEST_SHARE = 0.125
    STALE_STEPS = 512

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[float, int]] = {}  # rows -> mean, and when it was seen last
        self._slope = 0.0  # the last one that was fitted, in seconds a row
        self._num_steps = 0

    def learn(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took `seconds`, host time included."""
        if rows < 1 or seconds <= 0:
            return
        self._num_steps += 1
        size = _size(rows)
        mean, _ = self._seconds.get(size, (seconds, 0))
        mean += self.NEWEST_SHARE * (seconds - mean)
        self._seconds[size] = mean, self._num_steps
        if self._num_steps % self.STALE_STEPS == 0:
            oldest = self._num_steps - self.STALE_STEPS
            self._seconds = {s: v for s, v in self._seconds.items() if v[1] > oldest}

    def row_cost(self, rows: int) -> float:
        """Time of one row more, beside `rows` rows, over the time of the whole step."""
        sizes = [size for size in self._seconds if rows / 2 <= size <= 4 * rows + LONGEST_DRAFT]
        if not sizes:
            return self.PRIOR_SLOPE if rows < 1 / self.PRIOR_SLOPE else 1 / rows
        if len(sizes) > 1:
            self._fit(sizes)
        nearest = min(sizes, key=lambda size: abs(size - rows))
        step_s = self._seconds[nearest][0]
        slope = self._slope or self.PRIOR_SLOPE * step_s / max(1.0, self.PRIOR_SLOPE * nearest)
        return slope / max(step_s + slope * (rows - nearest), slope)

    def _fit(self, sizes: list[int]) -> None:
        """Least squares; a line that falls says that the steps were of other work."""
        means = [self._seconds[size][0] for size in sizes]
        middle, mean_s = sum(sizes) / len(sizes), sum(means) / len(means)
        spread = sum((size - middle) ** 2 for size in sizes)
        rise = sum((s - middle) * (t - mean_s) for s, t in zip(sizes, means, strict=True))
        if rise > 0:
            self._slope = rise / spread


def _size(rows: int) -> int:
    """Rows up to 16 by themselves, more rounded to an eighth of their size."""
    if rows <= 16:
        return rows
    unit = 1 << (rows.bit_length() - 4)
    return (rows + unit // 2) // unit * unit


def worth_feeding(
    rates: Sequence[float], limits: Sequence[int], num_rows: int, row_cost: float
) -> list[int]:
    """How many tokens of each guess to feed, so that tokens per second are most.

    Token i of a guess comes true with probability rate ** i (`rates`, one for each guess; at most
    `limits` tokens of it may be fed). The step has `num_rows` rows, each of which gives a token,
    and each row more takes `row_cost` times its time. The ratio of tokens to time is maximized by
    Dinkelbach's method ("On nonlinear fractional programming", 1967): feed what brings more tokens
    than its row's time is worth at the ratio so far, until the ratio stays.
    """
    counts, ratio = [0] * len(rates), float(num_rows)
    for _ in range(8):
        threshold = row_cost * ratio
        counts = [
            min(limit, _num_above(rate, threshold))
            for rate, limit in zip(rates, limits, strict=True)
        ]
        num_tokens = num_rows + sum(map(_expected, rates, counts))
        new_ratio = num_tokens / (1 + row_cost * sum(counts))
        if new_ratio <= ratio * (1 + 1e-9):
            break
        ratio = new_ratio
    return counts


def _num_above(rate: float, threshold: float) -> int:
    """The largest k with rate ** k > threshold, at most `LONGEST_DRAFT`."""
    if rate <= threshold:
        return 0
    if rate >= 1 or threshold <= 0:
        return LONGEST_DRAFT
    return min(LONGEST_DRAFT, math.ceil(math.log(threshold) / math.log(rate)) - 1)


def _expected(rate: float, count: int) -> float:
    """Tokens of a guess that come true if `count` are fed."""
    return float(count) if rate >= 1 else rate * (1 - rate**count) / (1 - rate)
