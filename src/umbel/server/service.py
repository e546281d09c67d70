"""What the handlers of all routes share: the engine, workers, calls under way, and the way in.

`Service.running` is the life of a request in the engine: it ends with its block, at its deadline,
when the client leaves, or when the server must stop.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from umbel.runtime.engine import Engine
from umbel.runtime.errors import (
    DeadlineExceeded,
    InvalidConstraint,
    InvalidRequest,
    RequestCancelled,
    UmbelError,
)
from umbel.server.bodies import Body, BodyDecoder, read_body
from umbel.server.call import Call, Ending, Job, Piece
from umbel.server.dump import RequestDump
from umbel.server.errors import ServerDraining, UnknownModel
from umbel.server.metrics import ServerMetrics
from umbel.server.record import RequestRecord, record_of
from umbel.server.settings import ServerSettings
from umbel.server.thinking import find_think_tags
from umbel.server.tool_syntax import find_syntax
from umbel.server.trace import Tracer

Answer = TypeVar("Answer")

TIMEOUT_HEADER = "x-request-timeout-s"


class Running(Protocol):
    """Work in the engine for one request."""

    async def start(self) -> None:
        """Submit it."""

    def fail(self, error: UmbelError) -> None:
        """End it with an error, which its reader then raises."""

    def stop(self) -> None:
        """Cancel what still runs. Idempotent."""


class Service:
    """Made once per server; everything on it belongs to the loop's thread."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.model_name = settings.model_name or engine.model_name
        self.metrics = ServerMetrics(engine, self.model_name)
        self.think_tags = find_think_tags(engine.tokenizer)
        self.call_syntax = find_syntax(engine.tokenizer.chat_template, engine.tokenizer.special_ids)
        self.tracer = Tracer()
        self.is_draining = False
        self.workers = ThreadPoolExecutor(settings.num_workers, thread_name_prefix="umbel-server")
        self._dump = None if settings.dump is None else RequestDump(settings.dump)
        self._calls: set[Running] = set()

    async def body(self, request: Request, decoder: BodyDecoder[Body]) -> Body:
        """The decoded body of a request; it is dumped when that was asked for."""
        data = await read_body(request, self.settings.max_body_bytes)
        body = decoder.decode(data)
        if self._dump is not None:
            self._dump.add(request.method, request.url.path, data)
        return body

    async def work(self, function: Callable[..., Answer], *args: object) -> Answer:
        """Run what takes longer than a moment in a worker."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, function, *args)

    def check_model(self, name: str | None) -> None:
        """Raises `UnknownModel` for a model that is not this server's; None stands for any."""
        if name is not None and name != self.model_name:
            raise UnknownModel(
                f"there is no model {name!r}; this server has {self.model_name!r}", param="model"
            )

    def check_takes_work(self) -> None:
        """Raises `ServerDraining` once the server is shutting down."""
        if self.is_draining:
            raise ServerDraining("the server is shutting down; send the request to another")

    def begin_drain(self) -> None:
        """Take no more work; what runs is ended with an error after `drain_s`. On the loop."""
        if not self.is_draining:
            self.is_draining = True
            asyncio.get_running_loop().call_later(self.settings.drain_s, self._end_calls)

    @asynccontextmanager
    async def call(
        self,
        request: Request,
        jobs: Sequence[Job],
        *,
        timeout_s: float | None,
        salt: str | None,
        locate: Callable[["Service", InvalidConstraint], Awaitable[None]],
    ) -> AsyncIterator[Call]:
        """A started call, which ends with the block. Raises what `Engine.submit` raises.

        `locate` tells an error of a constraint the field of the body that it is about.
        """
        tenant = self.tenant(request, salt)
        record = record_of(request.scope)
        try:
            with self.tracer.tracing(record) as trace:
                call = Call(self.engine, jobs, workers=self.workers, tenant=tenant, trace=trace)
                async with self.running(request, call, timeout_s=timeout_s):
                    yield call
        except InvalidConstraint as error:
            await locate(self, error)
            raise

    @asynccontextmanager
    async def running(
        self, request: Request, call: Running, *, timeout_s: float | None
    ) -> AsyncIterator[None]:
        """Starts a call; it ends with the block, and fails at its deadline, when the client
        leaves, and when the server must stop.
        """
        self.check_takes_work()
        seconds = self.timeout_s(request, timeout_s)
        watcher = asyncio.create_task(_watch(request.receive, call))
        timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, call.fail, _exceeded(seconds))
        self._calls.add(call)
        try:
            await call.start()
            yield
        finally:
            self._calls.discard(call)
            watcher.cancel()
            if timer is not None:
                timer.cancel()
            call.stop()

    def tenant(self, request: Request, salt: str | None) -> str | None:
        """Whose cache a request uses: its key's, and of that the part of its salt."""
        of_key = record_of(request.scope).tenant
        return of_key if salt is None else f"{of_key or ''}|{salt}"

    def timeout_s(self, request: Request, of_body: float | None) -> float | None:
        """The shortest of the limits: the server's, the header's, the body's."""
        limits = [self.settings.max_request_s, of_body]
        header = request.headers.get(TIMEOUT_HEADER)
        if header is not None:
            try:
                limits.append(float(header))
            except ValueError:
                raise _bad_timeout(header, TIMEOUT_HEADER) from None
        given = [limit for limit in limits if limit is not None]
        for limit in given:
            if not 0 < limit < float("inf"):
                raise _bad_timeout(limit, "timeout_s")
        return min(given, default=None)

    def note(self, record: RequestRecord, pieces: Sequence[Piece]) -> None:
        """Count the news of a call."""
        if record.num_output_tokens == 0 and any(piece.token_ids for piece in pieces):
            self.metrics.first_token_s.observe(record.elapsed_s)
        for piece in pieces:
            record.num_output_tokens += len(piece.token_ids)
            for gap_s in piece.gaps_s:
                self.metrics.inter_token_s.observe(gap_s)
            if piece.ending is not None:
                self._note_ending(record, piece.ending)

    def close(self) -> None:
        """After the last request."""
        if self._dump is not None:
            self._dump.close()
        self.workers.shutdown(wait=False, cancel_futures=True)

    def _note_ending(self, record: RequestRecord, ending: Ending) -> None:
        record.finish = ending.finish_reason.value
        self.metrics.finished.labels(ending.finish_reason.value).inc()
        self.metrics.request_s.observe(record.elapsed_s)

    def _end_calls(self) -> None:
        for call in list(self._calls):
            call.fail(
                ServerDraining("the server is shutting down and could not finish this request")
            )


async def _watch(receive: Receive, call: Running) -> None:
    """End the call when its client leaves. The body was read: nothing else can come."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.fail(RequestCancelled("the client closed the connection"))


def _exceeded(seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the request took longer than its {seconds:g} s; give it more, or lower max_tokens"
    )


def _bad_timeout(got: object, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where}={got!r} is not valid: expected a number of seconds above 0", param=where
    )
