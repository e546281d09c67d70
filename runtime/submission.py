"""From a call's arguments to requests: everything that can be refused at once is refused here.

Called by the engine on the caller's thread.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from umbel.radix_cache.tree import Namespace
from umbel.runtime.errors import ContextTooLong, InvalidRequest
from umbel.runtime.params import SamplingParams
from umbel.runtime.request import Request
from umbel.runtime.scheduler import check_fits

_SCORE_PARAMS = SamplingParams(logprobs=0)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine can take."""

    context_len: int  # tokens
    vocab_size: int
    num_blocks: int
    block_size: int

    @property
    def max_positions(self) -> int:
        """The longest sequence: the last token of an output needs no place in the pool."""
        return min(self.context_len, self.num_blocks * self.block_size + 1)


def make_requests(
    token_ids: Sequence[int],
    params: SamplingParams,
    limits: Limits,
    *,
    ids: Iterator[int],
    namespace: Namespace,
    seed: int,
) -> list[Request]:
    """The n requests of one generation. Raises `InvalidRequest` for what can never run."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(
            f"params={params!r} is not valid: expected a SamplingParams", param="params"
        )
    prompt = check_token_ids("prompt", token_ids, limits.vocab_size)
    _check_ids_in_range("stop_token_ids", params.stop_token_ids, limits.vocab_size)
    _check_ids_in_range("logit_bias", list(params.logit_bias), limits.vocab_size)
    max_output = _max_output(len(prompt), params, limits)
    group_id = next(ids)
    requests = [
        Request(
            request_id=group_id if index == 0 else next(ids),
            group_id=group_id,
            tokens=prompt.copy(),
            num_prompt=len(prompt),
            max_output=max_output,
            params=params,
            namespace=namespace,
            index=index,
            seed=derive_seed(seed, index),
        )
        for index in range(params.n)
    ]
    check_fits(requests[0], limits.num_blocks, limits.block_size)
    return requests


def make_score_request(
    token_ids: Sequence[int],
    continuation_ids: Sequence[int],
    limits: Limits,
    *,
    ids: Iterator[int],
    namespace: Namespace,
) -> Request:
    """The request that scores `continuation_ids` after `token_ids`."""
    prompt = check_token_ids("prompt", token_ids, limits.vocab_size)
    continuation = check_token_ids("continuation", continuation_ids, limits.vocab_size)
    num_tokens = len(prompt) + len(continuation)
    if num_tokens > limits.context_len:
        raise ContextTooLong(
            f"prompt and continuation have {len(prompt)} + {len(continuation)} tokens, but the "
            f"context is {limits.context_len}; shorten them by {num_tokens - limits.context_len}",
            param="continuation",
        )
    request_id = next(ids)
    request = Request(
        request_id=request_id,
        group_id=request_id,
        tokens=prompt + continuation,
        num_prompt=len(prompt),
        max_output=len(continuation),
        params=_SCORE_PARAMS,
        namespace=namespace,
        is_score=True,
    )
    check_fits(request, limits.num_blocks, limits.block_size)
    return request


def check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """A list of the ids. Raises `InvalidRequest` when it is empty, or holds what is no token id."""
    if isinstance(token_ids, str | bytes) or not isinstance(token_ids, Sequence):
        raise InvalidRequest(
            f"{name}={token_ids!r:.80} is not valid: expected token ids", param=name
        )
    tokens = list(token_ids)
    if not tokens:
        raise InvalidRequest(f"the {name} is empty: give at least one token", param=name)
    if any(type(token_id) is not int for token_id in tokens):
        odd = next(token_id for token_id in tokens if type(token_id) is not int)
        raise InvalidRequest(
            f"the {name} holds {odd!r:.80}, which is no token id: expected integers", param=name
        )
    _check_ids_in_range(name, tokens, vocab_size)
    return tokens


class SeedStream:
    """Seeds for calls without one; the same stream for the same configured seed. Thread-safe."""

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)

    def draw(self) -> int:
        with self._lock:
            return self._random.getrandbits(63)


def derive_seed(seed: int, index: int) -> int:
    """The seed of the `index`-th sequence of a call: the call's own for the first, unrelated for
    the rest.

    splitmix64's finalizer (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
    2014).
    """
    if index == 0:
        return seed
    mask = (1 << 64) - 1
    mixed = (seed + index * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return (mixed ^ (mixed >> 31)) >> 1


def _check_ids_in_range(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        odd = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest(
            f"{name} holds the token id {odd}, but the model's ids are 0 to {vocab_size - 1}",
            param=name,
        )


def _max_output(num_prompt: int, params: SamplingParams, limits: Limits) -> int:
    room = limits.context_len - num_prompt
    if room < 1:
        raise ContextTooLong(
            f"the prompt has {num_prompt} tokens and the context is {limits.context_len}, which "
            f"leaves no room for an output; shorten the prompt by at least {1 - room}",
            param="prompt",
        )
    if params.max_tokens is None:
        return max(1, min(room, limits.max_positions - num_prompt))
    if params.max_tokens > room:
        raise ContextTooLong(
            f"max_tokens={params.max_tokens} leaves no room: the prompt has {num_prompt} tokens, "
            f"the context is {limits.context_len}; lower max_tokens to {room}",
            param="max_tokens",
        )
    return params.max_tokens
