"""Random programs mean the same eager and compiled, with every set of passes, in any order of
answers.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import (
    GraphProgram,
    Program,
    ProgramError,
    State,
    best,
    gen,
    program,
    select,
    tool,
)
from umbel.frontend_dsl.graph.serial import GraphLimits, from_json, to_json
from umbel.frontend_dsl.passes.pipeline import NAMES

_seen: list[tuple[str, int]] = []


@tool
def note(text: str, times: int) -> str:
    """A tool with an effect: the order of its calls is visible."""
    _seen.append((text, times))
    return f"{text}*{times}"


@tool
def is_early(text: str) -> bool:
    return text < "m"


@program
def inner(s: State, word: str) -> str:
    """A program that others call."""
    s += word + gen("answer", max_tokens=3)
    if s["answer"].endswith("a") or len(word) > 3:
        s += "!" + gen("more", max_tokens=1)
    return s["answer"]


def joined(branch: State, left: str, right: str) -> str:
    """Combines two texts of a reduction."""
    branch += f"{left}+{right}=" + gen("sum", max_tokens=2)
    return branch["sum"]


@dataclass(frozen=True)
class Step:
    """One statement: `kind` and what it needs."""

    kind: str
    number: int
    bodies: tuple[tuple["Step", ...], ...] = ()


_SIMPLE = (
    "say", "argument", "gen", "pick", "quote", "tool", "role", "number", "open", "option", "sure",
    "agent", "call", "map", "beam",
)  # fmt: skip
_NESTED = ("fork", "if", "loop", "while", "match", "flag", "ask")


def steps_of_depth(depth: int) -> st.SearchStrategy[tuple[Step, ...]]:
    simple = st.builds(Step, st.sampled_from(_SIMPLE), st.integers(0, 3))
    if depth == 0:
        return st.lists(simple, max_size=3).map(tuple)
    inner = steps_of_depth(depth - 1)
    nested = st.builds(
        Step,
        st.sampled_from(_NESTED),
        st.integers(0, 2),
        st.lists(inner, min_size=2, max_size=2).map(tuple),
    )
    return st.lists(st.one_of(simple, nested), max_size=4).map(tuple)


class _Writer:
    """Python source of the steps: the tracer reads source, and so do we when a test fails."""

    def __init__(self) -> None:
        self.lines = ["def body(s, a, b):"]
        self.names = itertools.count()

    def write(self, steps: tuple[Step, ...]) -> str:
        self._block(steps, "s", ["s"], [], 1, is_free=True)
        return "\n".join(self.lines)

    def _put(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def _block(
        self, steps: tuple[Step, ...], s: str, all_states: list[str], known: list[tuple[str, str]],
        depth: int, *, is_free: bool,
    ) -> None:  # fmt: skip
        """`known`: (state, name) that have a finite value; `is_free`: no role is open."""
        start = len(self.lines)
        for step in steps:
            name = f"v{next(self.names)}"
            if step.kind == "say":
                self._put(depth, f"{s} += 'text{step.number} '")
            elif step.kind == "argument":
                self._put(depth, f"{s} += f'<{{a}}|{{b:>{step.number + 1}}}>'")
            elif step.kind == "gen":
                self._put(depth, f"{s} += gen('{name}', max_tokens={step.number + 1})")
                self._put(depth, f"{s} += {s}['{name}'].upper() + '!'")
            elif step.kind == "number":
                choices = [str(n) for n in range(step.number + 2)]
                self._put(depth, f"{s} += gen('{name}', choices={choices})")
                self._put(depth, f"out.append(int({s}['{name}']) > {step.number})")
            elif step.kind == "pick":
                self._put(depth, f"{s} += select('{name}', ['x', 'yz', a + 'w'])")
                self._put(depth, f"out.append({s}['{name}'])")
            elif step.kind == "open":
                self._put(depth, f"{s} += gen('{name}', max_tokens=4)")
                self._put(depth, f"n{name} = len({s}['{name}'])")
                self._put(depth, f"{s} += f'({{n{name} * 2:>3}}' + {s}['{name}'][0] + ')'")
                self._put(depth, f"out.append((n{name}, n{name} > {step.number}, a in 'Ada'))")
            elif step.kind == "option":
                self._put(depth, f"{s} += gen('{name}', max_tokens=3)")
                self._put(depth, f"{s} += gen('{name}o', max_tokens=len({s}['{name}']), stop=[b])")
            elif step.kind == "sure":
                self._put(depth, f"{s} += select('{name}', ['p', 'qq'])")
                probability = f"{s}.meta('{name}').distribution['p']"
                self._put(
                    depth, f"out.append('sure' if {probability} > 0.{step.number + 4} else '')"
                )
            elif step.kind == "agent":
                turn = f"i{name}"
                self._put(depth, f"for {turn} in range({step.number % 2 + 3}):")
                self._put(depth + 1, f"{s} += f'{{{turn} + 1}}. '")
                self._put(depth + 1, f"{s} += gen(f'{name}_{{{turn}}}', choices=['a', 'b', 'c'])")
                self._put(depth + 1, f"if {s}[f'{name}_{{{turn}}}'] == 'c':")
                self._put(depth + 2, "break")
                self._put(depth + 1, f"if {s}[f'{name}_{{{turn}}}'] == 'a':")
                self._put(depth + 2, f"{s} += note('n', {turn})")
            elif step.kind == "call" and is_free:
                self._put(depth, f"child{name} = {s}.fork(1)[0]")
                self._put(depth, f"out.append(inner(child{name}, {s} is {s} and a))")
            elif step.kind == "map":
                self._put(depth, f"out.append({s}.map(inner, [a, 'word', b][:{step.number}]))")
                self._put(depth, f"out.append({s}.reduce(joined, ['x', b, a, 'y']))")
            elif step.kind == "beam":
                self._beam(step, s, name, depth)
            elif step.kind == "quote" and known:
                state, variable = known[step.number % len(known)]
                self._put(depth, f"{s} += f\"[{{{state}['{variable}']}}]\"")
            elif step.kind == "tool":
                self._put(depth, f"{s} += gen('{name}', max_tokens=2)")
                self._put(depth, f"out.append(note({s}['{name}'], '{step.number}'))")
            elif step.kind == "role" and is_free:
                self._put(depth, f"with {s}.user():")
                self._put(depth + 1, f"{s} += 'q' + gen('{name}', max_tokens=2)")
            else:
                self._nested(step, s, all_states, known, depth, name, is_free=is_free)
        if len(self.lines) == start:
            self._put(depth, "pass")

    def _beam(self, step: Step, s: str, name: str, depth: int) -> None:
        """The best of a fork go on, and of what they fork the best again."""
        score = f"lambda branch: branch.meta('{name}').distribution['p']"
        for line in (
            f"f{name} = {s}.fork(3)",
            f"for i{name} in range(3):",
            f"    f{name}[i{name}] += f'{{i{name}}}' + select('{name}', ['p', 'qq'])",
            f"top{name} = best(f{name}, {step.number + 1}, key={score})",
            f"f{name}[0] += 'late' + gen('{name}l', max_tokens=1)",
            f"for b{name} in top{name}:",
            f"    b{name} += '?' + gen('{name}n', choices=['1', '2', '3'])",
            f"    out.append((b{name}['{name}'], '{name}l' in b{name}, b{name}['{name}n']))",
            f"below{name} = [c for b in top{name} for c in b.fork(2)]",
            f"one{name} = best(below{name}, key=lambda branch: int(branch['{name}n']) * 2)[0]",
            f"one{name} += '.' + gen('{name}', max_tokens=2)",
            f"out.append(one{name}['{name}'])",
        ):
            self._put(depth, line)

    def _nested(
        self, step: Step, s: str, all_states: list[str], known: list[tuple[str, str]], depth: int,
        name: str, *, is_free: bool,
    ) -> None:  # fmt: skip
        if not step.bodies:
            return
        first, second = step.bodies

        def inner(steps: tuple[Step, ...], more: int = 1) -> None:
            self._block(steps, s, all_states, list(known), depth + more, is_free=is_free)

        if step.kind == "fork":
            child = f"f{name}"
            self._put(depth, f"{child} = {s}.fork(2)")
            for idx, body in enumerate((first, second)):
                self._put(depth, f"{child}_{idx} = {child}[{idx}]")
                self._block(body, f"{child}_{idx}", [], list(known), depth, is_free=is_free)
            if step.number:
                self._put(depth, f"{child}.join()")
        elif step.kind == "loop":
            self._put(depth, f"for i{name} in range({step.number}):")
            self._put(depth + 1, f"{s} += gen(f'{name}_{{i{name}}}', choices=['a', 'b'])")
            self._put(depth + 1, f"if {s}[f'{name}_{{i{name}}}'] == 'a':")
            self._put(depth + 2, "break")
        elif step.kind == "while":
            self._put(depth, f"t{name} = 0")
            self._put(depth, f"{s} += gen(f'{name}_0', choices=['a', 'b', 'c'])")
            self._put(depth, f"while {s}[f'{name}_{{t{name}}}'] != 'a' and t{name} < 3:")
            self._put(depth + 1, f"t{name} += 1")
            self._put(depth + 1, f"{s} += gen(f'{name}_{{t{name}}}', choices=['a', 'b', 'c'])")
        else:
            self._put(depth, f"{s} += gen('{name}', choices=['no', 'yes', 'zzz'])")
            known.append((s, name))
            if step.kind == "match":
                self._put(depth, f"match {s}['{name}']:")
                self._put(depth + 1, "case 'no' | 'zzz':")
                inner(first, 2)
                self._put(depth + 1, "case _:")
                inner(second, 2)
                return
            tests = {
                "if": f"{s}['{name}'] == 'yes'",
                "flag": f"is_early({s}['{name}'])",
                "ask": f"{s}['{name}'].startswith('z') or 'o' in {s}['{name}'] + a",
            }
            test = tests[step.kind]
            self._put(depth, f"if {test}:")
            inner(first)
            self._put(depth, "else:")
            inner(second)


_files = itertools.count()


def random_program(steps: tuple[Step, ...]) -> tuple[Program, str]:
    import linecache

    lines = _Writer().write(steps).splitlines()
    source = "\n".join([lines[0], "    out = []", *lines[1:], "    return out, a", ""])
    file = f"<random program {next(_files)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    world: dict[str, Any] = {
        "gen": gen, "select": select, "note": note, "is_early": is_early, "inner": inner,
        "joined": joined, "best": best, "__name__": "random",
    }  # fmt: skip
    exec(compile(source, file, "exec"), world)
    return program(world["body"]), source


def _outcome(made: Program | GraphProgram, model: FakeModel, seed: int, run: Any = None) -> Any:
    _seen.clear()
    with FakeClient(model=model, seed=seed) as client:
        try:
            state = made.run(client, a="Ada", b="x")
        except ProgramError as error:
            return ("error", str(error.site), error.call, error.branch, str(error.cause))
    return (state.result, _tree(state), tuple(_seen))


def _tree(state: State) -> Any:
    below = [_tree(branch) for branch in state.branches]
    calls = [(call.name, call.text, str(call.site)) for call in state.calls]
    return state.path, state.text(), state.messages(), state.variables(), calls, below


@given(steps=steps_of_depth(2), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_compiled_programs_give_what_eager_ones_give(steps: tuple[Step, ...], seed: int) -> None:
    made, source = random_program(steps)

    expected = _outcome(made.eager(), FakeModel(), 0)

    assert _outcome(made, FakeModel(), seed) == expected, source
    compiled = made.compile()
    if compiled.graph is None:
        reason = str(compiled)  # too many paths, or it depends on an argument that nobody gave
        assert "more than" in reason or "looks into the argument" in reason, source
        return
    stored = from_json(to_json(compiled.graph), GraphLimits(max_nodes=200_000))
    assert stored == compiled.graph
    assert compiled.traced is not None
    if not compiled.reasons and not compiled.fixed:
        alone = GraphProgram(stored, tools=list(compiled.traced.tools.values()))
        assert _outcome(alone, FakeModel(), seed) == expected, source


@given(steps=steps_of_depth(2), seed=st.integers(0, 99), every=st.integers(3, 9))
@settings(max_examples=15, deadline=None)
def test_compiled_programs_fail_where_eager_ones_fail(
    steps: tuple[Step, ...], seed: int, every: int
) -> None:
    made, source = random_program(steps)
    model = FakeModel(fails=lambda context: sum(context) % every == 0)

    # A failure that the program never meets is raised at the end: of several, the first in time.
    expected = [_outcome(made.eager(), model, other_seed) for other_seed in (0, 1, 2)]

    found = _outcome(made, model, seed)

    assert (found[0] == "error") == (expected[0][0] == "error"), source
    if expected[0] == expected[1] == expected[2]:
        assert found == expected[0], source


@given(steps=steps_of_depth(2), passes=st.sets(st.sampled_from(NAMES)), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_no_set_of_passes_changes_a_result(
    steps: tuple[Step, ...], passes: set[str], seed: int
) -> None:
    made, source = random_program(steps)

    expected = _outcome(made.eager(), FakeModel(), 0)

    assert _outcome(made.with_passes(passes), FakeModel(), seed) == expected, source
