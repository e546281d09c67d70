"""Stopping a compilation from outside: a deadline, or a client that left.

Everything that may take long asks in its inner loop. The wish belongs to the caller and not to any
grammar, so it is the context of the calling thread and no argument of the functions in between;
results never depend on it, and what a cache keeps is never a compilation that was stopped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from umbel.grammar.errors import CompileCancelled

_asked: ContextVar[Callable[[], bool] | None] = ContextVar("umbel_grammar_cancelled", default=None)


@contextmanager
def interruptible(cancelled: Callable[[], bool] | None) -> Iterator[None]:
    """Inside, `check_interrupt` raises `CompileCancelled` once `cancelled()` says so. None: whoever
    asked outside goes on to be asked.
    """
    if cancelled is None:
        yield
        return
    token = _asked.set(cancelled)
    try:
        yield
    finally:
        _asked.reset(token)


def check_interrupt() -> None:
    """Called every few milliseconds of work at least. Raises `CompileCancelled`."""
    cancelled = _asked.get()
    if cancelled is not None and cancelled():
        raise CompileCancelled("compiling the grammar was cancelled or ran out of time")
