"""Where two runs of a program part: the first token that differs after the same context.

In bfloat16 a sum of another shape rounds differently, so two tokens of nearly the same probability
may change places, and everything after them. In float32 nothing parts at temperature 0.
"""

from collections.abc import Iterator, Sequence

from benchmarks.programs.optimum import Fed

from umbel.runtime.engine import Engine

Parting = tuple[tuple[int, ...], int, int]  # context, and the token that each run went on with


def partings(one: Sequence[Fed], other: Sequence[Fed]) -> Iterator[Parting]:
    """Of the greedy generations that have the same prompt in both runs."""
    answers = {tuple(fed.tokens[: fed.num_prompt]): fed.tokens for fed in other if fed.num_prompt}
    for fed in one:
        tokens = answers.get(tuple(fed.tokens[: fed.num_prompt])) if fed.num_prompt else None
        if tokens is None:
            continue
        for idx, (left, right) in enumerate(zip(fed.tokens, tokens, strict=False)):
            if left != right:
                yield tuple(fed.tokens[:idx]), left, right
                break


def widest_gap(engine: Engine, one: Sequence[Fed], other: Sequence[Fed]) -> float | None:
    """The largest difference of the log-probabilities of two tokens where the runs part; None where
    no generation parts from one with the same prompt.
    """
    gaps = []
    for context, left, right in set(partings(one, other)):
        first, second = engine.score(list(context), [[left], [right]])
        gaps.append(abs(first.total - second.total))
    return max(gaps, default=None)
