"""The typed nodes of a program's graph.

A graph has no code and no numbers for its values: a value is named by the branch that made it and
its name there, so equal pieces of two paths are equal data. Blocks of nodes are in program order.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

VERSION = 3


class Op(msgspec.Struct, frozen=True, array_like=True):
    """A pure operation on a string, one of `values.OPERATIONS`."""

    name: str
    args: tuple[str | int | float | None, ...] = ()


class Ref(msgspec.Struct, frozen=True, tag="value", omit_defaults=True):
    """The text of the call `name` of `branch`, after `ops`.

    With `probability_of`, instead of the text: the probability that the `select` gave this choice.
    """

    branch: str
    name: str
    ops: tuple[Op, ...] = ()
    probability_of: str | None = None

    def with_ops(self, ops: tuple[Op, ...]) -> "Ref":
        return Ref(self.branch, self.name, ops, self.probability_of)


class Arg(msgspec.Struct, frozen=True, tag="argument", omit_defaults=True):
    """A string among the run's arguments: `path[0]` is the parameter, the rest leads into it."""

    path: tuple[str | int, ...]
    ops: tuple[Op, ...] = ()

    def with_ops(self, ops: tuple[Op, ...]) -> "Arg":
        return Arg(self.path, ops)


class Turn(msgspec.Struct, frozen=True, tag="turn", omit_defaults=True):
    """The number of the turn of the loop `index`, and `plus`."""

    index: str
    plus: int = 0


Part: TypeAlias = str | Ref | Arg | Turn
Template: TypeAlias = tuple[Part, ...]  # the parts one after another


class Literal(msgspec.Struct, frozen=True, tag="literal"):
    value: bool | int | float | str | None


class Words(msgspec.Struct, frozen=True, tag="text"):
    parts: Template


class Number(msgspec.Struct, frozen=True, tag="number"):
    """The number that the text of `part` spells."""

    part: Ref | Arg


class Decoded(msgspec.Struct, frozen=True, tag="json"):
    """The JSON value that the call `name` of `branch` wrote."""

    branch: str
    name: str


class Sequence(msgspec.Struct, frozen=True, tag="list", omit_defaults=True):
    items: tuple["Data", ...]
    is_tuple: bool = False


class Mapping(msgspec.Struct, frozen=True, tag="dict"):
    items: tuple[tuple[str, "Data"], ...]


class ToolValue(msgspec.Struct, frozen=True, tag="tool"):
    """What the tool call `id` returned, as it is."""

    id: str


class Pick(msgspec.Struct, frozen=True, tag="pick"):
    """The value of `values` that has the text of `part`."""

    part: Ref
    values: tuple[tuple[str, Literal], ...]


Data: TypeAlias = Literal | Words | Number | Pick | Turn | Decoded | Sequence | Mapping | ToolValue


class Node(msgspec.Struct, frozen=True, kw_only=True, tag_field="node", omit_defaults=True):
    """`file` (an index into `Graph.files`) and `line` say where the node was written."""

    file: int = 0
    line: int = 0


class Say(Node, frozen=True, kw_only=True, tag="text"):
    """Append text. `token_ids` is made by a pass for constant text, for one tokenizer; it is not
    part of a stored graph.
    """

    branch: str
    parts: Template
    token_ids: tuple[int, ...] | None = None


class Generate(Node, frozen=True, kw_only=True, tag="gen"):
    """Append what the model generates under `options` (those of `gen`, as JSON data) and `given`,
    the options that are made of values.
    """

    branch: str
    name: str | None = None
    options: dict[str, Any] = {}  # msgspec copies; values are JSON, checked by SamplingParams
    given: tuple[tuple[str, Data], ...] = ()
    rank: int = 0  # set by a pass: calls that wait for this one, one after another


class Choose(Node, frozen=True, kw_only=True, tag="select"):
    """Append one of `choices`."""

    branch: str
    name: str | None = None
    choices: tuple[Template, ...] = ()
    method: str = "token_length_normalized"
    temperature: float = 0.0
    seed: int | None = None
    rank: int = 0


class Fork(Node, frozen=True, kw_only=True, tag="fork"):
    branch: str
    children: tuple[str, ...]


