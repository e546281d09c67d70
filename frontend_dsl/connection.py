"""`umbel.connect(url)`: programs run whole on an Umbel server, each in one request.

The graph of the program and its arguments go there; what happens comes back as events, and in the
end the state, as if the run had been here. `Remote` is for other servers, call by call.
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from umbel.frontend_dsl.errors import ProgramError
from umbel.frontend_dsl.events import (
    Event,
    ProgramDone,
    ProgramFailed,
    TextDelta,
    VariableDone,
    VariableFailed,
)
from umbel.frontend_dsl.execution import Execution
from umbel.frontend_dsl.graph.nodes import Graph
from umbel.frontend_dsl.report_wire import (
    BranchStarted,
    RunDone,
    RunEvent,
    RunFailed,
    TextAppended,
    VariableSet,
)
from umbel.frontend_dsl.served import Types, error_of, program_error, record_of, state_of
from umbel.frontend_dsl.state import State
from umbel.runtime.errors import EngineError, InvalidRequest, UmbelError

_EVENT = msgspec.json.Decoder(RunEvent)


@dataclass(frozen=True, slots=True)
class Sendable:
    """A program as it is sent. `types`: classes that its calls are decoded to. `deadline_s`: of the
    run there.
    """

    graph: Graph
    arguments: Mapping[str, Any]
    types: Types = field(default_factory=dict)
    deadline_s: float | None = None


class Connection:
    """An Umbel server, for `program.run(connection, ...)`, `stream` and `run_batch`.

    Each run is a request; ending a stream early ends the run there within a step. Thread-safe; it
    holds nothing open between two runs. Raises `InvalidRequest` for a URL that is none.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"url={url!r} is not valid: expected http://... or https://...")
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/programs"
        self._api_key = api_key
        self._timeout_s = timeout_s

    def run(self, program: Sendable) -> State:
        """The state in the end. Raises `ProgramError` as a run on an engine does."""
        state = self._state(program)
        if state.error is not None:
            raise state.error
        return state

    def stream(self, program: Sendable) -> Iterator[Event]:
        """What happens, as it happens; last `ProgramDone`, or `ProgramFailed` and its error."""
        name = program.graph.name
        with closing(self._events(program)) as events:
            for event in events:
                match event:
                    case TextAppended(branch=branch, variable=variable, text=text):
                        yield TextDelta(branch, variable, text)
                    case VariableSet(branch=branch, variable=variable, value=value, call=call):
                        yield VariableDone(branch, variable, value, record_of(call, branch, name))
                    case RunFailed(error=error, branch=str(branch), variable=variable):
                        yield VariableFailed(branch, variable, program_error(error, name))
                    case RunFailed(error=error):
                        failure = program_error(error, name)
                        yield ProgramFailed(_failed(name, failure), failure)
                        raise failure
                    case RunDone(report=report):
                        yield ProgramDone(state_of(report, name, program.types))
                    case BranchStarted():
                        pass  # here the branches are known by what they say

    def run_batch(self, programs: Iterable[Sendable], *, max_in_flight: int) -> list[State]:
        """The states in order; one that failed has `.error`."""
        with ThreadPoolExecutor(max_in_flight, thread_name_prefix="umbel-connection") as threads:
            return list(threads.map(self._state, programs))

    def _state(self, program: Sendable) -> State:
        name = program.graph.name
        last: RunEvent | None = None
        try:
            with closing(self._events(program)) as events:
                for event in events:
                    last = event
        except ProgramError as error:
            return _failed(name, error)
        if isinstance(last, RunDone):
            return state_of(last.report, name, program.types)
        assert isinstance(last, RunFailed)
        return _failed(name, program_error(last.error, name))

    def _events(self, program: Sendable) -> Generator[RunEvent, None, None]:
        """All events; the last is the run's. Raises `ProgramError` when there are none."""
        name = program.graph.name
        try:
            with self._post(program) as answer:
                for line in answer:
                    if line.startswith(b"data: "):
                        event = _EVENT.decode(line[6:])
                        yield event
                        if isinstance(event, RunDone) or _ends(event):
                            return
            raise EngineError(f"{self._url} ended the stream before the run's end")
        except (UmbelError, OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            if isinstance(error, ProgramError):
                raise
            cause = error
            if not isinstance(error, UmbelError):
                cause = EngineError(f"{self._url}: {type(error).__name__}: {error}")
            raise ProgramError(cause, program=name, branch="root", call=None, site=None) from error

    def _post(self, program: Sendable) -> Any:
        try:
            body = msgspec.json.encode(
                {
                    "graph": program.graph,
                    "arguments": dict(program.arguments),
                    "timeout_s": program.deadline_s,
                }
            )
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the arguments cannot be sent as JSON: {error}") from error
        headers = {"content-type": "application/json"}
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key}"
        request = urllib.request.Request(self._url, body, headers)
        try:
            return urllib.request.urlopen(request, timeout=self._timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(1 << 16)) from error


def connect(url: str, *, api_key: str | None = None, timeout_s: float = 600.0) -> Connection:
    """A server that runs whole programs: `program.run(umbel.connect(url), ...)`."""
    return Connection(url, api_key=api_key, timeout_s=timeout_s)


def _ends(event: RunEvent) -> bool:
    return isinstance(event, RunFailed) and event.is_last


def _failed(name: str, error: ProgramError) -> State:
    execution = Execution.ended(name)
    execution.error = error
    return State(execution.root)


def _refusal(status: int, body: bytes) -> UmbelError:
    try:
        detail = json.loads(body)["error"]
        return error_of(str(detail["code"]), str(detail["message"]))
    except (ValueError, KeyError, TypeError):
        return EngineError(f"the server answered {status}: {body[:200]!r}")
