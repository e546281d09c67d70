"""Traces for Perfetto and Chrome: the routes `/v1/traces`, and the JSON that both read.

One line a sequence: its time in the queue, in prefill, and each step that gave it tokens.
"""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from umbel.runtime.errors import InvalidRequest
from umbel.server.answers import json_response
from umbel.server.record import record_of
from umbel.server.routes import Route
from umbel.server.service import Service
from umbel.server.trace import Trace, Track

_REQUEST_LINE = 0  # thread id of the request itself; tracks follow


class UnknownTrace(InvalidRequest):
    """No trace of that name, or none that is kept any more."""

    code = "trace_not_found"
    status = 404


class TraceEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Chrome's trace event: "X" is a span, "M" names a line. `ts` and `dur` in microseconds."""

    name: str
    ph: Literal["X", "M"]
    pid: int
    tid: int
    ts: float | None = None
    dur: float | None = None
    cat: str | None = None
    args: dict[str, Any] = {}


class TraceDocument(msgspec.Struct, kw_only=True, rename="camel"):
    """What ui.perfetto.dev and chrome://tracing open."""

    trace_events: list[TraceEvent]
    display_time_unit: Literal["ms"] = "ms"
    other_data: dict[str, str] = {}


class TraceCard(msgspec.Struct, kw_only=True):
    id: str
    name: str
    created: float  # Unix time
    duration_s: float | None  # None: it runs
    num_sequences: int
    num_output_tokens: int


class TraceList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[TraceCard]


async def traces(service: Service, request: Request) -> Response:
    """Handler of `GET /v1/traces`: the caller's, the newest first."""
    tenant = record_of(request.scope).tenant
    mine = [trace for trace in service.tracer.recent() if trace.tenant == tenant]
    return json_response(TraceList(data=[_card(trace) for trace in mine]))


async def trace(service: Service, request: Request) -> Response:
    """Handler of `GET /v1/traces/{id}`."""
    trace_id = request.path_params["id"]
    found = service.tracer.find(trace_id, tenant=record_of(request.scope).tenant)
    if found is None:
        raise UnknownTrace(
            f"there is no trace {trace_id!r}; the id of a request is in the header x-request-id of "
            "its answer, and only the newest are kept: see /v1/traces",
            param="id",
        )
    return json_response(await service.work(chrome_trace, found))


def chrome_trace(trace: Trace) -> TraceDocument:
    """A trace as a document; of one that runs, what happened so far."""
    pid, now_s = os.getpid(), time.perf_counter()
    end_s = now_s if trace.ended_s is None else trace.ended_s
    whole = _span(trace.name, _REQUEST_LINE, trace, trace.started_s, end_s, id=trace.trace_id)
    events = [_line_name(_REQUEST_LINE, "request"), whole]
    for tid, track in enumerate(list(trace.tracks), 1):
        events.append(_line_name(tid, f"{track.kind} {track.name}"))
        events += _spans(trace, track, tid, now_s)
    for event in events:
        event.pid = pid
    other = {"trace_id": trace.trace_id, "sequences_left_out": str(trace.num_left_out)}
    return TraceDocument(trace_events=events, other_data=other)


def _spans(trace: Trace, track: Track, tid: int, now_s: float) -> Iterator[TraceEvent]:
    """The sequence, and within it: queue, prefill, then a span a step that gave tokens."""
    end_s = now_s if track.ended_s is None else track.ended_s
    steps = list(zip(track.step_s, track.step_tokens, strict=False))
    yield _span(
        track.kind, tid, trace, track.submitted_s, end_s,
        prompt_tokens=track.num_prompt, cached_tokens=track.num_cached,
        output_tokens=track.num_output, outcome=track.outcome, text=track.text,
    )  # fmt: skip
    first_s = steps[0][0] if steps else end_s
    if track.started_s is None:
        name = "queue and prefill"  # where one ends is told with the completion
        yield _span(name, tid, trace, track.submitted_s, first_s)
    else:
        yield _span("queue", tid, trace, track.submitted_s, track.started_s)
        yield _span("prefill", tid, trace, track.started_s, first_s)
    for (before_s, _), (at_s, num_tokens) in itertools.pairwise(steps):
        yield _span("decode", tid, trace, before_s, at_s, tokens=num_tokens)


def _span(
    name: str, tid: int, trace: Trace, start_s: float, end_s: float, **args: object
) -> TraceEvent:
    return TraceEvent(
        name=name,
        ph="X",
        pid=0,
        tid=tid,
        ts=round((start_s - trace.started_s) * 1e6, 1),
        dur=round(max(0.0, end_s - start_s) * 1e6, 1),
        cat="umbel",
        args=args,
    )


def _line_name(tid: int, name: str) -> TraceEvent:
    return TraceEvent(name="thread_name", ph="M", pid=0, tid=tid, args={"name": name})


def _card(trace: Trace) -> TraceCard:
    tracks = list(trace.tracks)
    return TraceCard(
        id=trace.trace_id,
        name=trace.name,
        created=trace.time_s,
        duration_s=None if trace.ended_s is None else round(trace.ended_s - trace.started_s, 6),
        num_sequences=len(tracks),
        num_output_tokens=sum(track.num_output for track in tracks),
    )


TRACE_ROUTES: Sequence[Route] = (
    Route("GET", "/v1/traces", traces, "Where the time of requests went", answer=TraceList),
    Route(
        "GET", "/v1/traces/{id}", trace, "The trace of a request, for Perfetto",
        answer=TraceDocument, errors=(404,),
    ),
)  # fmt: skip
