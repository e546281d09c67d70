"""How `select` turns log-probabilities into a choice and a distribution. Pure functions.

Each method defines a score per choice and a distribution over the choices that sums to 1:

token_length_normalized
    score: mean log-probability of the choice's tokens; distribution: softmax of the scores
unconditional_normalized
    score: mean of (log-probability - log-probability without the prompt); softmax likewise
greedy_token
    token by token, the choices with the likeliest token stay; score: log of the probability of the
    path, each step renormalized over the tokens that still occur; distribution: exp of the scores
constrained
    exact constrained decoding over the choices' own tokens: each step is renormalized over the
    tokens that any choice allows there, the end of a choice that others go on from included;
    score: log of the probability of the path; distribution: exp of the scores, from which the
    choice is drawn; at temperature 0 the likeliest way is taken at each step
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Way = TypeVar("_Way", bound=int | None)

METHODS = ("token_length_normalized", "greedy_token", "unconditional_normalized", "constrained")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice with the natural-log probability of each of its tokens after the prompt.

    `prior_logprobs`: the same without the prompt (for unconditional_normalized). `end_logprobs`: of
    each end token right after the choice (for constrained, where another choice goes on).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prior_logprobs: tuple[float, ...] = ()
    end_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`index` of the chosen candidate; scores and probabilities in the candidates' order."""

    index: int
    scores: tuple[float, ...]
    distribution: tuple[float, ...]


def decide(
    method: str, candidates: Sequence[Candidate], *, temperature: float = 0.0, draw: float = 0.0
) -> Decision:
    """Score `candidates` by one of `METHODS`; ties fall to the first.

    `temperature` and `draw` (uniform in [0, 1), used above temperature 0) are for `constrained`.
    At temperature 0 its distribution is that of temperature 1.
    """
    if method == "token_length_normalized":
        return _by_score([_mean(c.logprobs) for c in candidates])
    if method == "unconditional_normalized":
        return _by_score([_gain(c) for c in candidates])
    if method == "greedy_token":
        return _greedy(candidates)
    assert method == "constrained", method
    scores = _path_logprobs(candidates, temperature or 1.0)
    distribution = softmax(scores)
    index = _pick(distribution, draw) if temperature > 0 else _likeliest_path(candidates)
    return Decision(index, tuple(scores), distribution)


def softmax(scores: Sequence[float]) -> tuple[float, ...]:
    top = max(scores)
    if top == -math.inf:  # nothing is possible at all: no choice is better than another
        return tuple(1.0 / len(scores) for _ in scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    return tuple(weight / total for weight in weights)


def _path_logprobs(candidates: Sequence[Candidate], temperature: float) -> list[float]:
    """Log-probability of each choice, every step renormalized over what the choices allow."""
    logprobs = [0.0] * len(candidates)
    groups = [(0, list(range(len(candidates))))]
    while groups:
        depth, members = groups.pop()
        ways = _ways(candidates, members, depth)
        logits = {
            way: _logit(candidates[idxs[0]], depth, temperature) for way, idxs in ways.items()
        }
        steps = _renormalize(logits)
        for way, idxs in ways.items():
            step = steps[way]
            for idx in idxs:
                logprobs[idx] += step
            if way is not None and len(idxs) > 1:
                groups.append((depth + 1, idxs))
    return logprobs


def _likeliest_path(candidates: Sequence[Candidate]) -> int:
    members, depth = list(range(len(candidates))), 0
    while len(members) > 1:
        ways = _ways(candidates, members, depth)
        best = max(ways, key=lambda way: _logit(candidates[ways[way][0]], depth, 1.0))
        members, depth = ways[best], depth + 1
    return members[0]


def _pick(distribution: Sequence[float], draw: float) -> int:
    total = 0.0
    for idx, probability in enumerate(distribution):
        total += probability
        if draw < total:
            return idx
    return max(range(len(distribution)), key=distribution.__getitem__)  # rounding: total < 1


def has_longer_sibling(token_ids: Sequence[int], others: Sequence[Sequence[int]]) -> bool:
    """Whether another choice goes on from the end of this one."""
    mine = tuple(token_ids)
    return any(len(o) > len(mine) and tuple(o[: len(mine)]) == mine for o in others)


def _ways(
    candidates: Sequence[Candidate], members: Sequence[int], depth: int
) -> dict[int | None, list[int]]:
    """The next tokens that occur among `members`, who share the first `depth` tokens; None: the
    end.
    """
    ways: dict[int | None, list[int]] = defaultdict(list)
    for idx in members:
        token_ids = candidates[idx].token_ids
        ways[token_ids[depth] if depth < len(token_ids) else None].append(idx)
    return ways


def _renormalize(logits: Mapping[_Way, float]) -> dict[_Way, float]:
    total = _log_sum_exp(list(logits.values()))
    if total == -math.inf:
        return dict.fromkeys(logits, -math.log(len(logits)))
    return {way: logit - total for way, logit in logits.items()}


def _logit(candidate: Candidate, depth: int, temperature: float) -> float:
    if depth < len(candidate.logprobs):
        return candidate.logprobs[depth] / temperature
    if not candidate.end_logprobs:
        return -math.inf
    return _log_sum_exp([logprob / temperature for logprob in candidate.end_logprobs])


def _greedy(candidates: Sequence[Candidate]) -> Decision:
    """SGLang's greedy_token_selection: a choice that is used up goes on with its mean log-
    probability.

    Choices that share their tokens so far share the first one's log-probability, so that rounding
    in the engine cannot part them; different tokens of exactly equal log-probability stay together,
    as SGLang has it.
    """
    depth_max = max(len(c.token_ids) for c in candidates)
    remaining = list(range(len(candidates)))
    scores = [0.0] * len(candidates)
    groups = [list(remaining)]
    for depth in range(depth_max):
        value: dict[int, float] = {}
        parted: list[list[int]] = []
        for members in groups:
            ways = _ways(candidates, members, depth)
            ended = ways.pop(None, [])
            split = [*ways.values(), *([idx] for idx in ended)]
            for idxs in split:
                c = candidates[idxs[0]]
                shared = c.logprobs[depth] if depth < len(c.logprobs) else _mean(c.logprobs)
                value.update(dict.fromkeys(idxs, shared))
            steps = _renormalize({idxs[0]: value[idxs[0]] for idxs in split})
            for idxs in split:
                for idx in idxs:
                    scores[idx] += steps[idxs[0]]
            parted += split
        groups = parted
        best = max(value[idx] for idx in remaining)
        remaining = [idx for idx in remaining if value[idx] == best]
        if len(remaining) == 1 and all(len(g) == 1 for g in groups):
            break
    return Decision(remaining[0], tuple(scores), softmax(scores))


def _by_score(scores: list[float]) -> Decision:
    return Decision(_argmax(scores), tuple(scores), softmax(scores))


def _gain(candidate: Candidate) -> float:
    pairs = zip(candidate.logprobs, candidate.prior_logprobs, strict=True)
    return _mean([logprob - prior for logprob, prior in pairs])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _argmax(scores: Sequence[float]) -> int:
    return max(range(len(scores)), key=scores.__getitem__)


def _log_sum_exp(values: Sequence[float]) -> float:
    top = max(values)
    if top == -math.inf:
        return -math.inf
    return top + math.log(sum(math.exp(value - top) for value in values))
