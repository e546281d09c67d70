"""Compiled constraints for requests: made off the step loop, once per content, kept within a bound.

Called by the engine when a request is submitted. Equal requests share one compilation, while it
runs and afterwards. A verdict of the grammar is kept like a result; an accident (memory, a fault of
ours) is not.
"""

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from umbel.grammar import (
    Constraint,
    GrammarError,
    UnsatisfiableGrammar,
    UnsupportedGrammar,
    Vocabulary,
    compile_choices,
    compile_gbnf,
    compile_json_schema,
    compile_lark,
    compile_regex,
    compile_structural_tag,
    warm_up_steps,
)
from umbel.grammar.errors import CompileCancelled
from umbel.grammar.interrupt import interruptible
from umbel.grammar.schema import load
from umbel.runtime.errors import (
    EngineClosed,
    EngineError,
    InvalidConstraint,
    UmbelError,
    UnsatisfiableConstraint,
    UnsupportedConstraint,
)
from umbel.runtime.outputs import CapturedText, Captures
from umbel.runtime.params import SamplingParams

logger = logging.getLogger(__name__)

# What all grammars share is computed once the engine had nothing to do for so long. Beside decoding
# it takes the interpreter's lock: steps of 10 ms took up to 80.
WARM_UP_AFTER_S = 0.05
MAX_COMPILE_S = 20.0  # of one constraint; the grammar's own budgets mostly end it earlier

# By the name of the sampling option. The source is of the type that the option has.
Compiler = Callable[[Any, Vocabulary], Constraint]
COMPILERS: dict[str, Compiler] = {
    "regex": compile_regex,
    "choices": compile_choices,
    "json_schema": compile_json_schema,
    "lark": compile_lark,
    "gbnf": compile_gbnf,
    "structural_tag": compile_structural_tag,
}


class VocabularySource(Protocol):
    """What a vocabulary needs of a tokenizer."""

    token_bytes: list[bytes | None]
    eos_ids: frozenset[int]
    special_ids: dict[str, int]

    def encode(self, text: str, *, special: bool = False) -> list[int]: ...


def make_vocabulary(tokenizer: VocabularySource, logits_size: int) -> Vocabulary:
    """The tokens as the grammar sees them.

    `logits_size` is the width of the model's logits, which may be padded beyond the tokenizer, or
    end before tokens that were added to it.
    """
    return Vocabulary(
        tokenizer.token_bytes[:logits_size],
        sorted(token_id for token_id in tokenizer.eos_ids if token_id < logits_size),
        size=logits_size,
        encode=tokenizer.encode,
        special_ids={name: i for name, i in tokenizer.special_ids.items() if i < logits_size},
    )


@dataclass(frozen=True, slots=True)
class CompilerStats:
    """Counts and seconds since the start (joining a running compilation is a hit), and present
    sizes.
    """

    num_hits: int
    num_misses: int
    num_cached: int
    num_running: int
    num_compiled: int
    compile_s: float  # of all that were compiled


