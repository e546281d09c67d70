"""Operations that need no generation: text, roles, fork points, and marks to wait for."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from umbel.frontend_dsl.branch import Branch, OpenMessage, Signal
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.segments import text_between


@dataclass(slots=True, eq=False)
class AppendText:
    """The user's text: it never becomes a special token."""

    text: str
    site: Site

    def start(self, branch: Branch) -> bool:
        start_sequence(branch)
        _append(branch, self.text, special=False)
        return True

    def fail(self, branch: Branch, error: ProgramError) -> None:
        pass  # there is nobody who waits for a text

    def __str__(self) -> str:
        return f"text {self.text[:20]!r}"


@dataclass(slots=True, eq=False)
class AppendTokens(AppendText):
    """Text with its tokens, made ahead by the same tokenizer."""

    token_ids: tuple[int, ...]

    def start(self, branch: Branch) -> bool:
        start_sequence(branch)
        branch.extend(self.token_ids, self.text)
        branch.execution.emit_text(branch.path, self.text)
        return True


@dataclass(slots=True, eq=False)
class OpenRole:
    role: str
    site: Site

    def start(self, branch: Branch) -> bool:
        messages = branch.all_messages()
        _append(branch, branch.execution.client.open_role(messages, self.role), special=True)
        branch.open_message = OpenMessage(self.role, branch.end)
        return True

    def fail(self, branch: Branch, error: ProgramError) -> None:
        pass  # the calls behind it fail

    def __str__(self) -> str:
        return f"role {self.role!r}"


@dataclass(slots=True, eq=False)
class CloseRole:
    role: str
    site: Site

    def start(self, branch: Branch) -> bool:
        assert branch.open_message is not None
        content = text_between(branch.open_message.start, branch.end)
        closing = branch.execution.client.close_role(
            [{"role": role, "content": text} for role, text in branch.messages], self.role
        )
        branch.messages = (*branch.messages, (self.role, content))
        branch.open_message = None
        _append(branch, closing, special=True)
        return True

    def fail(self, branch: Branch, error: ProgramError) -> None:
        pass  # the calls behind it fail

    def __str__(self) -> str:
        return f"role {self.role!r}"


@dataclass(slots=True, eq=False)
class ForkPoint:
    """Hands the branch's end to the children, who share it."""

    children: list[Branch]
    site: Site

    def start(self, branch: Branch) -> bool:
        if branch.end is not None:
            branch.end.flatten(keep=len(self.children) > 1)
        self._release(branch)
        return True

    def fail(self, branch: Branch, error: ProgramError) -> None:
        for child in self.children:
            child.error = error
        self._release(branch)

    def _release(self, branch: Branch) -> None:
        for child in self.children:
            child.end = branch.end
            child.messages = branch.messages
            child.open_message = branch.open_message
            child.is_started = True
            branch.execution.driver.keeper.changed(child)
            # Not advanced here: a chain of forks would recurse as deep as it is long.
            branch.execution.driver.advance_later(child)

    def __str__(self) -> str:
        return f"fork({len(self.children)})"


@dataclass(slots=True, eq=False)
class Mark:
    """A place in the queue that can be waited for."""

    site: Site
    reached: Signal = field(default_factory=Signal)

    def start(self, branch: Branch) -> bool:
        self.reached.set()
        return True

    def fail(self, branch: Branch, error: ProgramError) -> None:
        self.reached.set()

    def __str__(self) -> str:
        return "wait"


class Race(Signal):
    """Set when `count` of `branches` have done what was appended so far, or all have ended.
    `winners` are then those that are done without an error, in the order of `branches`.
    """

    def __init__(self, branches: Sequence[Branch], count: int, site: Site) -> None:
        super().__init__()
        self.site = site
        self.winners: list[Branch] = []
        self._count = count
        self._marks = [(branch, Mark(site)) for branch in branches]
        for branch, mark in self._marks:
            mark.reached.waiting.append(self)
            branch.add(mark)

    def wake(self) -> None:
        """A branch has come to its mark."""
        if self.is_set:
            return
        ended = [branch for branch, mark in self._marks if mark.reached.is_set]
        done = [branch for branch in ended if branch.error is None]
        if len(done) >= self._count or len(ended) == len(self._marks):
            self.winners = done[: self._count]
            self.set()


def start_sequence(branch: Branch) -> None:
    """Text or a call at the very start stands after the model's start token; a template brings its
    own.
    """
    if branch.end is None:
        branch.extend(branch.execution.client.bos_ids(), "")


def _append(branch: Branch, text: str, *, special: bool) -> None:
    if not text:
        return
    branch.extend(branch.execution.driver.encode(text, special), text)
    branch.execution.emit_text(branch.path, text)
