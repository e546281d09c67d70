"""What a row more costs, and how many guesses are worth theirs. Fed by the engine; has no clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_DRAFT = 16  # tokens


class StepCurve:
    """What a row more costs, learned from measured steps. Has no clock.

    Around the rows that are asked for, the time of a step is taken as a line through the means of
    steps with about as many rows, which begins as the line that `PRIOR_SLOPE` tells.
    """

    PRIOR_SLOPE = 0.1  # of the time of a step of no rows, a row
    PRIOR_WEIGHT = 4.0  # steps
    NEWEST_SHARE = 0.125
    LONGEST = 2.0  # of the mean so far; what takes longer was a hiccup
    STALE_STEPS = 512

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}  # by rows
        self._num_steps = 0

    def learn(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took `seconds`, host time included."""
        if rows < 1 or seconds <= 0:
            return
        self._num_steps += 1
        size = self._sizes.setdefault(_rounded(rows), _Size(seconds))
        seconds = min(seconds, self.LONGEST * size.mean_s)
        size.mean_s += self.NEWEST_SHARE * (seconds - size.mean_s)
        size.num_steps += 1
        size.last_step = self._num_steps
        if self._num_steps % self.STALE_STEPS == 0:
            oldest = self._num_steps - self.STALE_STEPS
            self._sizes = {n: s for n, s in self._sizes.items() if s.last_step > oldest}

    def step_s(self, rows: int) -> float | None:
        """The mean time of such steps; None if there were none."""
        size = self._sizes.get(_rounded(rows))
        return None if size is None else size.mean_s

    def row_cost(self, rows: int) -> float:
        """Time of one row more, beside `rows` rows, over the time of the whole step."""
        near = self._near(rows)
        if not near:
            return self.PRIOR_SLOPE / (1 + self.PRIOR_SLOPE * rows)
        nearest = min(near, key=lambda size: abs(size - rows))
        nearest_s = near[nearest].mean_s
        prior = self.PRIOR_SLOPE * nearest_s / (1 + self.PRIOR_SLOPE * nearest)
        slope = max(self._slope(near, rows, prior), prior / 20)  # noise: rows are never free
        return slope / max(nearest_s + slope * (rows - nearest), slope)

    def reach(self, rows: int) -> int:
        """How many rows may be put beside `rows`: half as many again as in the largest such step
        that was measured, so that nothing is lost where the line bends upwards.
        """
        return max(4, 3 * max(self._near(rows), default=rows) // 2 - rows)

    def _near(self, rows: int) -> "dict[int, _Size]":
        longest = 4 * rows + LONGEST_DRAFT
        return {n: size for n, size in self._sizes.items() if rows / 2 <= n <= longest}

    def _slope(self, near: "dict[int, _Size]", rows: int, prior: float) -> float:
        """Least squares, with steps of the prior line among the measured ones."""
        weights = {n: min(size.num_steps, 16) for n, size in near.items()}
        total = sum(weights.values())
        middle = sum(weight * n for n, weight in weights.items()) / total
        middle_s = sum(weight * near[n].mean_s for n, weight in weights.items()) / total
        spread = self.PRIOR_WEIGHT * max(4.0, rows / 2) ** 2
        rise = spread * prior
        for n, weight in weights.items():
            spread += weight * (n - middle) ** 2
            rise += weight * (n - middle) * (near[n].mean_s - middle_s)
        return rise / spread


@dataclass(slots=True)
class _Size:
    """Steps of about the same number of rows."""

    mean_s: float
    num_steps: int = 0
    last_step: int = 0


def _rounded(rows: int) -> int:
    """Rows up to 16 by themselves, more rounded to an eighth of their size."""
    if rows <= 16:
        return rows
    unit = 1 << (rows.bit_length() - 4)
    return (rows + unit // 2) // unit * unit


class Ledger:
    """Whether drafts have paid, by the number of requests in a step: the last word over estimates.

    The time of a step with drafts is set against that of as many tokens in plain steps. Where
    drafts lose, they pause for a while, and each time for longer; and now and then a step goes
    without, so that the plain time stays known.
    """

    NEWEST_SHARE = 0.25
    FIRST_PAUSE, LONGEST_PAUSE = 16, 1024  # steps
    PLAIN_EVERY = 32  # steps

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}  # by number of requests, rounded

    def allows(self, num_requests: int) -> bool:
        """Whether the next step of so many requests may have drafts; asked once a step."""
        entry = self._entries.get(_rounded(num_requests))
        if entry is None:
            return True
        if entry.num_paused:
            entry.num_paused -= 1
            return False
        entry.num_asked += 1
        return entry.num_asked % self.PLAIN_EVERY != 0

    def enter(self, num_requests: int, num_tokens: int, seconds: float, plain_s: float) -> None:
        """A step with drafts gave `num_tokens` tokens in `seconds`; a plain one takes `plain_s` for
        `num_requests`.
        """
        entry = self._entries.setdefault(_rounded(num_requests), _Entry())
        gain = num_tokens / num_requests - seconds / plain_s
        entry.gain += self.NEWEST_SHARE * (max(gain, -2.0) - entry.gain)
        if entry.gain < -0.05:
            entry.num_paused = entry.pause
            entry.pause = min(2 * entry.pause, self.LONGEST_PAUSE)
            entry.gain = 0.0
        elif entry.gain > 0.1:
            entry.pause = self.FIRST_PAUSE


@dataclass(slots=True)
class _Entry:
    gain: float = 0.0  # steps saved by a step, of late
    pause: int = Ledger.FIRST_PAUSE  # steps of the next one
    num_paused: int = 0  # steps that are left of this one
    num_asked: int = 0


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