class Best(Node, frozen=True, kw_only=True, tag="best"):
    """Fork the best of `candidates`: the first of `children` goes on from the one with the highest
    of `scores`, and so on; of equal ones the earlier. The children are named below `branch`.

    `names`: variables that all candidates have; a child has those of the one it goes on from, as
    `inherited(name)`: it may use the name itself again.
    """

    branch: str
    candidates: tuple[str, ...]
    scores: tuple["Number | Literal", ...]
    children: tuple[str, ...]
    names: tuple[str, ...] = ()


class Give(Node, frozen=True, kw_only=True, tag="give"):
    """The value `name` of `branch` is this text; it is not appended. What the ways of a decision
    have in common for those who read on.
    """

    branch: str
    name: str
    parts: Template


class Join(Node, frozen=True, kw_only=True, tag="join"):
    """Go on when `branches` have done all that was appended to them."""

    branches: tuple[str, ...]


class Await(Node, frozen=True, kw_only=True, tag="await"):
    """Go on when the call `name` of `branch` has its value (`is_json`: and it can be decoded): a
    read whose value is used later. It keeps the failure that a run ends with the one that comes
    first in the program.
    """

    branch: str
    name: str
    is_json: bool = False


class OpenRole(Node, frozen=True, kw_only=True, tag="open"):
    branch: str
    role: str


class CloseRole(Node, frozen=True, kw_only=True, tag="close"):
    branch: str
    role: str


class Arm(msgspec.Struct, frozen=True, array_like=True):
    """What follows when the subject is one of `outcomes`."""

    outcomes: tuple[str, ...]
    body: tuple["AnyNode", ...]


class Decide(Node, frozen=True, kw_only=True, tag="decide"):
    """Go on with the arm that has `subject`'s text, else with `otherwise`.

    `otherwise` None: the subject's constraint allows no other text; one that comes all the same
    (cut off by max_tokens) leaves the graph.
    """

    subject: Ref | Arg
    arms: tuple[Arm, ...]
    otherwise: tuple["AnyNode", ...] | None = None


class Again(Node, frozen=True, kw_only=True, tag="again"):
    """The end of a turn after which the loop `index` goes on: it stands at ends of paths only."""

    index: str


class Loop(Node, frozen=True, kw_only=True, tag="loop"):
    """Run `body` for the turn `start`; a path that ends with `Again` goes on with the next turn, or
    after the last one with `last`. Other paths end the loop.

    In names, branches and ids of the body `{index}`, `{index+1}` (with the name of the index) stand
    for the turn: `start`, `start + 1`, ... below `max_turns`.
    """

    index: str
    body: tuple["AnyNode", ...]
    max_turns: int
    start: int = 0
    last: tuple["AnyNode", ...] = ()


class CallTool(Node, frozen=True, kw_only=True, tag="call"):
    """Call a tool that the side which runs the graph knows by name."""

    id: str
    tool: str
    arguments: tuple[tuple[str, Data], ...] = ()
    is_pure: bool = False


class Return(Node, frozen=True, kw_only=True, tag="return"):
    value: Data


class Leave(Node, frozen=True, kw_only=True, tag="leave"):
    """The rest is only known to the program's Python code, which goes on from here."""

    reason: str


AnyNode: TypeAlias = (
    Say
    | Generate
    | Choose
    | Fork
    | Best
    | Give
    | Join
    | Await
    | OpenRole
    | CloseRole
    | Decide
    | Again
    | Loop
    | CallTool
    | Return
    | Leave
)
Block: TypeAlias = tuple[AnyNode, ...]
Call: TypeAlias = Generate | Choose


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """One program. `defaults`: sampling options of every `gen`. `made_for`: strings among the
    arguments that the program looked into; the graph holds for these alone. `order_by`: where in
    the arguments the text of an instance first differs from another's, in the order of the text.
    """

    version: int = VERSION
    name: str
    parameters: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    defaults: dict[str, Any] = {}
    body: Block = ()
    made_for: tuple[tuple[tuple[str | int, ...], str], ...] = ()
    is_parallel: bool = False  # set by a pass: branches go on without waiting for each other
    order_by: tuple[tuple[str | int, ...], ...] = ()
    passes: tuple[str, ...] = ()


