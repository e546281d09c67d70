"""Several bodies of one program at the same time: what `s.map` runs its function in.

Each body is a greenlet of the program's thread. It waits by itself while the others go on; what
cannot be undone (tools) is done in the order of the items.
"""

import contextvars
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]  # ships none

from umbel.frontend_dsl.branch import Signal
from umbel.runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from umbel.frontend_dsl.branch import Branch
    from umbel.frontend_dsl.execution import Execution


class _NotReached(BaseException):
    """A body before this one failed: written one after another, this one would not have begun."""


class Fiber(Signal):
    """One body of a map; set when it has ended. `before`: that of the item before."""

    def __init__(
        self,
        execution: "Execution",
        branch: "Branch",
        body: Callable[[], Any],
        before: "Fiber | None",
        around: "Fiber | None",
    ) -> None:
        super().__init__()
        self.branch = branch
        self.result: Any = None
        self.error: BaseException | None = None
        self._execution = execution
        self._body = body
        self._before = before
        self._around = around
        self.greenlet = greenlet(self._run)
        self.greenlet.gr_context = contextvars.copy_context()

    def wake(self) -> None:
        self._execution.driver.advance_later(self)

    def advance(self) -> None:
        if not self.is_set:
            self.greenlet.parent = getcurrent()
            self.greenlet.switch()

    def stop(self) -> None:
        """End it from outside; whatever it has under way in the engine goes on."""
        if not self.is_set and self.greenlet:
            self.greenlet.parent = getcurrent()
            self.greenlet.throw(GreenletExit)
        if not self.is_set:  # it had not begun
            self._end()

    def require_own(self, branch: "Branch") -> None:
        """Raise `InvalidRequest` unless `branch` is the fiber's own or below it: the order of what
        several bodies append to one branch would depend on time.
        """
        path = self.branch.path
        if branch.path != path and not branch.path.startswith(path + "/"):
            raise InvalidRequest(
                f"the function of a map appends to {branch.path}, but its own branch is {path}; "
                "return what the others need, and append it after the map"
            )

    def wait_for_turn(self) -> None:
        """Wait until all that comes before it in the program's order has ended."""
        if self._around is not None:
            self._around.wait_for_turn()
        if self._before is not None:
            self._execution.wait(self._before)
            if self._before.error is not None:
                raise _NotReached

    def _run(self) -> None:
        try:
            self.result = self._body()
        except GreenletExit:
            self.error = _NotReached()
        except BaseException as error:
            self.error = error
        self._end()

    def _end(self) -> None:
        self._execution.fibers.pop(self.greenlet, None)
        self.set()


def run_bodies(
    execution: "Execution", branches: Sequence["Branch"], bodies: Iterable[Callable[[], Any]]
) -> list[Any]:
    """Run the bodies, each on its branch, at the same time; what they return, in their order.

    Raises the error of the first body that failed; those after it are stopped.
    """
    fibers: list[Fiber] = []
    around = execution.fibers.get(getcurrent())
    for branch, body in zip(branches, bodies, strict=True):
        before = fibers[-1] if fibers else None
        fibers.append(Fiber(execution, branch, body, before, around))
    for fiber in fibers:
        execution.fibers[fiber.greenlet] = fiber
        fiber.wake()
    try:
        for fiber in fibers:
            execution.wait(fiber)
            if fiber.error is not None:
                raise fiber.error
    finally:
        for fiber in fibers:
            fiber.stop()
    return [fiber.result for fiber in fibers]
