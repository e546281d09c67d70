"""Where the time of each request and program went: one track a sequence, kept for the newest
requests only. `trace_export` writes them for Perfetto; the dashboard reads the ones that run.

Tracks are written by the engine's thread (a listener between the engine and the real one) and
read by any other, which may see a step too few but nothing that is wrong.
"""

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from umbel.runtime.errors import UmbelError
from umbel.runtime.outputs import Chunk, Completion, Score
from umbel.server.record import RequestRecord

MAX_STEPS = 1024  # of a track; later ones are joined to the last: 16 KiB a track
MAX_TEXT_CHARS = 2000  # of a track that runs: the end of what was written
_MAX_PARENTS = 64  # tracks that are looked at
MAX_KEPT_CHARS = 400  # of one that ended


@dataclass(slots=True, eq=False)
class Track:
    """One sequence. Times are those of `time.perf_counter`."""

    name: str
    kind: str  # "generate" or "score"
    prompt_ids: Sequence[int]  # emptied when the trace ends
    parent: int | None = None  # the track whose tokens it goes on from
    submitted_s: float = field(default_factory=time.perf_counter)
    num_prompt: int = 0
    num_cached: int | None = None  # None: not known before the end
    num_output: int = 0
    output_ids: list[int] = field(default_factory=list)  # emptied when the trace ends
    text: str = ""
    started_s: float | None = None  # first in a step; None: not known before the end
    ended_s: float | None = None
    outcome: str | None = None  # reason of finish, or code of the error
    step_s: "array[float]" = field(default_factory=lambda: array("d"))  # when tokens came
    step_tokens: "array[int]" = field(default_factory=lambda: array("L"))

    @property
    def first_token_s(self) -> float | None:
        return self.step_s[0] if self.step_s else None

    def add(self, chunk: Chunk) -> None:
        """Take a chunk's news. On the engine's thread."""
        now_s = time.perf_counter()
        if chunk.token_ids:
            self._add_step(now_s, len(chunk.token_ids))
            self.output_ids += chunk.token_ids
            self.num_output += len(chunk.token_ids)
        if chunk.text:
            self.text = (self.text + chunk.text)[-MAX_TEXT_CHARS:]
        if chunk.completion is not None:
            self._end(now_s, chunk.completion)
        elif chunk.error is not None:
            self.ended_s, self.outcome = now_s, chunk.error.code

    def add_score(self, score: Score | UmbelError) -> None:
        """The scores of a continuation, or the error. On the engine's thread."""
        self.ended_s = time.perf_counter()
        if isinstance(score, UmbelError):
            self.outcome = score.code
            return
        self.outcome, self.num_output = "scored", len(score.token_ids)
        self.num_cached = score.usage.num_cached_tokens
        self._add_step(self.ended_s, len(score.token_ids))

    def is_beginning_of(self, token_ids: Sequence[int]) -> bool:
        """Whether `token_ids` go on from the whole of this sequence."""
        middle, end = self.num_prompt, self.num_prompt + len(self.output_ids)
        return (
            self.kind == "generate"
            and list(token_ids[middle:end]) == self.output_ids  # first: siblings differ here
            and list(token_ids[:middle]) == list(self.prompt_ids)
        )

    def forget_tokens(self) -> None:
        """After the end of its trace: keep numbers and the end of the text."""
        self.prompt_ids, self.output_ids = (), []
        self.text = self.text[-MAX_KEPT_CHARS:]

    def _add_step(self, now_s: float, num_tokens: int) -> None:
        if len(self.step_s) < MAX_STEPS:
            self.step_tokens.append(num_tokens)  # first: readers go by the times
            self.step_s.append(now_s)
        else:
            self.step_tokens[-1] += num_tokens
            self.step_s[-1] = now_s

    def _end(self, now_s: float, completion: Completion) -> None:
        self.started_s = self.submitted_s + completion.timing.queue_s
        self.num_cached = completion.usage.num_cached_tokens
        self.output_ids = list(completion.text_token_ids)  # what a branch goes on from
        self.ended_s, self.outcome = now_s, completion.finish_reason.value


