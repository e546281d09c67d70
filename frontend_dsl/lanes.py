"""What a graph's run is made of: nodes as items, which wait in lanes, one per branch."""

from collections import deque
from typing import TYPE_CHECKING

from umbel.frontend_dsl.branch import Branch
from umbel.frontend_dsl.graph.nodes import AnyNode

if TYPE_CHECKING:
    from umbel.frontend_dsl.lowering import GraphRun

Order = tuple[int, ...]  # where in the program's order an item stands


class Item:
    """A node in its lanes. A decision that was made has, per lane, what stands in its place."""

    __slots__ = ("chosen", "lanes", "node", "order")

    def __init__(self, node: AnyNode, order: Order, lanes: tuple[str, ...]) -> None:
        self.node = node
        self.order = order
        self.lanes = lanes
        self.chosen: dict[str, list[Item]] | None = None


class Lane:
    """Items in program order; `branch` is there when its fork was reached."""

    __slots__ = ("branch", "is_waiting", "items", "name", "run")

    def __init__(self, run: "GraphRun", name: str, branch: Branch | None) -> None:
        self.run = run
        self.name = name
        self.branch = branch
        self.items: deque[Item] = deque()
        self.is_waiting = False  # a wake-up is under way or a signal will send one

    def wake(self) -> None:
        self.run.execution.driver.advance_later(self)

    def advance(self) -> None:
        self.is_waiting = False
        self.run.advance(self)


class Waiting:
    """Wakes a decision, whose lanes may all stand elsewhere."""

    __slots__ = ("item", "run")

    def __init__(self, run: "GraphRun", item: Item) -> None:
        self.run = run
        self.item = item

    def wake(self) -> None:
        self.run.execution.driver.advance_later(self)

    def advance(self) -> None:
        self.run.decide(self.item)
