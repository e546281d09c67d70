"""Random programs against a naive sequential interpreter: the order of the engine's answers changes
nothing.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.frontend_dsl.fake_client import BOS, FakeClient, FakeModel

from umbel.frontend_dsl import ProgramError, State, gen, program, select
from umbel.runtime.errors import UmbelError
from umbel.runtime.params import SamplingParams


@dataclass(frozen=True)
class Say:
    text: str


@dataclass(frozen=True)
class Generate:
    max_tokens: int


@dataclass(frozen=True)
class Pick:
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Repeat:
    times: int
    body: tuple["Statement", ...]


@dataclass(frozen=True)
class Decide:
    """Reads the last value, and says the text when it comes early in the alphabet."""

    text: str


@dataclass(frozen=True)
class Split:
    """Forks; then joins (and quotes the branches' last values) or not."""

    bodies: tuple[tuple["Statement", ...], ...]
    joins: bool


Statement = Say | Generate | Pick | Repeat | Decide | Split


def _statements(depth: int) -> st.SearchStrategy[tuple[Statement, ...]]:
    simple: st.SearchStrategy[Statement] = st.one_of(
        st.builds(Say, st.text("ab !", min_size=1, max_size=3)),
        st.builds(Generate, st.integers(1, 3)),
        st.builds(Pick, st.sampled_from([("x", "yz"), ("aa", "ab", "b")])),
        st.builds(Decide, st.text("cd", min_size=1, max_size=2)),
    )
    if depth == 0:
        return st.lists(simple, max_size=4).map(tuple)
    inner = _statements(depth - 1)
    nested = st.one_of(
        st.builds(Repeat, st.integers(1, 3), inner),
        st.builds(Split, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans()),
    )
    return st.lists(st.one_of(simple, nested), max_size=5).map(tuple)


# --- the program ---


def _run(s: State, body: tuple[Statement, ...], names: list[str]) -> None:
    """`names`: the variables of this branch, in order."""
    for statement in body:
        match statement:
            case Say(text):
                s += text
            case Generate(max_tokens):
                names.append(f"v{len(names)}")
                s += gen(names[-1], max_tokens=max_tokens)
            case Pick(choices):
                names.append(f"v{len(names)}")
                s += select(names[-1], choices)
            case Repeat(times, inner):
                for _ in range(times):
                    _run(s, inner, names)
            case Decide(text):
                if names and s[names[-1]] < "m":
                    s += text
            case Split(bodies, joins):
                forks = s.fork(len(bodies))
                inner_names = [list(names) for _ in bodies]
                for branch, inner, mine in zip(forks, bodies, inner_names, strict=True):
                    _try(branch, inner, mine)
                if joins:
                    forks.join()
                    for branch, mine in zip(forks, inner_names, strict=True):
                        if branch.error is None and mine:
                            s += f"[{branch[mine[-1]]}]"


def _try(branch: State, body: tuple[Statement, ...], names: list[str]) -> None:
    try:
        _run(branch, body, names)
    except ProgramError:
        assert branch.error is not None


# --- the naive interpreter ---


class Broken(Exception):
    pass


@dataclass
class Naive:
    model: FakeModel
    tokens: list[int]
    values: list[str]
    failed: bool
    children: list["Naive"]

    def text(self) -> str:
        return "".join(map(chr, self.tokens[1:]))

    def say(self, text: str) -> None:
        if not self.failed:
            self.tokens += map(ord, text)

    def call(self, max_tokens: int | None, choices: tuple[str, ...]) -> None:
        value = ""
        if not self.failed:
            try:
                value = self._choose(choices) if choices else self._generate(max_tokens)
            except UmbelError:
                self.failed = True
        self.values.append(value)
        self.say(value)

    def last(self) -> str:
        """The last value; a value from before a fork that had failed has failed here too."""
        if self.failed:
            raise Broken
        return self.values[-1]

    def _generate(self, max_tokens: int | None) -> str:
        return self.model.generate(self.tokens, SamplingParams(max_tokens=max_tokens))

    def _choose(self, choices: tuple[str, ...]) -> str:
        means = []
        for choice in choices:
            logprobs = self.model.score(self.tokens, list(map(ord, choice)))
            means.append(sum(logprobs) / len(logprobs))
        return choices[means.index(max(means))]


def _interpret(branch: Naive, body: tuple[Statement, ...]) -> None:
    for statement in body:
        match statement:
            case Say(text):
                branch.say(text)
            case Generate(max_tokens):
                branch.call(max_tokens, ())
            case Pick(choices):
                branch.call(None, choices)
            case Repeat(times, inner):
                for _ in range(times):
                    _interpret(branch, inner)
            case Decide(text):
                if branch.values and branch.last() < "m":
                    branch.say(text)
            case Split(bodies, joins):
                children = [
                    Naive(
                        branch.model, branch.tokens.copy(), branch.values.copy(), branch.failed, []
                    )
                    for _ in bodies
                ]
                branch.children += children
                for child, inner in zip(children, bodies, strict=True):
                    try:
                        _interpret(child, inner)
                    except Broken:
                        assert child.failed
                if joins:
                    for child in children:
                        if not child.failed and child.values:
                            branch.say(f"[{child.values[-1]}]")


def _compare(state: State, naive: Naive) -> None:
    assert (state.error is not None) == naive.failed
    assert state.text() == naive.text()
    assert len(state.branches) == len(naive.children)
    for child, expected in zip(state.branches, naive.children, strict=True):
        _compare(child, expected)


def _check(body: tuple[Statement, ...], seed: int, model: FakeModel) -> None:
    @program
    def random_program(s: State) -> None:
        _try(s, body, [])
        for branch in _all_below(s):
            _ = branch.error  # met: the run itself ends well

    with FakeClient(model=model, seed=seed) as client:
        state = random_program.run(client)
        in_batch = random_program.run_batch(client, [{}, {}, {}])
    naive = Naive(model, [BOS], [], False, [])
    try:
        _interpret(naive, body)
    except Broken:
        assert naive.failed

    for other in (state, *in_batch):
        _compare(other, naive)


def _all_below(state: State) -> list[State]:
    found = [state]
    for branch in found:
        found += branch.branches
    return found


@given(body=_statements(2), seed=st.integers(0, 1000))
@settings(max_examples=120, deadline=None)
def test_any_order_of_answers_gives_the_result_of_a_sequential_run(
    body: tuple[Statement, ...], seed: int
) -> None:
    _check(body, seed, FakeModel())


@given(body=_statements(2), seed=st.integers(0, 1000), every=st.integers(2, 6))
@settings(max_examples=120, deadline=None)
def test_failures_hit_the_same_branches_as_in_a_sequential_run(
    body: tuple[Statement, ...], seed: int, every: int
) -> None:
    _check(body, seed, FakeModel(fails=lambda context: sum(context) % every == 0))


@given(body=_statements(2), seed=st.integers(0, 1000), stop_after=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_a_stream_closed_at_any_point_leaves_no_call_running(
    body: tuple[Statement, ...], seed: int, stop_after: int
) -> None:
    @program
    def random_program(s: State) -> None:
        _run(s, body, [])

    with FakeClient(seed=seed) as client:
        stream = random_program.stream(client)
        for _, _ in zip(range(stop_after), stream, strict=False):
            pass
        stream.close()
        calls = list(client.calls)

    assert all(call.is_ended or call.is_cancelled for call in calls)