class Trace:
    """One request or program. Made by a `Tracer`, or by itself for a program in process."""

    def __init__(
        self,
        trace_id: str,
        name: str,
        *,
        tenant: str | None = None,
        started_s: float | None = None,
        max_tracks: int = 4096,
    ) -> None:
        self.trace_id = trace_id
        self.name = name
        self.tenant = tenant
        now_s = time.perf_counter()
        self.started_s = now_s if started_s is None else started_s
        self.time_s = time.time() - (now_s - self.started_s)
        self.ended_s: float | None = None
        self.tracks: list[Track] = []
        self.num_left_out = 0  # tracks
        self._max_tracks = max_tracks

    def listening(
        self, prompt_ids: Sequence[int], listener: Callable[[Chunk], None], name: str
    ) -> Callable[[Chunk], None]:
        """A listener of `submit` that notes what goes by. Each of the n sequences gets a track,
        the first at once.
        """
        tracks = {0: self._new(name, "generate", prompt_ids)}

        def note(chunk: Chunk) -> None:
            track = tracks.get(chunk.index)
            if track is None:
                track = self._new(f"{name}.{chunk.index}", "generate", prompt_ids)
                track.submitted_s = tracks[0].submitted_s
                tracks[chunk.index] = track
            track.add(chunk)
            listener(chunk)

        return note

    def listening_score(
        self, prompt_ids: Sequence[int], listener: Callable[[Score | UmbelError], None], name: str
    ) -> Callable[[Score | UmbelError], None]:
        """The same for `submit_score`."""
        track = self._new(name, "score", prompt_ids)

        def note(score: Score | UmbelError) -> None:
            track.add_score(score)
            listener(score)

        return note

    def end(self) -> None:
        """Nothing more is submitted. Idempotent."""
        if self.ended_s is None:
            self.ended_s = time.perf_counter()
            for track in self.tracks:
                track.forget_tokens()

    def _new(self, name: str, kind: str, prompt_ids: Sequence[int]) -> Track:
        parent = self._parent_of(prompt_ids)
        track = Track(name, kind, prompt_ids, parent, num_prompt=len(prompt_ids))
        if len(self.tracks) < self._max_tracks:
            self.tracks.append(track)
        else:
            self.num_left_out += 1
        return track

    def _parent_of(self, prompt_ids: Sequence[int]) -> int | None:
        """The latest track that ended and whose tokens are the longest beginning of a prompt."""
        best, best_len = None, 0
        first = max(0, len(self.tracks) - _MAX_PARENTS)
        for index in range(len(self.tracks) - 1, first - 1, -1):
            track = self.tracks[index]
            length = track.num_prompt + len(track.output_ids)
            could_be = track.ended_s is not None and best_len < length <= len(prompt_ids)
            if could_be and track.is_beginning_of(prompt_ids):
                best, best_len = index, length
        return best


class Tracer:
    """The traces of a server: all that run, and of those that ended the newest. Thread-safe."""

    def __init__(self, *, max_traces: int = 256, max_tracks: int = 2048) -> None:
        self._max_traces = max_traces
        self._max_tracks = max_tracks
        self._lock = threading.Lock()
        self._traces: OrderedDict[tuple[str | None, str], Trace] = OrderedDict()

    @contextmanager
    def tracing(self, record: RequestRecord) -> Iterator[Trace]:
        """The trace of a request, which ends with the block. Its id is that of the request; a later
        one of the same id takes its place.
        """
        trace = Trace(
            record.request_id, record.path, tenant=record.tenant, started_s=record.started_s,
            max_tracks=self._max_tracks,
        )  # fmt: skip
        key = (trace.tenant, trace.trace_id)
        with self._lock:
            self._traces.pop(key, None)
            self._traces[key] = trace
        try:
            yield trace
        finally:
            trace.end()
            self._forget_old()

    def find(self, trace_id: str, *, tenant: str | None = None) -> Trace | None:
        """A tenant's trace; None if it was never there, or is too old."""
        with self._lock:
            return self._traces.get((tenant, trace_id))

    def recent(self) -> list[Trace]:
        """All that are kept, the newest first."""
        with self._lock:
            return list(reversed(self._traces.values()))

    def _forget_old(self) -> None:
        with self._lock:
            num_tracks = sum(len(trace.tracks) for trace in self._traces.values())
            for key, trace in list(self._traces.items()):
                if len(self._traces) <= self._max_traces and num_tracks <= self._max_tracks:
                    return
                if trace.ended_s is not None:
                    num_tracks -= len(trace.tracks)
                    del self._traces[key]
