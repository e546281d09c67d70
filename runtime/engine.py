"""The engine: one thread that runs steps, and the methods that callers use from any other.

`Engine.step` is the whole system in one screen. Callers only ever leave commands in the inbox;
everything below `step` belongs to the engine's thread.
"""

import atexit
import itertools
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from umbel.kernels.native.threads import use_threads
from umbel.radix_cache.tree import Namespace, NodeView, RadixCache
from umbel.runtime import generation, heap
from umbel.runtime.choosing import TokenChooser
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import WARM_UP_AFTER_S, CompilerStats
from umbel.runtime.errors import (
    EngineClosed,
    EngineError,
    RequestCancelled,
    UmbelError,
)
from umbel.runtime.flight import CallHandle, ChunkListener, Flight, FlightTable, ScoreListener
from umbel.runtime.inbox import Inbox
from umbel.runtime.output_text import output_text_of
from umbel.runtime.outputs import Chunk, Result, Score
from umbel.runtime.params import SamplingParams, make_params
from umbel.runtime.parts import EngineParts, load_apart, make_config, make_pacer
from umbel.runtime.request import Update
from umbel.runtime.roofline.gauge import Gauge, Reading
from umbel.runtime.roofline.times import StepTimes
from umbel.runtime.scheduler import Scheduler
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.stats import EngineStats, GaugeReader, StatsRecorder, StepClock
from umbel.runtime.step import StepPlan
from umbel.runtime.submission import SeedStream, make_requests, make_score_request
from umbel.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from umbel.grammar import Constraint

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Messages = Sequence[Mapping[str, Any]]


