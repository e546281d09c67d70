"""How other threads reach the engine's thread: they leave commands, it runs them between two steps.

The engine's thread sleeps on the condition when it has nothing to do; nobody polls.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from umbel.runtime.errors import EngineClosed

Command = Callable[[], object]
Answer = TypeVar("Answer")


class Inbox:
    """Commands in order of arrival. `put`, `hold` and `close` may be called from any thread."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._commands: list[Command] = []
        self._is_closed = False
        self._held = _Held()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_holding(self) -> bool:
        """Whether the calling thread is inside `hold`."""
        return self._held.depth > 0

    def put(self, command: Command, *, at_once: bool = False) -> None:
        """Leave a command (`at_once`: past `hold`); raises `EngineClosed` when nobody will take it
        any more.
        """
        if self.is_holding and not at_once and not self._is_closed:
            self._held.commands.append(command)
        else:
            self._put_all([command])

    def ask(self, function: Callable[[], Answer]) -> Answer:
        """Have the reader's thread run a function between two steps, and wait for its answer."""
        future: Future[Answer] = Future()

        def answer() -> None:
            try:
                future.set_result(function())
            except Exception as exc:
                future.set_exception(exc)

        self.put(answer, at_once=True)
        return future.result()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Within it, this thread's commands are kept back; they are left together when it ends."""
        held = self._held
        held.depth += 1
        try:
            yield
        finally:
            held.depth -= 1
            if held.depth == 0 and held.commands:
                commands, held.commands = held.commands, []
                self._put_all(commands)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until there is a command or the inbox is closed; False when the time is over."""
        with self._ready:
            return self._ready.wait_for(lambda: bool(self._commands) or self._is_closed, timeout_s)

    def take(self) -> list[Command]:
        """All commands so far."""
        with self._ready:
            commands, self._commands = self._commands, []
            return commands

    def close(self) -> None:
        """Take no more commands and wake the reader, which still gets those that are there."""
        with self._ready:
            self._is_closed = True
            self._ready.notify_all()

    def _put_all(self, commands: list[Command]) -> None:
        with self._ready:
            if self._is_closed:
                raise EngineClosed("the engine is closed; make a new one")
            self._commands += commands
            self._ready.notify_all()


class _Held(threading.local):
    """What one thread keeps back, and how many `hold` it is in."""

    def __init__(self) -> None:
        self.depth = 0
        self.commands: list[Command] = []
