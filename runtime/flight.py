"""One request between its submission and its last event: who listens, and when what happened.

Used by the engine: it turns the scheduler's updates into what callers see.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from umbel.runtime.constraints import captures_of
from umbel.runtime.errors import EngineClosed, InvalidRequest, QueueFull, UmbelError
from umbel.runtime.outputs import (
    Captures,
    Chunk,
    Completion,
    FinishReason,
    Score,
    Timing,
    no_captures,
)
from umbel.runtime.request import Request, Update

if TYPE_CHECKING:
    from umbel.grammar import Constraint

ChunkListener = Callable[[Chunk], None]
ScoreListener = Callable[[Score | UmbelError], None]


@dataclass(slots=True, eq=False)
class Flight:
    """A request under way. Exactly one of the two listeners is set."""

    request: Request
    submitted_s: float  # the clock of `time.perf_counter`, as all times here
    on_chunk: ChunkListener | None = None
    on_score: ScoreListener | None = None
    constraint: "Constraint | None" = None  # set by the engine when it is compiled
    started_s: float | None = None  # set by the engine when it is first in a step
    first_token_s: float | None = None

    def event(self, update: Update, now_s: float) -> Callable[[], None] | None:
        """The call of the listener that an update leads to; None if there is nothing to tell."""
        if update.token_ids and self.first_token_s is None:
            self.first_token_s = now_s
        if self.on_chunk is not None:
            return partial(self.on_chunk, self._chunk(update, now_s))
        if self.on_score is not None and update.is_last:
            return partial(self.on_score, update.error or self._score())
        return None

    def _chunk(self, update: Update, now_s: float) -> Chunk:
        has_ended = update.is_last and update.error is None
        return Chunk(
            index=self.request.index,
            text=update.text,
            token_ids=tuple(update.token_ids),
            logprobs=None if update.logprobs is None else tuple(update.logprobs),
            completion=self._completion(now_s) if has_ended else None,
            error=update.error,
        )

    def _completion(self, now_s: float) -> Completion:
        request = self.request
        assert request.text is not None
        assert request.finish is not None
        wants_prompt = request.params.prompt_logprobs is not None
        return Completion(
            index=request.index,
            text=request.text.text,
            token_ids=tuple(request.tokens[request.num_prompt :]),
            text_token_ids=tuple(request.text.text_token_ids()),
            finish_reason=FinishReason(request.finish.reason),
            stop_reason=request.finish.stop,
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
            prompt_logprobs=tuple(request.prompt_logprobs) if wants_prompt else None,
            usage=request.usage(),
            timing=self._timing(now_s),
            find_captures=self._captures(),
        )

    def _captures(self) -> Callable[[], Captures]:
        if self.constraint is None or self.constraint.capture_reader is None:
            return no_captures
        token_ids = tuple(self.request.tokens[self.request.num_prompt :])
        return partial(captures_of, self.constraint, token_ids)

    def _score(self) -> Score:
        request = self.request
        return Score(
            token_ids=tuple(request.tokens[request.num_prompt :]),
            logprobs=tuple(entry.logprob for entry in request.logprobs),
            usage=request.usage(),
        )

    def _timing(self, now_s: float) -> Timing:
        started_s = now_s if self.started_s is None else self.started_s
        first_token_s = now_s if self.first_token_s is None else self.first_token_s
        return Timing(
            queue_s=started_s - self.submitted_s,
            first_token_s=first_token_s - self.submitted_s,
            total_s=now_s - self.submitted_s,
        )


class CallHandle:
    """Stops a call that was submitted."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Stop the call; its listener gets a last event with `RequestCancelled`. Idempotent."""
        self._cancel()


class FlightTable:
    """Every request that was taken and not answered yet; at most `max_flights`. Thread-safe."""

    def __init__(self, max_flights: int) -> None:
        self._max_flights = max_flights
        self._lock = threading.Lock()
        self._flights: dict[int, Flight] = {}  # by request id
        self._is_closed = False

    def add(self, flights: Sequence[Flight]) -> None:
        """Take all or none. Raises `QueueFull`, `InvalidRequest` when they could never be taken,
        `EngineClosed` when nobody would answer them.
        """
        if len(flights) > self._max_flights:
            raise InvalidRequest(
                f"n={len(flights)} is more than the engine ever takes at a time "
                f"({self._max_flights}); lower n or raise max_waiting",
                param="n",
            )
        with self._lock:
            if self._is_closed:
                raise EngineClosed("the engine is closed; make a new one")
            if len(self._flights) + len(flights) > self._max_flights:
                raise QueueFull(
                    f"{len(self._flights)} requests are under way, and {len(flights)} more would "
                    f"exceed max_running + max_waiting = {self._max_flights}; try again later"
                )
            for flight in flights:
                self._flights[flight.request.request_id] = flight

    def get(self, request: Request) -> Flight | None:
        """The flight of a request; None if it was answered."""
        return self._flights.get(request.request_id)

    def remove(self, flights: Sequence[Flight]) -> None:
        with self._lock:
            for flight in flights:
                self._flights.pop(flight.request.request_id, None)

    def close(self) -> list[Flight]:
        """Take no more; those that are left."""
        with self._lock:
            self._is_closed = True
            return list(self._flights.values())
