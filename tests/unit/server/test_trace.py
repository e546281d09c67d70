"""Traces: where the time of a request or program went, as Chrome and Perfetto read it."""

import itertools
from types import SimpleNamespace
from typing import Any

from unit.server.scripted_engine import CONTEXT_LEN, server, user

import umbel
from umbel.server.record import RequestRecord
from umbel.server.settings import ServerSettings
from umbel.server.trace import MAX_STEPS, Trace, Tracer
from umbel.server.trace_client import TracedClient
from umbel.server.trace_export import chrome_trace

CHAT = "/v1/chat/completions"
BODY = {"messages": user(), "max_tokens": 8, "ignore_eos": True}


def spans(document: Any, line: int) -> list[Any]:
    return [e for e in document["traceEvents"] if e["ph"] == "X" and e["tid"] == line]


def record(request_id: str, tenant: str | None = None) -> RequestRecord:
    return RequestRecord(request_id, "POST", CHAT, None, tenant=tenant)


def test_a_request_s_trace_has_its_queue_prefill_and_every_step() -> None:
    with server() as made:
        request_id = made.post(CHAT, BODY).headers["x-request-id"]
        document = made.get(f"/v1/traces/{request_id}").json

    (whole,) = spans(document, 0)
    sequence, queue, prefill, *steps = spans(document, 1)
    assert whole["args"]["id"] == request_id
    assert sequence["args"]["output_tokens"] == 8
    assert sequence["args"]["text"] == "hello"
    assert (queue["name"], prefill["name"]) == ("queue", "prefill")
    assert [step["name"] for step in steps] == ["decode"] * 7
    inner = [queue, prefill, *steps]
    for before, after in itertools.pairwise(inner):
        assert abs(before["ts"] + before["dur"] - after["ts"]) < 1.0
    for one in [sequence, *inner]:
        assert whole["ts"] <= one["ts"]
        assert one["ts"] + one["dur"] <= whole["ts"] + whole["dur"] + 1.0


def test_each_of_n_sequences_and_of_several_labels_has_a_line() -> None:
    with server() as made:
        several = made.post(CHAT, {**BODY, "n": 3}).headers["x-request-id"]
        labels = {"prompt": "a", "labels": ["b", "cd"]}
        scored = made.post("/v1/score", labels).headers["x-request-id"]
        documents = [made.get(f"/v1/traces/{one}").json for one in (several, scored)]

    assert [[bool(spans(d, line)) for line in range(5)] for d in documents] == [
        [True, True, True, True, False],
        [True, True, True, False, False],
    ]
    assert spans(documents[1], 1)[0]["args"]["outcome"] == "scored"


def test_a_request_that_failed_has_a_trace_with_the_error() -> None:
    with server() as made:
        answer = made.post(CHAT, {**BODY, "timeout_s": 1e-9})
        trace = made.get(f"/v1/traces/{answer.headers['x-request-id']}").json

    assert answer.status == 504
    assert len(spans(trace, 0)) == 1


def test_traces_are_listed_newest_first_and_belong_to_their_key() -> None:
    ours, theirs = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
    with server(ServerSettings(api_keys=("one", "two"))) as made:
        ids = [made.post(CHAT, BODY, **ours).headers["x-request-id"] for _ in range(2)]
        listed = made.get("/v1/traces", **ours).json["data"]
        others = made.get("/v1/traces", **theirs).json["data"]
        refused = made.get(f"/v1/traces/{ids[0]}", **theirs)

    assert [card["id"] for card in listed] == ids[::-1]
    assert {card["num_output_tokens"] for card in listed} == {8}
    assert others == []
    assert (refused.status, refused.error["code"]) == (404, "trace_not_found")


def test_only_the_newest_that_ended_are_kept_and_all_that_run() -> None:
    tracer = Tracer(max_traces=3)
    with tracer.tracing(record("runs")):
        for number in range(10):
            with tracer.tracing(record(str(number))):
                pass

        assert [trace.trace_id for trace in tracer.recent()] == ["9", "8", "runs"]


def test_a_long_sequence_keeps_a_bounded_number_of_steps() -> None:
    with server() as made:
        made.script("x" * CONTEXT_LEN)
        body = {"prompt": "a", "max_tokens": MAX_STEPS + 200, "speculate": "off"}
        request_id = made.post("/v1/completions", body).headers["x-request-id"]
        document = made.get(f"/v1/traces/{request_id}").json

    steps = [one for one in spans(document, 1) if one["name"] == "decode"]
    assert len(steps) == MAX_STEPS - 1
    assert sum(step["args"]["tokens"] for step in steps) == MAX_STEPS + 199


def test_a_program_s_calls_stand_below_those_they_go_on_from() -> None:
    @umbel.program
    def chain(s: Any) -> None:
        s += "begin " + umbel.gen("first", max_tokens=8)
        for branch in s.fork(2):
            branch += " go on " + umbel.gen("next", max_tokens=8)

    trace = Trace("program", "chain")
    with server() as made:
        chain.run(TracedClient(made.engine, trace))
    parents = [track.parent for track in trace.tracks]
    trace.end()
    document = chrome_trace(trace)

    assert parents == [None, 0, 0]
    assert [track.text for track in trace.tracks] == ["hello"] * 3
    assert len([event for event in document.trace_events if event.ph == "M"]) == 4
    assert SimpleNamespace(**document.other_data).trace_id == "program"