def walk(block: Block) -> Iterator[AnyNode]:
    """All nodes, nested ones included, in program order. Does not recurse."""
    stack: list[Iterator[AnyNode]] = [iter(block)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node
        stack += [iter(inner) for inner in reversed(blocks_of(node))]


def blocks_of(node: AnyNode) -> list[Block]:
    """The blocks directly inside `node`."""
    if isinstance(node, Decide):
        arms = [arm.body for arm in node.arms]
        return [*arms, node.otherwise] if node.otherwise is not None else arms
    return [node.body, node.last] if isinstance(node, Loop) else []


def with_blocks(node: AnyNode, blocks: list[Block]) -> AnyNode:
    """`node` with the blocks that `blocks_of` gives replaced."""
    if isinstance(node, Decide):
        arms = tuple(Arm(arm.outcomes, body) for arm, body in zip(node.arms, blocks, strict=False))
        otherwise = blocks[-1] if node.otherwise is not None else None
        return msgspec.structs.replace(node, arms=arms, otherwise=otherwise)
    if isinstance(node, Loop):
        return msgspec.structs.replace(node, body=blocks[0], last=blocks[1])
    return node


def templates_of(node: AnyNode) -> list[Template]:
    """The texts that `node` puts together."""
    if isinstance(node, Say | Give):
        return [node.parts]
    if isinstance(node, Choose):
        return list(node.choices)
    return [parts for value in data_of(node) for parts in data_templates(value)]


def data_of(node: AnyNode) -> list[Data]:
    """The data that `node` puts together."""
    if isinstance(node, Return):
        return [node.value]
    if isinstance(node, CallTool):
        return [value for _, value in node.arguments]
    if isinstance(node, Best):
        return list(node.scores)
    return [value for _, value in node.given] if isinstance(node, Generate) else []


def data_templates(data: Data) -> list[Template]:
    """The texts in `data`; that of a number, or of what picks a value, counts as one."""
    leaves = list(_leaves(data))
    texts = [item.parts for item in leaves if isinstance(item, Words)]
    return [*texts, *((item.part,) for item in leaves if isinstance(item, Number | Pick))]


def reads_of(node: AnyNode) -> list[tuple[str, str]]:
    """The values that must be there before `node` can run: (branch, name) of calls, and
    (TOOLS, id) of tool calls.
    """
    found = [
        (part.branch, part.name)
        for parts in templates_of(node)
        for part in parts
        if isinstance(part, Ref)
    ]
    if isinstance(node, Await):
        found.append((node.branch, node.name))
    elif isinstance(node, Decide) and isinstance(node.subject, Ref):
        found.append((node.subject.branch, node.subject.name))
    for leaf in (leaf for value in data_of(node) for leaf in _leaves(value)):
        if isinstance(leaf, Decoded):
            found.append((leaf.branch, leaf.name))
        elif isinstance(leaf, ToolValue):
            found.append((TOOLS, leaf.id))
    return found


INHERITED = "<"  # a name that begins so belongs to the branch that a child was chosen from


def inherited(name: str) -> str:
    return INHERITED + name


TOOLS = "$tools"  # the lane of the tool calls, and the "branch" of what they return
RESULT = "$result"  # the lane of what the program returns


def lanes_of(node: AnyNode) -> tuple[str, ...]:
    """The branches that `node` goes on from, or the lane that keeps nodes of its kind in order."""
    if isinstance(node, CallTool):
        return (TOOLS,)
    if isinstance(node, Best):
        return tuple(dict.fromkeys(node.candidates))
    if isinstance(node, Say | Generate | Choose | Fork | Give | OpenRole | CloseRole):
        return (node.branch,)
    return (RESULT,)


def _leaves(data: Data) -> Iterator[Data]:
    stack = [data]
    while stack:
        item = stack.pop()
        if isinstance(item, Sequence):
            stack += reversed(item.items)
        elif isinstance(item, Mapping):
            stack += [value for _, value in reversed(item.items)]
        else:
            yield item