class Engine:
    """A model that generates and scores for many callers at once. Thread-safe; close it when done.

    `Engine(model, **options)`: `model` is a folder or a .gguf file, None the embedded model;
    options are the fields of `EngineConfig`. Listeners are called on the engine's thread and must
    not block; what they raise is logged.
    """

    def __init__(
        self, model: str | None = None, config: EngineConfig | None = None, **options: Any
    ) -> None:
        config = make_config(model, config, options)
        self._set_up(load_apart(config), config)

    @classmethod
    def from_parts(cls, parts: EngineParts, config: EngineConfig | None = None) -> "Engine":
        """An engine over parts that were made already; sizes come from `parts.limits`."""
        engine = cls.__new__(cls)
        engine._set_up(parts, config or EngineConfig())
        return engine

    def _set_up(self, parts: EngineParts, config: EngineConfig) -> None:
        self.config = config
        self._parts = parts
        limits, reuse = parts.limits, config.prefix_cache
        self._cache = RadixCache(limits.num_blocks, limits.block_size, enable_reuse=reuse)
        eos_ids = parts.tokenizer.eos_ids
        pacer = make_pacer(config, parts.costs)
        drafter = Drafter() if config.speculate == "auto" else None
        self._scheduler = Scheduler(
            self._cache, config, eos_ids, cut_cost=parts.costs.cut_cost(), drafter=drafter,
            chunk_beside=None if pacer is None else pacer.chunk_beside,
        )  # fmt: skip
        self._chooser = TokenChooser(parts.sampler, limits.vocab_size, eos_ids)
        self._stats = StatsRecorder(self._scheduler, self._cache, parts.costs, pacer, drafter)
        gauge_device = config.gauge_device or parts.gauge_device
        self._gauge_reader = GaugeReader(gauge_device, parts.costs.dtype)
        self._inbox = Inbox()
        self._flights = FlightTable(config.max_running + config.max_waiting)
        self._seeds = SeedStream(config.seed)
        self._ids = itertools.count()
        self._thread = threading.Thread(target=self._serve, name="umbel-engine", daemon=True)
        self._thread.start()
        self._exit_hook = partial(_close_if_alive, weakref.ref(self))
        atexit.register(self._exit_hook)

    # -- the engine's thread

    def step(self) -> bool:
        """Admit what came in, and run one step. False when there is nothing to compute."""
        clock, times = StepClock(), StepTimes()
        self._admit()
        plan = self._scheduler.plan()
        times.plan_s = clock.lap_s()
        if plan is None:
            return False
        self._mark_started(plan)
        failure: EngineError | None = None
        try:
            logits = self._parts.runner.execute(plan)
            times.forward_s = clock.lap_s()
            sampled, scored = self._chooser.choose(plan, logits)
            times.sample_s = clock.lap_s()
        except Exception as exc:
            failure = self._failure("computing a step", exc)
            updates = self._scheduler.fail_step(plan, failure)
        else:
            updates = self._scheduler.commit(plan, sampled, scored)
        times.commit_s = clock.lap_s()
        self._stats.record(plan, times, is_failed=failure is not None)
        self._deliver(updates)
        self._stats.record_delivery(clock.lap_s())
        return True

    def _serve(self) -> None:
        if self.config.num_threads is not None:
            use_threads(self.config.num_threads)
        try:
            while not self._inbox.is_closed:
                self._step_or_wait()
        except Exception:
            logger.critical("the engine cannot go on and closes", exc_info=True)
        finally:
            self._inbox.close()
            self._sweep()

    def _step_or_wait(self) -> None:
        try:
            if not self.step() and not self._inbox.wait(WARM_UP_AFTER_S):
                with self._parts.compiler.warming():
                    if not self._inbox.wait(heap.GIVE_BACK_AFTER_S):
                        heap.give_back()
                        self._inbox.wait()
        except Exception as exc:
            # A bug in scheduling: what is running cannot be trusted any more, new requests can.
            self._deliver(self._scheduler.fail_all(self._failure("scheduling a step", exc)))

    def _admit(self) -> None:
        for command in self._inbox.take():
            try:
                command()
            except Exception:  # a bug; the other commands are other people's
                logger.exception("a command to the engine failed")

    def _mark_started(self, plan: StepPlan) -> None:
        now_s = time.perf_counter()
        for request in plan.requests:
            flight = self._flights.get(request)
            if flight is not None and flight.started_s is None:
                flight.started_s = now_s

    def _deliver(self, updates: Sequence[Update]) -> None:
        self._stats.refresh()  # first: who gets an answer may look at the stats next
        now_s = time.perf_counter()
        for update in updates:
            flight = self._flights.get(update.request)
            if flight is None:
                continue
            if update.is_last:
                self._flights.remove([flight])
            self._tell(flight, update, now_s)

    def _tell(self, flight: Flight, update: Update, now_s: float) -> None:
        try:
            event = flight.event(update, now_s)
        except Exception as exc:  # a fault of ours is an answer, too: nobody may wait for ever
            update.error, update.is_last = self._failure("making an answer", exc), True
            event = flight.event(update, now_s)
        try:
            if event is not None:
                event()
        except Exception:
            request_id = flight.request.request_id
            logger.exception("the listener of request %d raised; it is ignored", request_id)

    def _failure(self, doing: str, exc: BaseException) -> EngineError:
        number = self._scheduler.counts.num_steps + 1
        logger.error("%s failed (step %d)", doing, number, exc_info=exc)
        error = EngineError(f"{doing} failed (step {number}): {type(exc).__name__}: {exc}")
        error.__cause__ = exc
        return error

    def _enqueue(self, flights: Sequence[Flight], constraint: "Constraint | None") -> None:
        for flight in flights:
            request = flight.request
            if self._flights.get(request) is None:
                continue  # cancelled while its constraint was compiled
            try:
                if not request.is_score:
                    request.text = output_text_of(self._parts.tokenizer, request.params)
                if constraint is not None:
                    request.matcher = constraint.start()
                    flight.constraint = constraint
                self._deliver(self._scheduler.add(request))
            except Exception as exc:
                self._fail([flight], exc)

    def _take_constraint(self, flights: Sequence[Flight], future: "Future[Constraint]") -> None:
        error = future.exception()
        if error is not None:
            self._fail(flights, error)
        else:
            self._enqueue(flights, future.result())

    def _cancel(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            request = flight.request
            self._deliver(self._scheduler.abort(request.request_id))
            if self._flights.get(request) is not None:  # still waiting for its constraint
                error = RequestCancelled(f"request {request.request_id} was cancelled")
                self._fail([flight], error)

    def _fail(self, flights: Sequence[Flight], exc: BaseException) -> None:
        error = exc if isinstance(exc, UmbelError) else self._failure("admitting a request", exc)
        for flight in flights:
            update = flight.request.take_update(error)
            assert update is not None
            self._deliver([update])

    def _sweep(self) -> None:
        """Answer everybody who is left."""
        self._admit()
        error = EngineClosed("the engine was closed before the request finished")
        try:
            self._deliver(self._scheduler.fail_all(error))
        except Exception:
            logger.exception("the engine could not give back what its requests held")
        self._fail(self._flights.close(), error)

    # -- the client of the language (frontend_dsl/client.py); any thread

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`. With `special`, the text of special tokens becomes those tokens."""
        return self._parts.tokenizer.encode(text, special=special)

    def bos_ids(self) -> list[int]:
        """What a fresh sequence without chat roles starts with ([] or [bos])."""
        return self._parts.tokenizer.bos_ids()

    def eos_ids(self) -> list[int]:
        """The tokens that end a generation."""
        return sorted(self._parts.tokenizer.eos_ids)

    def open_role(self, messages: Messages, role: str) -> str:
        """The template's text that opens a message of `role` after the complete `messages`."""
        return self._parts.chat.open_role(messages, role)

    def close_role(self, messages: Messages, role: str) -> str:
        """The template's text that closes the message of `role` opened after `messages`."""
        return self._parts.chat.close_role(messages, role)

    def hold(self) -> AbstractContextManager[None]:
        """Within it, this thread's calls are collected; they enter together when it ends."""
        return self._inbox.hold()

    def submit(
        self,
        token_ids: Sequence[int],
        params: SamplingParams,
        listener: ChunkListener,
        *,
        tenant: str | None = None,
    ) -> CallHandle:
        """Generate after `token_ids`. The listener gets, for each of the n sequences, chunks of
        which exactly the last has a completion or an error. Cached KV is shared within a tenant
        only.

        Raises `InvalidRequest` for what can never run, `QueueFull`, `EngineClosed`.
        """
        seed = params.seed if isinstance(params, SamplingParams) else None
        requests = make_requests(
            token_ids,
            params,
            self._parts.limits,
            ids=self._ids,
            namespace=self._namespace(tenant),
            seed=self._seeds.draw() if seed is None else seed,
        )
        now_s = time.perf_counter()
        flights = [Flight(request, now_s, on_chunk=listener) for request in requests]
        return self._launch(flights, params)

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: ScoreListener,
        *,
        tenant: str | None = None,
    ) -> CallHandle:
        """Log-probabilities of `continuation_ids` after `token_ids`. Raises as `submit` does."""
        request = make_score_request(
            token_ids,
            continuation_ids,
            self._parts.limits,
            ids=self._ids,
            namespace=self._namespace(tenant),
        )
        return self._launch(
            [Flight(request, time.perf_counter(), on_score=listener)], request.params
        )

    def pin(self, token_ids: Sequence[int], *, tenant: str | None = None) -> CallHandle:
        """Keep the KV that is there of `token_ids` for calls to come: until the handle is
        cancelled, or others need the room (see docs/scheduling.md). Computes nothing.
        """
        pin_id, tokens = next(self._ids), list(token_ids)
        self._put_if_open(partial(self._cache.pin, pin_id, tokens, self._namespace(tenant)))
        return CallHandle(partial(self._put_if_open, partial(self._cache.unpin, pin_id)))

    def _namespace(self, tenant: str | None) -> Namespace:
        return (
            self._parts.namespace
            if tenant is None
            else replace(self._parts.namespace, tenant=tenant)
        )

    def _launch(self, flights: list[Flight], params: SamplingParams) -> CallHandle:
        self._flights.add(flights)
        try:
            if params.constraint_kind is None:
                self._inbox.put(partial(self._enqueue, flights, None))
            else:
                future = self._parts.compiler.submit(params)
                future.add_done_callback(partial(self._on_compiled, flights))
        except BaseException:
            self._flights.remove(flights)
            raise
        return CallHandle(partial(self._put_if_open, partial(self._cancel, flights)))

    def _on_compiled(self, flights: Sequence[Flight], future: "Future[Constraint]") -> None:
        self._put_if_open(partial(self._take_constraint, flights, future))

    def _put_if_open(self, command: Callable[[], object]) -> None:
        with suppress(EngineClosed):  # the sweep at the end answers every flight
            self._inbox.put(command)

    # -- generating: thin names for runtime/generation.py; any thread

    def generate(
        self, prompt: generation.Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Result:
        """Generate after `prompt` and wait. Options are the fields of `SamplingParams`.

        A string is tokenized as template text (special tokens count), with the model's bos in
        front; token ids are taken as they are. Raises the request's error.
        """
        return generation.generate(self, prompt, make_params(params, options))

    def generate_batch(
        self,
        prompts: Sequence[generation.Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[Result | UmbelError]:
        """`generate` for many at once. One that fails gives its error in its place."""
        return generation.generate_batch(self, prompts, params, options)

    def stream(
        self, prompt: generation.Prompt, params: SamplingParams | None = None, **options: Any
    ) -> "generation.ChunkStream":
        """An iterator over chunks as they come. Closing it early stops the request."""
        return generation.ChunkStream(self, prompt, make_params(params, options))

    async def agenerate(
        self, prompt: generation.Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Result:
        """`generate` in asyncio. Cancelling the task stops the request."""
        return await generation.agenerate(self, prompt, make_params(params, options))

    def astream(
        self, prompt: generation.Prompt, params: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[Chunk]:
        """`stream` in asyncio. The request starts with the first item that is asked for."""
        return generation.astream(self, prompt, make_params(params, options))

    def score(
        self, prompt: generation.Prompt, continuations: Sequence[generation.Prompt]
    ) -> list[Score]:
        """Log-probabilities of each continuation after `prompt`. Strings are tokenized each by
        itself.
        """
        return generation.score(self, prompt, continuations)

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, **options: Any
    ) -> Result:
        """`generate` the assistant's answer to `messages` ({"role", "content"})."""
        return generation.generate(self, self.encode_chat(messages), make_params(params, options))

    def encode_chat(
        self, messages: Messages, *, add_generation_prompt: bool = True, **extra: Any
    ) -> list[int]:
        """`messages` in the model's template, as tokens; special tokens come from the template
        only. `extra` are further variables of the template (`tools`, `enable_thinking`, ...).
        """
        return self._parts.chat.encode(
            self._parts.tokenizer, messages, add_generation_prompt=add_generation_prompt, **extra
        )

    # -- the engine itself; any thread

    @property
    def tokenizer(self) -> Tokenizer:
        return self._parts.tokenizer

    @property
    def model_name(self) -> str:
        return self._parts.namespace.model

    @property
    def context_len(self) -> int:
        """Tokens of prompt and output together."""
        return self._parts.limits.context_len

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is a listener: it must not wait for the engine."""
        return threading.current_thread() is self._thread

    @property
    def is_holding(self) -> bool:
        """Whether the calling thread is inside `hold()`."""
        return self._inbox.is_holding

    def stats(self) -> EngineStats:
        """As of the last answer: what was counted before it was given is included."""
        return self._stats.snapshot

    def gauge(self) -> Gauge:
        """The steps so far against the device's limits; see docs/roofline.md. The first time a
        process asks, the CPU is measured on the caller's thread (0.7 s): best before there is work.
        """
        return self._gauge_reader.read(self.stats)

    def gauge_since(self, before: EngineStats) -> Reading | None:
        """`gauge` of the steps since a snapshot of this engine; None if there was none."""
        return self._gauge_reader.read_since(before, self.stats)

    def compiler_stats(self) -> CompilerStats:
        return self._parts.compiler.stats()

    def compile_constraint(self, params: SamplingParams) -> "Constraint | None":
        """What `params` would constrain a generation to; waits. Raises `InvalidConstraint`."""
        return self._parts.compiler.compile(params)

    def cache_nodes(self) -> list[NodeView]:
        """The radix tree between two steps, for drawing."""
        return self._call(self._cache.snapshot)

    def reset_cache(self) -> int:
        """Forget all KV that no running request uses, pins too; the number of freed blocks."""
        return self._call(self._clear_cache)

    def close(self) -> None:
        """Stop: what is under way ends with `EngineClosed`. Idempotent; leaves no thread."""
        self._inbox.close()
        if not self.is_own_thread:
            self._thread.join()
        self._parts.close()
        atexit.unregister(self._exit_hook)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _clear_cache(self) -> int:
        self._cache.unpin_all()
        num_freed = self._cache.clear()
        self._stats.refresh()
        return num_freed

    def _call(self, function: Callable[[], Answer]) -> Answer:
        """Run a function on the engine's thread, between two steps, and wait for its answer."""
        return function() if self.is_own_thread else self._inbox.ask(function)


def _close_if_alive(engine_ref: weakref.ref[Engine]) -> None:
    engine = engine_ref()
    if engine is not None:
        engine.close()
