"""Which prefixes the engine keeps in its cache because calls that need them may still come.

Two kinds: a branch of a graph that waits for others with nodes of its own left, and what the
instances of a batch have in common at the start of a branch. The engine drops pins before a request
has to give way, so a wrong guess here costs nothing but a message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umbel.frontend_dsl.branch import Branch
    from umbel.frontend_dsl.client import CallHandle, Client
    from umbel.frontend_dsl.execution import Execution
    from umbel.frontend_dsl.pending import PendingCall
    from umbel.frontend_dsl.segments import Segment

LEAST_TOKENS = 32  # what is shorter is computed again sooner than it is talked about
MAX_PLACES = 64  # branches of a program whose starts are compared between instances


class Keeper:
    """Belongs to a driver, in its thread. `is_batch`: what runs are instances of one program."""

    def __init__(self, client: "Client", *, is_batch: bool) -> None:
        self._idle = _IdleBranches(client)
        self._shared = _SharedStarts(client) if is_batch else None

    def submitted(self, call: "PendingCall", context: Sequence[int]) -> None:
        """A call was submitted after the tokens `context`."""
        if self._shared is not None and call.branch.calls[0] is call:
            call.number = self._shared.begin(call.branch.path, context)

    def ended(self, call: "PendingCall") -> None:
        """A call has its value, and its branch goes on, or waits."""
        if self._shared is not None and call.branch.calls[0] is call:
            self._shared.end(call.branch.path, call.number)
        self._idle.ended(call.branch)

    def changed(self, branch: "Branch") -> None:
        """A branch has begun, or has nothing left to do."""
        self._idle.note(branch)

    def settle(self) -> None:
        """The program waits: pin what it waits with."""
        self._idle.settle()

    def forget(self, execution: "Execution") -> None:
        """An execution is over."""
        self._idle.forget(execution)

    def close(self) -> None:
        """End all pins."""
        self._idle.close()
        if self._shared is not None:
            self._shared.close()


@dataclass(slots=True)
class _Pin:
    num_tokens: int  # of the branch when it was pinned; 0: to be pinned again
    handle: "CallHandle"


@dataclass(slots=True)
class _Pinned:
    """What one execution has pinned."""

    pins: "dict[Branch, _Pin]" = field(default_factory=dict)
    # Forked, and pinned before a sibling had computed the text up to the fork: by parent.
    early: "dict[Branch, list[Branch]]" = field(default_factory=dict)


class _IdleBranches:
    """Branches that stand still while others work: each pins its text until its next call ended.

    A call that was submitted may still wait for its turn, so it does not end the pin.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._noted: dict[Branch, None] = {}
        self._pinned: dict[Execution, _Pinned] = {}

    def note(self, branch: "Branch") -> None:
        if branch.execution.may_go_on is not None:
            self._noted[branch] = None

    def ended(self, branch: "Branch") -> None:
        """A call of the branch has computed all text up to it."""
        self.note(branch)
        pinned = self._pinned.get(branch.execution)
        if pinned is None or branch.parent is None:
            return
        for sibling in pinned.early.pop(branch.parent, ()):
            if sibling in pinned.pins:
                pinned.pins[sibling].num_tokens = 0
                self.note(sibling)

    def settle(self) -> None:
        noted, self._noted = self._noted, {}
        for branch in noted:
            if not (branch.is_busy or branch.execution.is_over):
                self._look_at(branch)

    def forget(self, execution: "Execution") -> None:
        pinned = self._pinned.pop(execution, None)
        for pin in pinned.pins.values() if pinned is not None else ():
            pin.handle.cancel()

    def close(self) -> None:
        for execution in list(self._pinned):
            self.forget(execution)

    def _look_at(self, branch: "Branch") -> None:
        end, may_go_on = branch.end, branch.execution.may_go_on
        is_wanted = may_go_on is not None and may_go_on(branch) and branch.error is None
        if is_wanted and end is not None and end.num_tokens >= LEAST_TOKENS:
            self._pin(branch, end)
        elif branch.execution in self._pinned:
            before = self._pinned[branch.execution].pins.pop(branch, None)
            if before is not None:
                before.handle.cancel()

    def _pin(self, branch: "Branch", end: "Segment") -> None:
        pinned = self._pinned.setdefault(branch.execution, _Pinned())
        before = pinned.pins.get(branch)
        if before is not None and before.num_tokens == end.num_tokens:
            return  # nothing came since
        pinned.pins[branch] = _Pin(end.num_tokens, self._client.pin(end.flatten()))
        if before is not None:
            before.handle.cancel()
        elif branch.parent is not None and not branch.calls:
            pinned.early.setdefault(branch.parent, []).append(branch)


@dataclass(slots=True)
class _Place:
    """The start of one branch, in instance after instance."""

    last: list[int] = field(default_factory=list)  # what the newest instance has there
    num_begun: int = 0  # instances
    shared: list[int] = field(default_factory=list)  # what it has in common with the one before
    shared_since: int = 0  # number of the first instance that has all of `shared`
    pinned: list[int] = field(default_factory=list)
    handle: "CallHandle | None" = None


class _SharedStarts:
    """What neighbours in a batch have in common: constant text, and arguments that are equal.

    Instances come sorted by their arguments, depth-first over the tree of their prefixes: where two
    neighbours part is where the tree is now, and what was shared below will not come again.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._places: dict[str, _Place] = {}

    def begin(self, path: str, context: Sequence[int]) -> int:
        """The number of the instance at this place."""
        place = self._places.get(path)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                return 0
            place = self._places[path] = _Place()
        shared = place.last[: num_common(place.last, context)]
        if shared != place.shared:
            place.shared, place.shared_since = shared, place.num_begun
        place.last = list(context)
        place.num_begun += 1
        return place.num_begun

    def end(self, path: str, number: int) -> None:
        """The call of an instance has ended: if it has the prefix, that is computed."""
        place = self._places.get(path)
        if place is None or place.shared == place.pinned or number < place.shared_since:
            return
        before, place.handle = place.handle, None
        place.pinned = place.shared
        if len(place.shared) >= LEAST_TOKENS:
            place.handle = self._client.pin(place.shared)
        if before is not None:
            before.cancel()

    def close(self) -> None:
        for place in self._places.values():
            if place.handle is not None:
                place.handle.cancel()
        self._places.clear()


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix, by comparing slices: prompts are long and mostly equal."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        probe = (low + high + 1) // 2
        if list(left[low:probe]) == list(right[low:probe]):
            low = probe
        else:
            high = probe - 1
    return low
