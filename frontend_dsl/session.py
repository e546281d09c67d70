"""The sync and async faces: drives programs to their end while waiting for the engine's events.

A session is a generator of events in which None says "wait for the engine now"; the two loops at
the end differ only in how they wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from umbel.frontend_dsl.driver import Delivery, Driver
from umbel.frontend_dsl.events import Event
from umbel.frontend_dsl.execution import Execution
from umbel.runtime.errors import RequestCancelled

Session = Generator[Event | None, None, None]


def run_one(driver: Driver, execution: Execution) -> Session:
    """Yields the execution's events; ends when it is over."""
    reason: BaseException = RequestCancelled("the caller stopped waiting for the program")
    try:
        driver.start(execution)
        while True:
            driver.work()
            yield from execution.take_events()
            if execution.is_over:
                return
            driver.require_progress()
            yield None
    except GeneratorExit:
        raise
    except BaseException as error:
        reason = error
        raise
    finally:
        driver.close(reason)


def run_many(
    driver: Driver,
    executions: Iterator[Execution],
    max_in_flight: int,
    on_done: Callable[[Execution], None],
) -> Session:
    """Keeps up to `max_in_flight` executions going; `on_done` gets each one when it is over."""
    reason: BaseException = RequestCancelled("the caller stopped waiting for the batch")
    live: dict[Execution, None] = {}
    is_exhausted = False
    try:
        while True:
            while not is_exhausted and len(live) < max_in_flight:
                execution = next(executions, None)
                if execution is None:
                    is_exhausted = True
                else:
                    live[execution] = None
                    driver.start(execution)
            driver.work()
            ended = [execution for execution in live if execution.is_over]
            for execution in ended:
                del live[execution]
                if execution.fatal is not None:
                    raise execution.fatal
                on_done(execution)
            if ended:
                is_exhausted = False  # an item that ended may have to be run again
                continue
            if not live and is_exhausted:
                return
            driver.require_progress()
            yield None
    except GeneratorExit:
        raise
    except BaseException as error:
        reason = error
        raise
    finally:
        driver.close(reason)


class Inbox:
    """Deliveries for a thread that may block."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Delivery] = SimpleQueue()
        self.post = self._queue.put

    def take(self, timeout_s: float | None = None) -> list[Delivery]:
        """Block for at least one delivery; siblings that ended together are taken together. None
        when the time is up.
        """
        try:
            deliveries = [self._queue.get(timeout=timeout_s)]
        except Empty:
            return []
        while not self._queue.empty():
            deliveries.append(self._queue.get())
        return deliveries


class AsyncInbox:
    """Deliveries for a coroutine; to be made inside the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliveries: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._is_signalled = False  # one wake-up for many deliveries

    def post(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        if not self._is_signalled:
            self._is_signalled = True
            try:
                self._loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise
                # The loop has ended, so nobody waits; a listener must not raise into the engine.

    async def take(self, timeout_s: float | None = None) -> list[Delivery]:
        """Wait for deliveries; none when the time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), timeout_s)
        self._arrived.clear()
        self._is_signalled = False
        deliveries = []
        while self._deliveries:
            deliveries.append(self._deliveries.popleft())
        return deliveries


def drive(driver: Driver, inbox: Inbox, session: Session) -> Iterator[Event]:
    try:
        for event in session:
            if event is None:
                driver.feed(inbox.take(driver.seconds_to_timer()))
            else:
                yield event
    finally:
        session.close()


async def drive_async(
    driver: Driver, inbox: AsyncInbox, session: Session
) -> AsyncGenerator[Event, None]:
    try:
        for event in session:
            if event is None:
                driver.feed(await inbox.take(driver.seconds_to_timer()))
            else:
                yield event
    finally:
        session.close()
