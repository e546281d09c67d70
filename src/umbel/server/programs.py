"""`/v1/programs`: a compiled program runs next to the cache, in one round trip."""

from collections.abc import AsyncGenerator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from starlette.requests import Request
from starlette.responses import Response

from umbel.frontend_dsl.graph.nodes import CallTool, Graph, walk
from umbel.frontend_dsl.graph.serial import check
from umbel.frontend_dsl.graph_program import GraphProgram
from umbel.frontend_dsl.report_wire import (
    FailureReport,
    RunDone,
    RunEvent,
    RunFailed,
    TextAppended,
)
from umbel.frontend_dsl.served import error_of
from umbel.frontend_dsl.tools import Tool
from umbel.runtime.errors import InvalidRequest, QueueFull, UmbelError
from umbel.server.bodies import BodyDecoder
from umbel.server.program_run import ProgramRun
from umbel.server.protocol.programs import ProgramBody
from umbel.server.record import RequestRecord, record_of
from umbel.server.routes import GENERATING, Route
from umbel.server.service import Service
from umbel.server.sse import EventStream, event
from umbel.server.trace_client import TenantClient, TracedClient

_DECODER = BodyDecoder(ProgramBody)


def program_routes(service: Service, tools: Collection[Tool]) -> Sequence[Route]:
    """The route; `tools` are the only ones that a graph may call."""
    return (
        Route(
            "POST", "/v1/programs", Programs(service, tools).run, "Run a compiled program",
            body=ProgramBody, event=RunEvent, media_type="text/event-stream", errors=GENERATING,
        ),
    )  # fmt: skip


class Programs:
    """The handler, and the threads that its runs have."""

    def __init__(self, service: Service, tools: Collection[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._max_running = service.settings.max_programs
        self._num_running = 0
        self._threads = ThreadPoolExecutor(self._max_running, thread_name_prefix="umbel-program")

    async def run(self, service: Service, request: Request) -> Response:
        """Handler of `POST /v1/programs`."""
        body = await service.body(request, _DECODER)
        service.check_model(body.model)
        program = await service.work(self._checked, service, body.graph)
        record = record_of(request.scope)
        record.is_stream = True
        parts = self._events(service, request, body, program)
        return EventStream(await anext(parts), parts, failure=_failure)

    async def _events(
        self, service: Service, request: Request, body: ProgramBody, program: GraphProgram
    ) -> AsyncGenerator[bytes, None]:
        if self._num_running >= self._max_running:
            raise QueueFull(
                f"{self._num_running} programs run, and no more do at a time; try again later"
            )
        self._num_running += 1
        record = record_of(request.scope)
        tenant = service.tenant(request, body.cache_salt)
        try:
            with service.tracer.tracing(record) as trace:
                trace.name = program.name
                client = TracedClient(TenantClient(service.engine, tenant), trace)
                run = ProgramRun(program, body.arguments, client, threads=self._threads)
                async with service.running(request, run, timeout_s=body.timeout_s):
                    is_first = True
                    async for events in run.events():
                        if is_first:
                            _raise_if_not_begun(events)
                            is_first = False
                        _note(service, record, events)
                        yield b"".join(event(one, str(one.__struct_config__.tag)) for one in events)
        finally:
            self._num_running -= 1

    def _checked(self, service: Service, graph: Graph) -> GraphProgram:
        """Raises `InvalidRequest` for a graph that is beyond a bound or cannot run here."""
        try:
            check(graph, service.settings.program_limits)
            for node in walk(graph.body):
                if isinstance(node, CallTool) and node.tool not in self._tools:
                    known = ", ".join(sorted(self._tools)) or "none"
                    raise InvalidRequest(
                        f"the graph calls the tool {node.tool!r} (line {node.line}), but the tools "
                        f"of this server are: {known}"
                    )
            return GraphProgram(
                graph,
                tools=self._tools.values(),
                max_chars=service.settings.max_program_chars,
            )
        except InvalidRequest as error:
            error.param = error.param or "graph"
            raise


def _raise_if_not_begun(events: Sequence[RunEvent]) -> None:
    """What fails before any call began (wrong arguments, a full queue) is a plain error answer."""
    last = events[-1]
    if not isinstance(last, RunFailed) or not last.is_last:
        return
    is_refused = last.error.code == QueueFull.code
    if is_refused or (last.error.call is None and len(events) <= 2):
        raise error_of(last.error.code, last.error.message)


def _note(service: Service, record: RequestRecord, events: Sequence[RunEvent]) -> None:
    if record.num_output_tokens == 0 and any(_is_output(one) for one in events):
        service.metrics.first_token_s.observe(record.elapsed_s)
        record.num_output_tokens = 1
    last = events[-1]
    if isinstance(last, RunDone):
        record.finish = "stop"
        record.num_prompt_tokens = last.usage.num_prompt_tokens
        record.num_cached_tokens = last.usage.num_cached_tokens
        record.num_output_tokens = last.usage.num_output_tokens
        service.metrics.request_s.observe(record.elapsed_s)
    elif isinstance(last, RunFailed) and last.is_last:
        record.error = last.error.code


def _is_output(one: RunEvent) -> bool:
    return isinstance(one, TextAppended) and one.variable is not None


def _failure(error: UmbelError) -> bytes:
    report = FailureReport(message=str(error), code=error.code, branch="root")
    return event(RunFailed(error=report, is_last=True), "error")
