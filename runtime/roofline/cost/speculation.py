"""When guessing ahead pays: drafts that may be refused, and forced tokens that cannot be."""

from collections.abc import Callable, Sequence

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.records import Speculation, at_least


def expected_tokens_chain(speculation: Speculation) -> float:
    """Expected tokens of one verification of a chain of k drafts, the free one included.

    Formula: tau = (1 - a^(k+1)) / (1 - a)
    """
    acceptance, draft_len = speculation.acceptance, speculation.draft_len
    if acceptance == 1:
        return draft_len + 1.0
    return float((1 - acceptance ** (draft_len + 1)) / (1 - acceptance))


def expected_tokens_tree(parents: Sequence[int | None], acceptances: Sequence[float]) -> float:
    """Expected tokens of one verification of a draft tree. Node i hangs below `parents[i] < i`,
    or below the last sampled token (None); `acceptances[i]` is its chance given that its parent
    was accepted.

    Formula: tau = 1 + sum over nodes of the product of acceptances on their path
    """
    reached: list[float] = []
    for node, (parent, acceptance) in enumerate(zip(parents, acceptances, strict=True)):
        if parent is not None and not 0 <= parent < node:
            raise InvalidRequest(
                f"parents[{node}]={parent} is not valid: expected None or a node before {node}"
            )
        reached.append(acceptance * (1.0 if parent is None else reached[parent]))
    return 1.0 + sum(reached)


def break_even_tokens(
    batch: int, speculation: Speculation, step_time_s: Callable[[int], float]
) -> float:
    """Tokens per verification at which speculation costs as much as plain decoding.

    `step_time_s(rows)` is the time of a step with that many rows.
    Formula: tau* = (t(B (1 + k)) + k t_d) / t(B)
    """
    at_least("batch", batch, 1)
    plain_s = step_time_s(batch)
    verify_s = step_time_s(batch * (1 + speculation.draft_len))
    draft_s = speculation.draft_len * speculation.draft_cost * plain_s
    return (verify_s + draft_s) / plain_s


def speculation_speedup(
    batch: int, speculation: Speculation, step_time_s: Callable[[int], float]
) -> float:
    """How many times faster than plain decoding; below one it does not pay.

    Formula: tau / tau*
    """
    return expected_tokens_chain(speculation) / break_even_tokens(batch, speculation, step_time_s)


def best_draft_len(
    batch: int,
    acceptance: float,
    step_time_s: Callable[[int], float],
    *,
    draft_cost: float = 0.0,
    longest: int = 16,
) -> int:
    """Draft length with the largest speed-up, 0 when none is above one.

    Formula: k = argmax tau(k) / tau*(k)
    """
    best_len, best_speedup = 0, 1.0
    for draft_len in range(1, longest + 1):
        speculation = Speculation(draft_len=draft_len, acceptance=acceptance, draft_cost=draft_cost)
        speedup = speculation_speedup(batch, speculation, step_time_s)
        if speedup > best_speedup:
            best_len, best_speedup = draft_len, speedup
    return best_len


def forced_speedup_limit(forced_share: float) -> float:
    """Most that forced tokens riding along can bring when they are `forced_share` of the output.

    Formula: speed-up <= 1 / (1 - f)
    """
    if not 0 <= forced_share < 1:
        raise InvalidRequest(
            f"forced_share={forced_share!r} is not valid: expected a share from 0 to below 1",
            param="forced_share",
        )
    return 1 / (1 - forced_share)


def forced_run_ratio(run_len: int, step_time_s: Callable[[int], float]) -> float:
    """Time of a step with a run of `run_len` forced tokens beside its free row, over that of the
    row alone.

    Formula: t(r + 1) / t(1)
    """
    at_least("run_len", run_len, 0)
    return step_time_s(run_len + 1) / step_time_s(1)