class ConstraintCompiler:
    """Thread-safe. `cache_size` counts finished compilations, the least recently used goes first.

    `num_workers` compilations run at the same time; further ones wait. One that takes longer than
    `max_compile_s`, or that nobody waits for any more, is stopped and not kept. `compilers` maps
    the name of a sampling option to the function that compiles it. With `warm_up`, what all
    grammars share is computed in advance, within `warming`.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        cache_size: int,
        num_workers: int = 1,
        compilers: Mapping[str, Compiler] = COMPILERS,
        max_compile_s: float = MAX_COMPILE_S,
        warm_up: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._cache_size = cache_size
        self._compilers = compilers
        self._max_compile_s = max_compile_s
        self._executor = ThreadPoolExecutor(num_workers, thread_name_prefix="umbel-grammar")
        self._lock = threading.Lock()  # guards all below
        self._finished: OrderedDict[Hashable, Constraint | GrammarError] = OrderedDict()
        self._running: dict[Hashable, list[Future[Constraint]]] = {}  # key -> who waits for it
        self._num_hits = 0
        self._num_misses = 0
        self._num_compiled = 0
        self._compile_s = 0.0
        self._is_closed = False
        self._warm_up_steps = warm_up_steps(vocabulary) if warm_up else iter(())
        self._may_warm = False
        self._is_warming = False  # a step waits for a worker, or runs

    def compile(self, params: SamplingParams) -> Constraint | None:
        """The constraint of `params`, None if they have none. Waits for its compilation.

        Raises `InvalidConstraint` with `param` and `where`; see `submit` for the rest.
        """
        if params.constraint_kind is None:
            return None
        return self.submit(params).result()

    def submit(self, params: SamplingParams) -> Future[Constraint]:
        """The constraint of `params`, which must have one; done at once if it is known.

        The future is the caller's own: to cancel it takes nothing from others. Its error is
        `InvalidConstraint`, `UnsupportedConstraint`, `EngineClosed` or, for a fault of ours,
        `EngineError`. Raises `EngineClosed` after `close()`.
        """
        kind = params.constraint_kind
        assert kind is not None, "submit() needs params with a constraint"
        key, source = _frozen(kind, getattr(params, kind))
        future: Future[Constraint] = Future()
        with self._lock:
            if self._is_closed:
                raise EngineClosed("the engine was closed; no constraint is compiled any more")
            outcome = self._finished.get(key)
            if outcome is not None:
                self._finished.move_to_end(key)
                self._num_hits += 1
            elif key in self._running:
                self._running[key].append(future)
                self._num_hits += 1
            else:
                self._running[key] = [future]
                self._num_misses += 1
                self._executor.submit(self._work, key, kind, source)
        if outcome is not None:
            _deliver(future, outcome, kind)
        return future

    @contextmanager
    def warming(self) -> Iterator[None]:
        """Within it, warming up goes on in the background, step by step between compilations."""
        with self._lock:
            self._may_warm = True
            self._warm_further()
        try:
            yield
        finally:
            with self._lock:
                self._may_warm = False

    def _warm_further(self) -> None:
        if self._may_warm and not self._is_warming and not self._is_closed:
            self._is_warming = True
            self._executor.submit(self._warm)

    def _warm(self) -> None:
        step = next(self._warm_up_steps, None)
        try:
            if step is not None:
                step()
        except Exception:  # a bug; grammars compute what they need themselves
            logger.exception("a part of the grammars' warm-up failed")
        with self._lock:
            self._is_warming = False
            if step is not None:
                self._warm_further()

    def stats(self) -> CompilerStats:
        with self._lock:
            return CompilerStats(
                self._num_hits,
                self._num_misses,
                len(self._finished),
                len(self._running),
                self._num_compiled,
                self._compile_s,
            )

    def close(self) -> None:
        """Compile nothing more; whoever still waits gets `EngineClosed`. Idempotent."""
        with self._lock:
            self._is_closed = True
            waiting = [future for futures in self._running.values() for future in futures]
            self._running.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)
        for future in waiting:
            _fail(future, EngineClosed("the engine was closed while a constraint was compiled"))

    def _should_stop(self, key: Hashable, started_s: float) -> bool:
        """Out of time, or nobody waits any more."""
        if time.perf_counter() - started_s > self._max_compile_s:
            return True
        with self._lock:
            waiting = self._running.get(key, ())
            return all(future.cancelled() for future in waiting)

    def _work(self, key: Hashable, kind: str, source: Any) -> None:
        outcome: Constraint | Exception
        started_s = time.perf_counter()
        try:
            with interruptible(lambda: self._should_stop(key, started_s)):
                outcome = self._compilers[kind](source, self._vocabulary)
        except CompileCancelled:
            outcome = CompileTimeout(
                f"compiling took longer than {self._max_compile_s:g} s; make the grammar simpler"
            )
        except GrammarError as exc:
            outcome = _without_frames(exc)
        except Exception as exc:  # a fault while compiling belongs to the requests that wait
            outcome = exc
        elapsed_s = time.perf_counter() - started_s
        with self._lock:
            self._num_compiled += 1
            self._compile_s += elapsed_s
            waiting = self._running.get(key, [])
            is_early = isinstance(outcome, CompileTimeout) and elapsed_s <= self._max_compile_s
            if is_early and not all(future.cancelled() for future in waiting):
                # Stopped since nobody waited, and just then somebody came.
                self._executor.submit(self._work, key, kind, source)
                return
            self._running.pop(key, None)
            if isinstance(outcome, GrammarError) or not isinstance(outcome, Exception):
                self._finished[key] = outcome
                while len(self._finished) > self._cache_size:
                    self._finished.popitem(last=False)
        for future in waiting:
            _deliver(future, outcome, kind)


class CompileTimeout(Exception):
    """Nothing is known about the grammar: not kept."""


def _frozen(kind: str, source: Any) -> tuple[Hashable, Any]:
    """(key, source) of a constraint; the key is equal for equal contents.

    The order of a schema's properties is content: it orders the output. A JSON value is copied, so
    that its owner may change it later. A Python type stands for itself (the key keeps it alive, so
    that no other takes its identity). What is neither JSON nor hashable shares with nothing, and is
    left to its compiler to refuse.
    """
    value = list(source) if kind == "choices" else source
    try:
        text = json.dumps(value, ensure_ascii=False)
        copy = json.loads(text)
        if copy == value:  # not so for tuples, NaN, and keys that are no strings
            return (kind, hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()), copy
    except (TypeError, ValueError, RecursionError):
        pass  # no JSON value
    try:
        hash(source)
    except TypeError:
        return object(), source
    return (kind, type(source), source), source


def _deliver(future: "Future[Constraint]", outcome: Constraint | Exception, kind: str) -> None:
    if isinstance(outcome, Exception):
        _fail(future, _translated(outcome, kind))
    elif future.set_running_or_notify_cancel():
        future.set_result(outcome)


def _fail(future: "Future[Constraint]", error: UmbelError) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def _translated(exc: Exception, kind: str) -> UmbelError:
    """A new error for each request: one object raised in several threads would mix its traces."""
    error: UmbelError
    if isinstance(exc, UnsupportedGrammar):
        error = UnsupportedConstraint(f"{kind}: {exc}", param=kind, where=exc.where)
    elif isinstance(exc, UnsatisfiableGrammar):
        error = UnsatisfiableConstraint(f"{kind}: {exc}", param=kind, where=exc.where)
    elif isinstance(exc, CompileTimeout):
        error = UnsupportedConstraint(f"{kind}: {exc}", param=kind)
    elif isinstance(exc, GrammarError):
        error = InvalidConstraint(f"{kind}: {exc}", param=kind, where=exc.where)
    else:
        error = EngineError(f"compiling a {kind} constraint failed: {type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error


def captures_of(constraint: Constraint, token_ids: Sequence[int]) -> Captures:
    """What a constraint names in a finished output. Raises `UnsupportedConstraint`."""
    found: dict[str, list[CapturedText]] = {}
    try:
        for part in constraint.captures(token_ids):
            named = found.setdefault(part.name, [])
            named.append(CapturedText(part.text, part.start, part.end))
    except GrammarError as error:
        raise _translated(error, constraint.kind) from error
    return {name: tuple(parts) for name, parts in found.items()}


def failure_while_running(exc: Exception, params: SamplingParams, request_id: object) -> UmbelError:
    """The answer to a request whose constraint raised after it was compiled: for a limit of the
    grammar machine that its text ran into `UnsupportedConstraint`, else `EngineError`.
    """
    if isinstance(exc, UmbelError):
        return exc
    if isinstance(exc, GrammarError):
        return _translated(exc, params.constraint_kind or "constraint")
    error = EngineError(f"the constraint of request {request_id} failed: {exc!r}")
    error.__cause__ = exc
    return error


def _without_frames(exc: GrammarError) -> GrammarError:
    """The error as a value to keep: its frames would keep the compiler's tables alive."""
    exc.__cause__ = exc.__context__ = None
    return exc.with_traceback(None)


def schema_of_type(schema: Any) -> Any:
    """The JSON Schema, as data, that a Python type stands for as `json_schema`. Raises
    `InvalidConstraint`.
    """
    try:
        return load.schema_of_type(schema)
    except GrammarError as exc:
        raise InvalidConstraint(str(exc), param="json_schema") from exc
