"""Runs a graph on the branches of an execution: nodes become the operations of eager programs.

Nodes wait in lanes, one per branch (or one in all, in a graph that is not parallel). A lane hands
its nodes to the branch until one needs a value that is not there; a decision puts the nodes of its
arm in its own place, in each lane that the arms touch. No thread and no greenlet waits for a call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from umbel.frontend_dsl.branch import Branch, Signal
from umbel.frontend_dsl.calls import Gen, Select
from umbel.frontend_dsl.calls import select as checked_select
from umbel.frontend_dsl.choosing import best_of, checked_score, fork_each
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.graph.loops import turn
from umbel.frontend_dsl.graph.nodes import RESULT, TOOLS, AnyNode, Block, Graph, Ref
from umbel.frontend_dsl.graph.values import NoValue
from umbel.frontend_dsl.graph_values import GivenValue, GraphValues
from umbel.frontend_dsl.lanes import Item, Lane, Order, Waiting
from umbel.frontend_dsl.operations import AppendText, AppendTokens, CloseRole, ForkPoint, Mark
from umbel.frontend_dsl.operations import OpenRole as OpenRoleOperation
from umbel.frontend_dsl.passes.keep import NAME as KEEP
from umbel.frontend_dsl.pending import PendingCall
from umbel.frontend_dsl.state import append_call
from umbel.frontend_dsl.tools import Tool, ToolCall
from umbel.runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from umbel.frontend_dsl.execution import Execution

Result = TypeVar("Result")
_ALL = "$all"  # the only lane of a graph that is not parallel


class GraphRun:
    """One run of `graph`. `finished` is set when all is handed out and the result can be read.

    `types` and `tools` are those of the process: see `tracing.trace.Traced`.
    """

    def __init__(
        self,
        execution: "Execution",
        graph: Graph,
        arguments: Mapping[str, Any],
        types: Mapping[tuple[str, str], Any],
        tools: Mapping[str, Tool],
        *,
        max_chars: int | None = None,
    ) -> None:
        self.execution = execution
        self.finished = Signal()
        self.error: ProgramError | None = None
        self.left: nodes.Leave | None = None
        self._graph = graph
        self._values = GraphValues(arguments, types, execution.root, max_chars=max_chars)
        self._branches = self._values.branches
        self._tools = tools
        self._undefined: dict[tuple[str, str], list[Lane | Waiting]] = {}
        self._lanes: dict[str, Lane] = {}
        self._readers: dict[Item, None] = {}  # items that wait for values
        self._failed: tuple[Order, ProgramError] | None = None
        self._num_items = 0
        self._result: Any = None
        self._patient: list[Lane] = []  # lanes that wait for all that comes before their item
        self._touched: dict[int, tuple[AnyNode, tuple[str, ...]]] = {}

    def start(self) -> None:
        if KEEP in self._graph.passes:
            self.execution.may_go_on = self._may_go_on
        for item in self._items(self._graph.body, ()):
            for name in item.lanes:
                self._lane(name).items.append(item)
        for lane in list(self._lanes.values()):
            lane.wake()
        if self._num_items == 0:
            self.finished.set()

    def result(self) -> Any:
        """What the program returns."""
        return self._result

    # Lanes.

    def advance(self, lane: Lane) -> None:
        """Hand out the lane's items until one has to wait."""
        if lane.is_waiting or self.finished.is_set:
            return
        if self._hand_out_lane(lane):
            patient, self._patient = self._patient, []
            for other in patient:
                other.wake()
        self._finish_if_done()

    def _hand_out_lane(self, lane: Lane) -> bool:
        """Whether the lane has moved on."""
        has_moved = False
        while lane.items and not self.finished.is_set:
            item = lane.items[0]
            if isinstance(item.node, nodes.Decide | nodes.Loop):
                if item.chosen is None and item not in self._readers:
                    self._readers[item] = None
                    self.decide(item)
                if item.chosen is None:
                    return has_moved
                lane.items.popleft()
                lane.items.extendleft(reversed(item.chosen.get(lane.name, [])))
            elif isinstance(item.node, nodes.Best):
                if item.chosen is None and not self._choose(item, lane):
                    return has_moved
                lane.items.popleft()
            elif self._is_ready(item, lane):
                lane.items.popleft()
                self._readers.pop(item, None)
                self._num_items -= 1
                self._run_item(item)
            else:
                return has_moved
            has_moved = True
        if has_moved and lane.branch is not None:
            self.execution.driver.keeper.changed(lane.branch)
        return has_moved

    def _may_go_on(self, branch: Branch) -> bool:
        lane = self._lanes.get(branch.path if self._graph.is_parallel else _ALL)
        return lane is not None and bool(lane.items)

    def decide(self, item: Item) -> None:
        """Choose the arm if the subject is there."""
        node = item.node
        assert isinstance(node, nodes.Decide | nodes.Loop)
        if item.chosen is not None or self.finished.is_set:
            return
        if not self._has_values(node, Waiting(self, item)):
            return  # a loop begins without a value
        self._readers.pop(item, None)
        block = self._guarded(item, lambda: self._chosen(node))
        if block is None:
            return
        self._num_items -= 1
        item.chosen = {}
        for inner in self._items(block, item.order):
            for lane in inner.lanes:
                item.chosen.setdefault(lane, []).append(inner)
        for name in item.chosen.keys() - item.lanes:
            # Branches whose names a loop makes: nothing of theirs can have been handed out.
            self._lane(name).items.extendleft(reversed(item.chosen[name]))
        for name in {*item.chosen, *item.lanes}:
            self._lane(name).wake()
        self._finish_if_done()

    def _items(self, block: Block, prefix: Order) -> Iterator[Item]:
        for idx, node in enumerate(block):
            lanes = self._lanes_of(node)
            if lanes:
                self._num_items += 1
                yield Item(node, (*prefix, idx), lanes)

    def _lanes_of(self, node: AnyNode) -> tuple[str, ...]:
        if not self._graph.is_parallel:
            return (_ALL,)
        if not isinstance(node, nodes.Decide | nodes.Loop):
            return nodes.lanes_of(node)
        known = self._touched.get(id(node))
        if known is None:
            blocks = nodes.blocks_of(node)
            inner = {lane for block in blocks for n in nodes.walk(block)
                     if not isinstance(n, nodes.Decide | nodes.Loop | nodes.Again)
                     for lane in nodes.lanes_of(n)}  # fmt: skip
            # The node is kept, so that its id stays its own: turns of loops come and go.
            known = self._touched[id(node)] = (node, tuple(sorted(inner or {RESULT})))
        return known[1]

    def _lane(self, name: str) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(self, name, self._branches.get(name))
        return lane

    # What an item waits for.

    def _is_ready(self, item: Item, lane: Lane) -> bool:
        node = item.node
        if not self._has_begun(lane):
            return False  # its fork wakes the lane
        if isinstance(node, nodes.Join):
            return self._is_joined(node, lane)
        if not self._has_values(node, lane):
            self._readers[item] = None
            lane.is_waiting = True
            return False
        # What a tool does cannot be undone: it is not called before it is sure that it is reached.
        is_tool = isinstance(node, nodes.CallTool) and not node.is_pure
        return not is_tool or self._is_next(item, lane)

    def _has_begun(self, lane: Lane) -> bool:
        """Whether the branch is there, for a lane that has one."""
        if lane.branch is None:
            lane.branch = self._branches.get(lane.name)
        return lane.branch is not None or lane.name in (TOOLS, RESULT, _ALL)

    def _has_values(self, node: AnyNode, waiter: Lane | Waiting) -> bool:
        for key in nodes.reads_of(node):
            call = self._values.calls.get(key)
            if call is None:
                self._undefined.setdefault(key, []).append(waiter)
                return False
            if not call.is_set:
                call.waiting.append(waiter)
                return False
        return True

    def _is_next(self, item: Item, lane: Lane) -> bool:
        """Whether everything before it in the program's order has been handed out."""
        others = [other for other in self._lanes.values() if other.items and other is not lane]
        if any(other.items[0].order < item.order for other in others):
            self._readers[item] = None
            self._patient.append(lane)
            return False
        return True

    def _is_joined(self, node: nodes.Join, lane: Lane) -> bool:
        for path in node.branches:
            branch = self._branches.get(path)
            if branch is None:
                continue
            if branch.is_busy:
                mark = Mark(self._site(node))
                branch.add(mark)
                if not mark.reached.is_set:
                    mark.reached.waiting.append(lane)
                    lane.is_waiting = True
                    return False
        return True

    def _choose(self, item: Item, lane: Lane) -> bool:
        """Whether the best branches were chosen: all candidates have come here, and are rated."""
        lanes = [self._lane(name) for name in item.lanes]
        if not all(one.items and one.items[0] is item and self._has_begun(one) for one in lanes):
            return False
        if not self._has_values(item.node, lane):
            self._readers[item] = None
            lane.is_waiting = True
            return False
        self._readers.pop(item, None)
        self._num_items -= 1
        self._run_item(item)
        item.chosen = {}
        for other in lanes:
            other.wake()
        return True

    # Handing out.

    def _run_item(self, item: Item) -> None:
        self._guarded(item, lambda: self._hand_out(item.node))

    def _guarded(self, item: Item, act: Callable[[], Result]) -> Result | None:
        """What `act` gives for `item`; None when it failed, which is noted."""
        try:
            return act()
        except NoValue as error:
            node = item.node
            self._leave(nodes.Leave(reason=str(error), file=node.file, line=node.line))
        except ProgramError as error:
            self._fail(item.order, error)
        except Exception as error:  # whatever it is, it belongs to this run alone
            self._fail(item.order, self._refusal(error, item.node))
        return None

    def _hand_out(self, node: AnyNode) -> None:
        site = self._site(node)
        if isinstance(node, nodes.Say):
            self._say(node, site)
        elif isinstance(node, nodes.Generate):
            options = self._values.options(node, site)
            self._call(node, Gen(node.name, options, site))  # type: ignore[arg-type]  # checked
        elif isinstance(node, nodes.Choose):
            choices = tuple(map(self._values.text, node.choices))
            made = checked_select(
                node.name, choices, method=node.method, temperature=node.temperature, seed=node.seed
            )
            self._call(node, Select(made.name, made.choices, made.method, made.temperature,
                                    made.seed, site))  # fmt: skip
        elif isinstance(node, nodes.Fork):
            self._fork(node, site)
        elif isinstance(node, nodes.Best):
            self._best(node, site)
        elif isinstance(node, nodes.Give):
            text = self._values.text(node.parts)
            given = GivenValue(self._branches[node.branch], node.name, site, text)
            self._define((node.branch, node.name), given)
        elif isinstance(node, nodes.OpenRole):
            branch = self._branches[node.branch]
            branch.role = node.role
            branch.add(OpenRoleOperation(node.role, site))
        elif isinstance(node, nodes.CloseRole):
            branch = self._branches[node.branch]
            branch.role = None
            branch.add(CloseRole(node.role, site))
        elif isinstance(node, nodes.CallTool):
            self._tool(node, site)
        elif isinstance(node, nodes.Await):
            self._values.read(Ref(node.branch, node.name))
            if node.is_json:
                self._values.data(nodes.Decoded(node.branch, node.name), site)
        elif isinstance(node, nodes.Return):
            self._result = self._values.data(node.value, site)
        elif isinstance(node, nodes.Leave):
            self._leave(node)
        elif isinstance(node, nodes.Again):
            raise InvalidRequest(f"there is no loop {node.index!r} here")

    def _say(self, node: nodes.Say, site: Site) -> None:
        text = self._values.text(node.parts)
        if not text:
            return
        branch = self._branches[node.branch]
        if node.token_ids is not None:
            branch.add(AppendTokens(text, site, node.token_ids))
        else:
            branch.add(AppendText(text, site))

    def _call(self, node: nodes.Call, expression: Gen | Select) -> None:
        branch = self._branches[node.branch]
        call = append_call(branch, expression, rank=node.rank)
        if node.name is not None:
            self._define((node.branch, node.name), call)

    def _define(self, key: tuple[str, str], call: PendingCall) -> None:
        self._values.calls[key] = call
        for waiter in self._undefined.pop(key, ()):
            waiter.wake()

    def _fork(self, node: nodes.Fork, site: Site) -> None:
        branch = self._branches[node.branch]
        branch.num_forks += 1
        children = self._begin([branch] * len(node.children), node.children)
        branch.add(ForkPoint(children, site))
        self._wake(children)

    def _best(self, node: nodes.Best, site: Site) -> None:
        scores = [checked_score(self._values.data(score, site)) for score in node.scores]
        candidates = [self._branches[path] for path in node.candidates]
        parents = [candidates[index] for index in best_of(scores, len(node.children))]
        self._branches[node.branch].num_forks += 1
        children = self._begin(parents, node.children)
        for parent, child in zip(parents, children, strict=True):
            for name in node.names:
                if name not in parent.variables:
                    raise InvalidRequest(f"there is no variable {name!r} of {parent.path}")
                self._define((child.path, nodes.inherited(name)), parent.variables[name])
        fork_each(parents, children, site)
        self._wake(children)

    def _begin(self, parents: Sequence[Branch], paths: Sequence[str]) -> list[Branch]:
        taken = next((path for path in paths if path in self._branches), None)
        if taken is not None:
            raise InvalidRequest(f"the branch {taken!r} exists already")
        pairs = zip(parents, paths, strict=True)
        children = [self.execution.new_branch(parent, path) for parent, path in pairs]
        self._branches.update({child.path: child for child in children})
        return children

    def _wake(self, children: Sequence[Branch]) -> None:
        for child in children:
            lane = self._lanes.get(child.path)
            if lane is not None:
                lane.branch = child
                lane.wake()

    def _tool(self, node: nodes.CallTool, site: Site) -> None:
        tool = self._tools.get(node.tool)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            raise InvalidRequest(f"there is no tool {node.tool!r} here; there are: {known}")
        values = {name: self._values.data(value, site) for name, value in node.arguments}
        call = ToolCall(self.execution, tool, tool.bind((), values), site)
        call.begin()
        self._define((TOOLS, node.id), call)

    def _leave(self, node: nodes.Leave | None) -> None:
        self.left = node or nodes.Leave(reason="a value is none of the outcomes it was to have")
        self.finished.set()

    def _chosen(self, node: nodes.Decide | nodes.Loop) -> Block:
        if isinstance(node, nodes.Loop):
            return turn(node)
        text = self._values.subject(node.subject)
        for arm in node.arms:
            if text in arm.outcomes:
                return arm.body
        if node.otherwise is not None:
            return node.otherwise
        accepted = [outcome for arm in node.arms for outcome in arm.outcomes]
        return (nodes.Leave(
            reason=f"{text!r} is none of the outcomes that the graph knows: {accepted[:8]}",
            file=node.file, line=node.line,
        ),)  # fmt: skip

    # Ends.

    def _fail(self, order: Order, error: ProgramError) -> None:
        """A read failed. The program ends with the failure that comes first in its order."""
        if self._failed is None or order < self._failed[0]:
            self._failed = (order, error)
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self.finished.is_set:
            return
        if self._failed is not None:
            order, error = self._failed
            heads = [lane.items[0] for lane in self._lanes.values() if lane.items]
            if all(item.order >= order for item in heads):
                self.error = error
                self.finished.set()
        elif self._num_items == 0:
            self.finished.set()

    def _refusal(self, cause: BaseException, node: AnyNode) -> ProgramError:
        branch = node.branch if isinstance(node, nodes.Say) else "root"
        name, site = self.execution.name, self._site(node)
        return ProgramError(cause, program=name, branch=branch, call=None, site=site)

    def _site(self, node: AnyNode) -> Site:
        files = self._graph.files
        return Site(files[node.file] if node.file < len(files) else self._graph.name, node.line)
