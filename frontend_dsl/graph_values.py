"""The values of one run of a graph: its arguments, and what its calls gave."""

from collections.abc import Mapping
from typing import Any

from umbel.frontend_dsl.branch import Branch
from umbel.frontend_dsl.decoding import decode_json
from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.graph.nodes import TOOLS, Ref
from umbel.frontend_dsl.graph.serial import MAX_GIVEN_TOKENS, sampling_options
from umbel.frontend_dsl.graph.values import NoValue, fill, number_of, part_text
from umbel.frontend_dsl.pending import PendingCall
from umbel.frontend_dsl.state import State
from umbel.frontend_dsl.tools import ToolCall
from umbel.runtime.errors import InvalidRequest

Key = tuple[str, str]  # the branch of a call and its name there


class GivenValue(PendingCall):
    """A value that no call made: which of several texts it is was decided."""

    kind = "given"

    def __init__(self, branch: Branch, name: str, site: Site, text: str) -> None:
        super().__init__(branch, name, site, f"the value {name!r}")
        self.value = text
        self.set()


class GraphValues:
    """Evaluates what nodes are made of. `calls` and `branches` grow as the run goes on.

    Reading raises the `ProgramError` of a call that failed, and `NoValue` for what Python would
    have to look at itself.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        types: Mapping[Key, Any],
        root: Branch,
        *,
        max_chars: int | None = None,
    ) -> None:
        """`max_chars`: how long all texts that are put together may be, in sum."""
        self.calls: dict[Key, PendingCall] = {}
        self.branches: dict[str, Branch] = {"root": root}
        self._max_chars = max_chars
        self._num_chars = 0
        self._arguments = arguments
        self._types = types

    def read(self, ref: Ref) -> str:
        """What the call gave, without the operations of `ref`."""
        call = self.calls[ref.branch, ref.name]
        if ref.probability_of is not None:
            return self._probability(call, ref.probability_of)
        if call.error is not None:
            call.error.was_seen = True
            raise call.error
        assert call.value is not None
        return call.value

    def text(self, template: nodes.Template) -> str:
        text = fill(template, self._arguments, self.read)
        self._num_chars += len(text)
        if self._max_chars is not None and self._num_chars > self._max_chars:
            raise InvalidRequest(
                f"the program puts more than {self._max_chars} characters of text together; that "
                "is the bound here"
            )
        return text

    def subject(self, part: nodes.Ref | nodes.Arg) -> str:
        return part_text(part, self._arguments, self.read)

    def data(self, data: nodes.Data, site: Site) -> Any:
        """The value of `data`, which stands at `site` of the program."""
        if isinstance(data, nodes.Literal):
            return data.value
        if isinstance(data, nodes.Words):
            return self.text(data.parts)
        if isinstance(data, nodes.Number):
            return number_of(self.subject(data.part))
        if isinstance(data, nodes.Pick):
            return self._picked(data)
        if isinstance(data, nodes.Decoded):
            return self._decoded(data, site)
        if isinstance(data, nodes.ToolValue):
            self.read(Ref(TOOLS, data.id))
            call = self.calls[TOOLS, data.id]
            assert isinstance(call, ToolCall)
            return call.result
        if isinstance(data, nodes.Turn):
            raise InvalidRequest(f"the turn of the loop {data.index!r} is asked for outside of it")
        if isinstance(data, nodes.Mapping):
            return {key: self.data(value, site) for key, value in data.items}
        items = [self.data(item, site) for item in data.items]
        return tuple(items) if data.is_tuple else items

    def _picked(self, data: nodes.Pick) -> Any:
        text = self.subject(data.part)
        for wanted, literal in data.values:
            if text == wanted:
                return literal.value
        raise NoValue(f"{text[:80]!r} stands for none of the values that it could be")

    def options(self, node: nodes.Generate, site: Site) -> dict[str, Any]:
        """All options of a `gen`, those that are made of values included."""
        options = sampling_options(node)
        for name, value in node.given:
            options[name] = self.data(value, site)
        tokens = options.get("max_tokens")
        is_given = any(name == "max_tokens" for name, _ in node.given)
        if is_given and isinstance(tokens, int) and tokens > MAX_GIVEN_TOKENS:
            raise NoValue(
                f"max_tokens={tokens} was made of a value; a graph takes {MAX_GIVEN_TOKENS} at most"
            )
        key = (node.branch, node.name or "")
        if key in self._types:
            options["json_schema"] = self._types[key]
        return options

    def _probability(self, call: PendingCall, choice: str) -> str:
        distribution = call.record.distribution if call.record is not None else {}
        if choice not in distribution:  # the call failed, or this was no choice of it
            raise NoValue(f"{call} has no probability of {choice!r}")
        return repr(float(distribution[choice]))

    def _decoded(self, data: nodes.Decoded, site: Site) -> Any:
        branch = self.branches[data.branch]
        call = self.calls[data.branch, data.name]
        self.read(Ref(data.branch, data.name))
        if call.branch is branch:
            return State(branch).json_at(data.name, site)
        return decode_json(call.value or "", None)
