"""Programs on a server of OpenAI's protocol, which here is a few lines of http.server."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from umbel.frontend_dsl import ProgramError, Remote, State, assistant, gen, program, select, user
from umbel.runtime.errors import EngineError, InvalidRequest, QueueFull


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append({"path": self.path, **body})
        self.server.headers.append(self.headers)
        choice = body.get("structured_outputs", {}).get("choice", ["answer"])[0]
        logprobs = None
        if body.get("echo"):  # a word is a token, the longer the likelier
            tokens = re.findall(r" ?[^ ]+|  *", body["prompt"])
            values = [None, *(-1.0 / len(token) for token in tokens[1:])]
            logprobs = {"tokens": tokens, "token_logprobs": values}
        answer = {
            "choices": [{"text": choice, "finish_reason": "length", "logprobs": logprobs}],
            "usage": {
                "prompt_tokens": 7, "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 5},
            },
        }  # fmt: skip
        data = json.dumps(answer if self.server.status == 200 else {"error": "no"}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _remote(server: _Server, **options: Any) -> Remote:
    return Remote(f"http://127.0.0.1:{server.server_port}", model="m", **options)


def test_a_program_runs_on_a_server(server: _Server) -> None:
    @program(temperature=0.0)
    def chat(s: State, question: str) -> str:
        s += user(question)
        s += assistant(gen("a", max_tokens=4, stop="."))
        forks = s.fork(2)
        for branch in forks:
            branch += gen("b", choices=["x", "y"])
        return s["a"] + forks[0]["b"]

    with _remote(server, template="chatml", structured_outputs=True, api_key="key") as remote:
        state = chat.run(remote, question="why?")

    assert state.result == "answerx"
    first = server.bodies[0]
    assert first["path"] == "/v1/completions"
    assert first["prompt"] == ("<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n")
    assert (first["max_tokens"], first["stop"], first["temperature"]) == (4, ["."], 0.0)
    assert "structured_outputs" not in first
    assert server.bodies[1]["prompt"].endswith("answer<|im_end|>\n")
    assert server.headers[0]["Authorization"] == "Bearer key"
    assert state.meta("a").usage.num_cached_tokens == 5


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (lambda: select("x", ["a", "b"]), "select needs scores"),
        (lambda: gen("x", lark='start: "a"'), "lark needs a server with structured outputs"),
        (lambda: gen("x", top_k=3), "top_k is not part of OpenAI's protocol"),
        (lambda: assistant(gen("x")), "roles need the template"),
    ],
)
def test_what_a_server_cannot_do_is_refused_and_nothing_is_sent(
    server: _Server, expression: Any, message: str
) -> None:
    @program
    def asks(s: State) -> None:
        s += "text"
        s += expression()

    with _remote(server) as remote, pytest.raises(ProgramError, match=message):
        asks.run(remote)

    assert server.bodies == []


def test_choices_are_scored_by_echoed_prompts(server: _Server) -> None:
    @program
    def choose(s: State) -> str:
        s += "one of"
        s += select("x", [" a cat", " elephants", " it"])
        return s["x"]

    with _remote(server, scores=True) as remote:
        state = choose.run(remote)

    record = state.meta("x")
    assert state.result == " elephants"
    assert record.scores[" a cat"] == pytest.approx(-(1 / 2 + 1 / 4) / 2)
    assert {body["prompt"] for body in server.bodies} == {
        "one of a cat", "one of elephants", "one of it",
    }  # fmt: skip
    assert all(body["echo"] and body["max_tokens"] == 0 for body in server.bodies)


@pytest.mark.parametrize(
    ("choice", "options", "message"),
    [
        ("s", {}, "do not part the prompt from the choice 's'"),
        (" s", {"method": "greedy_token"}, "compares choices token by token"),
    ],
)
def test_scores_that_are_none_of_the_choice_are_refused(
    server: _Server, choice: str, options: Any, message: str
) -> None:
    @program
    def choose(s: State) -> str:
        s += "one"
        s += select("x", [choice, " two three"], **options)
        return s["x"]

    with _remote(server, scores=True) as remote, pytest.raises(ProgramError, match=message):
        choose.run(remote)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (429, QueueFull), (500, EngineError)]
)
def test_a_servers_errors_are_errors_of_the_call(
    server: _Server, status: int, kind: type[Exception]
) -> None:
    @program
    def asks(s: State) -> None:
        s += "text" + gen("x")

    server.status = status
    with _remote(server) as remote, pytest.raises(ProgramError) as info:
        asks.run(remote)

    assert type(info.value.cause) is kind
    assert info.value.call == "gen('x')"


def test_a_server_that_is_not_there_is_an_error_of_the_call() -> None:
    @program
    def asks(s: State) -> None:
        s += "text" + gen("x")

    with Remote("http://127.0.0.1:9", model="m") as remote, pytest.raises(ProgramError) as info:
        asks.run(remote)

    assert isinstance(info.value.cause, EngineError)


def test_choices_go_out_as_a_grammar_to_a_server_that_takes_gbnf(server: _Server) -> None:
    @program
    def asks(s: State) -> None:
        s += "text" + gen("x", choices=['say "no"', "ja\n"])
        s += gen("y", gbnf='root ::= "a"')

    with _remote(server, structured_outputs="gbnf") as remote:
        asks.run(remote)

    grammars = [body["grammar"] for body in server.bodies]
    assert grammars == [r'root ::= "say \"no\"" | "ja\n"', 'root ::= "a"']


@pytest.mark.parametrize(
    ("constraint", "mode", "message"),
    [
        ({"regex": "[0-9]"}, "gbnf", "choices and gbnf can"),
        ({"json_schema": {}}, "gbnf", "choices and gbnf can"),
        ({"gbnf": 'root ::= "a"'}, True, "structured_outputs='gbnf'"),
    ],
)
def test_a_constraint_that_the_server_has_no_field_for_is_refused_before_it_is_sent(
    server: _Server, constraint: Any, mode: Any, message: str
) -> None:
    @program
    def asks(s: State) -> None:
        s += "text" + gen("x", **constraint)

    with (
        _remote(server, structured_outputs=mode) as remote,
        pytest.raises(ProgramError, match=message),
    ):
        asks.run(remote)

    assert server.bodies == []


@pytest.mark.parametrize(
    "options", [{"url": "ftp://x"}, {"template": "unknown"}, {"structured_outputs": "xml"}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Remote(**{"url": "http://x", "model": "m", **options})


def test_a_type_goes_out_as_its_schema(server: _Server) -> None:
    @program
    def asks(s: State) -> None:
        s += "text" + gen("x", json_schema=dict[str, int])

    with _remote(server, structured_outputs=True) as remote:
        asks.run(remote)

    sent = server.bodies[0]["structured_outputs"]["json"]
    assert sent["additionalProperties"] == {"type": "integer"}
