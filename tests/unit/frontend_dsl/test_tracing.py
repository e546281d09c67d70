"""Which programs become graphs, what the graphs do, and what runs in Python instead."""

import enum
import threading
from typing import Any

import msgspec
import pytest
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import Program, ProgramError, State, gen, program, select
from umbel.frontend_dsl.graph.nodes import Decide, Generate, Leave, Say, walk
from umbel.grammar.limits import Limits
from umbel.grammar.schema.load import load_schema
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams

LOG: list[str] = []
LIMITS = {"low": 1, "high": 3}
GREETING = "Hello"


class Tone(enum.Enum):
    KIND = "kind"


class Person(msgspec.Struct):
    name: str
    age: int


def _both(made: Program, model: FakeModel | None = None, **arguments: Any) -> tuple[Any, Any]:
    """What the compiled and the eager program give; the program must have a graph."""
    model = model or FakeModel()
    with FakeClient(model=model) as client:
        compiled = made.run(client, **arguments)
        eager = made.eager().run(client, **arguments)
    assert "compiled" in made.explain(), made.explain()
    return (compiled.result, compiled.text()), (eager.result, eager.text())


def test_arguments_stand_in_texts_in_all_the_usual_ways() -> None:
    @program
    def texts(s: State, name: str, items: list[str]) -> str:
        s += f"{name}|{name:>8}|{name!r:10}|{name.upper()}"
        s += "plus " + name + "!"
        s += ", ".join(item for item in items) + f" and {len(items)}"
        s += f"{name[1:]} {items[0].strip()}"
        for number, item in enumerate(items):
            s += f"{number}. {item}\n"
        s += select("best", [f" {item}" for item in items])
        return name + s["best"]

    compiled, eager = _both(texts, name="Ada", items=[" x", "yy", "z"])

    assert compiled == eager
    assert len(list(walk(texts._compiler.compiled({"name": "", "items": ["", ""]}).graph.body)))


def test_every_kind_of_decision_follows_the_value() -> None:
    @program
    def decide(s: State, name: str) -> list[Any]:
        out: list[Any] = []
        for i in range(2):
            s += gen(f"n{i}", choices=["1", "22", "3", "no"])
            value = s[f"n{i}"]
            if value in ("1", "22") and value != "22":
                out.append("one")
            match value:
                case "3" | "no":
                    out.append(len(value))
                case _:
                    out.append("other")
            out.append(value.isdigit() and int(value) > 2)
            out.append({"1": "a", "22": "b", "3": "c", "no": "d"}[value])
            s += "x" if value < "2" else f"<{value}{name}>"
        return out

    for name in ("a", "b", "c", "d"):
        compiled, eager = _both(decide, name=name)
        assert compiled == eager


def test_a_free_text_can_be_compared_but_not_looked_into() -> None:
    @program
    def compares(s: State) -> str:
        s += gen("x", max_tokens=1)
        if s["x"] == "q":
            return "it is q"
        return "it is another: " + s["x"].upper()

    @program
    def looks(s: State) -> int:
        s += gen("x", max_tokens=1)
        return len(s["x"].split("q"))

    compiled, eager = _both(compares)
    assert compiled == eager
    reason = str(looks.compile())
    assert "split() looks into the generated 'x'" in reason
    assert "test_tracing.py:" in reason


@pytest.mark.parametrize("kind", ["print", "open", "try", "random", "append", "import"])
def test_effects_are_never_traced_and_happen_once(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import random

    LOG.clear()

    def effect(kind: str) -> None:
        if kind == "print":
            print("printed")
        elif kind == "open":
            open("/nowhere/nothing")  # noqa: SIM115
        elif kind == "try":
            try:
                LOG.append("x")
            finally:
                LOG.append("y")
        elif kind == "random":
            random.random()
        elif kind == "append":
            LOG.append("x")
        else:
            import this_module_is_not_there  # type: ignore[import-not-found]  # noqa: F401

    @program
    def acts(s: State, kind: str) -> str:
        s += gen("x", choices=["a", "b"])
        if s["x"] == "a" or s["x"] == "b":
            effect(kind)
        return s["x"]

    with FakeClient() as client:
        if kind in ("open", "import"):
            with pytest.raises(ProgramError):
                acts.run(client, kind=kind)
        else:
            acts.run(client, kind=kind)

    assert "runs eagerly" in acts.explain()
    assert "test_tracing.py:" in acts.explain()
    assert capsys.readouterr().out == ("printed\n" if kind == "print" else "")
    assert {"try": ["x", "y"], "append": ["x"]}.get(kind, []) == LOG


def test_a_path_that_raises_goes_on_in_python_and_no_call_is_made_twice() -> None:
    @program
    def picky(s: State, name: str) -> str:
        s += name
        s += gen("x", choices=["good", "bad"])
        s += gen("y", max_tokens=3)
        if s["x"] == "bad":
            raise ValueError(f"bad: {s['y']}")
        return s["y"]

    line = picky.function.__code__.co_firstlineno + 6
    outcomes = set()
    for name in "abcdef":
        with FakeClient() as client:
            (state,) = picky.run_batch(client, [{"name": name}])
            assert len(client.calls) == 2
        error = state.error
        outcomes.add((type(error.cause), error.site.line) if error and error.site else None)

    assert outcomes == {None, (ValueError, line)}
    assert "raises ValueError" in picky.explain()


def test_a_loop_beyond_its_bound_goes_on_in_python() -> None:
    @program
    def patient(s: State) -> int:
        step = 0
        while True:
            s += gen(f"step{step}", choices=["go", "stop"])
            if s[f"step{step}"] == "stop":
                return step
            step += 1

    class Stubborn(FakeModel):
        def generate(self, context: Any, params: SamplingParams) -> str:
            return "stop" if len(context) > 2 * 100 else "go"

    compiled, eager = _both(patient, Stubborn())

    assert compiled == eager
    assert compiled[0] == 100
    assert any(isinstance(node, Leave) for node in walk(patient.graph.body))


def test_a_value_that_was_cut_off_goes_on_in_python() -> None:
    class Cutting(FakeModel):
        def generate(self, context: Any, params: SamplingParams) -> str:
            return "ye" if params.choices else super().generate(context, params)

    @program
    def cut(s: State) -> str:
        s += gen("x", choices=["yes", "no"])
        if s["x"] == "yes":
            return "yes"
        s += "!"
        return "no: " + s["x"]

    compiled, eager = _both(cut, Cutting())

    assert compiled == eager == ("no: ye", "ye!")


def test_the_paths_of_independent_decisions_meet_again() -> None:
    @program
    def wide(s: State) -> list[str]:
        forks = s.fork(12)
        for branch in forks:
            branch += gen("x", choices=["a", "b", "c"])
            if branch["x"] == "a":
                branch += gen("y", max_tokens=2)
            branch += "end"
        return [branch["x"] for branch in forks]

    compiled = wide.compile()

    assert compiled.traced is not None
    assert compiled.traced.num_runs <= 1 + 12
    assert sum(isinstance(node, Decide) for node in walk(wide.graph.body)) == 12


def test_a_program_with_too_many_paths_runs_eagerly() -> None:
    @program
    def counts(s: State) -> int:
        total = 0
        for i in range(40):
            s += gen(f"x{i}", choices=list("0123456789"))
            total += int(s[f"x{i}"])
        return total

    with FakeClient() as client:
        counts.run(client)

    assert "runs eagerly" in counts.explain()
    assert "more than" in counts.explain()


def test_what_a_graph_was_made_from_may_change() -> None:
    @program
    def greets(s: State) -> None:
        s += GREETING + "!" * LIMITS["high"]

    global GREETING
    with FakeClient() as client:
        first = greets.run(client).text()
        GREETING = "Bye"
        second = greets.run(client).text()
        LIMITS["high"] = 1
        third = greets.run(client).text()
    GREETING = "Hello"
    LIMITS["high"] = 3

    assert (first, second, third) == ("Hello!!!", "Bye!!!", "Bye!")
    assert "compiled" in greets.explain()


def test_numbers_are_part_of_the_graph_and_strings_that_are_looked_into_too() -> None:
    @program
    def repeats(s: State, count: int, words: str) -> int:
        for _ in range(count):
            s += "x"
        for word in words.split():
            s += word.upper()
        return len(words)

    for count, words in ((1, "a b"), (3, "a b"), (2, "c")):
        compiled, eager = _both(repeats, count=count, words=words)
        assert compiled == eager
    assert "for the given values of: words" in repeats.explain()


def test_arguments_that_steer_too_much_are_left_to_python() -> None:
    @program
    def steered(s: State, words: str) -> int:
        s += words
        return len(words.split("y")[0])

    with FakeClient() as client:
        results = [steered.run(client, words="x" * n).result for n in range(40)]

    assert results == list(range(40))
    assert "runs eagerly" in steered.explain()
    assert "arguments steer it too much" in steered.explain()


def test_helpers_nested_programs_and_roles_are_followed() -> None:
    def ask(s: State, name: str) -> str:
        with s.user():
            s += f"Who is {name}?"
        with s.assistant():
            s += gen("who", choices=["known", "unknown"])
        return s["who"]

    @program
    def inner(s: State, word: str) -> None:
        s += gen("w", max_tokens=2)
        s += word

    @program
    def outer(s: State, name: str) -> str:
        if ask(s, name) == "known":
            fork = s.fork(1)[0]
            inner(fork, word=name)
            return fork["w"]
        inner(s, name)
        return s["w"] + Tone.KIND.value

    for name in "abcd":
        compiled, eager = _both(outer, name=name)
        assert compiled == eager


def test_a_typed_json_value_is_returned_as_its_type() -> None:
    @program
    def extract(s: State, text: str) -> Any:
        s += text
        s += gen("person", json_schema=Person)
        return s.json("person")

    compiled, eager = _both(extract, text="x")

    assert compiled == eager
    assert compiled[0] == Person("Ada", 7)


def test_a_graph_has_the_schema_that_an_engine_makes_of_a_type() -> None:
    """A type has the fields that it has, and integers without `.0`: a stored graph must not let a
    model write anything else.
    """

    @program
    def extract(s: State, text: str) -> Any:
        s += text
        s += gen("person", json_schema=Person)
        return s.json("person")

    call = next(node for node in walk(extract.graph.body) if isinstance(node, Generate))
    stored, typed = (load_schema(schema, Limits())
                     for schema in (call.options["json_schema"], Person))  # fmt: skip

    assert stored == typed
    assert stored.is_typed
    assert stored.value["$defs"]["Person"]["additionalProperties"] is False


def test_a_comparison_that_can_never_hold_is_reported() -> None:
    @program
    def typo(s: State) -> str:
        s += gen("x", choices=["yes", "no"])
        return "a" if s["x"] == "Yes" else "b"

    line = typo.function.__code__.co_firstlineno + 3
    assert f"test_tracing.py:{line}: 'x' can never be 'Yes' here" in str(typo.compile())


def test_threads_share_one_compilation() -> None:
    @program
    def shared(s: State, name: str) -> str:
        s += name
        s += gen("x", choices=["a", "b"])
        return "A" if s["x"] == "a" else "B"

    results: list[Any] = []

    def work(number: int) -> None:
        with FakeClient(seed=number) as client:
            results.append(shared.run(client, name="n").result)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 8
    assert len(set(results)) == 1
    assert len(shared._compiler._variants) == 1


def test_compiling_needs_what_the_graph_depends_on() -> None:
    @program
    def needs(s: State, count: int, name: str) -> None:
        for _ in range(count):
            s += name

    with pytest.raises(Exception, match="compile\\(\\) needs count="):
        needs.compile()

    graph = needs.compile(count=2, passes=()).graph
    assert graph is not None
    assert sum(isinstance(node, Say) for node in walk(graph.body)) == 2


def test_a_value_is_looked_for_in_a_text() -> None:
    @program
    def finds(s: State, name: str) -> list[bool]:
        s += name
        s += gen("x", choices=["es", "no", "q"])
        return [s["x"] in "yes or no", s["x"] not in "yes", "e" in s["x"]]

    for name in "abcdef":
        compiled, eager = _both(finds, name=name)
        assert compiled == eager


def test_paths_with_other_closures_do_not_meet() -> None:
    @program
    def closes(s: State, name: str) -> list[str]:
        out: list[str] = []
        s += name
        s += gen("x", choices=["a", "b", "c"])
        if s["x"] == "a":
            add = out.append
            say = lambda: "first"  # noqa: E731
        else:
            other: list[str] = []
            add = other.append
            word = s["x"]
            say = lambda: word  # noqa: E731
        s += "."
        add("seen")
        s += say()
        return out

    for name in "abcdefgh":
        compiled, eager = _both(closes, name=name)
        assert compiled == eager


def test_a_change_outside_is_found_on_a_path_that_meets_another() -> None:
    log: list[str] = []

    @program
    def logs(s: State, name: str) -> str:
        s += name
        s += gen("x", choices=["a", "b"])
        if s["x"] == "b":
            log.append(name)
        s += "."
        return "same"

    with FakeClient() as client:
        states = [logs.run(client, name=name) for name in "abcdef"]

    assert log == [name for name, s in zip("abcdef", states, strict=True) if s["x"] == "b"]
    assert log
    assert "it changes log" in logs.explain()


def test_what_a_program_looks_into_has_to_be_given() -> None:
    @program
    def splits(s: State, words: str) -> int:
        s += words
        return len(words.split())

    for _ in range(2):
        assert "looks into the argument 'words'; compile(words=...)" in str(splits.compile())
        with pytest.raises(InvalidRequest, match="words"):
            splits.graph  # noqa: B018  # the attribute raises
        with FakeClient() as client:
            assert splits.run(client, words="a b c").result == 3
    made = splits.compile(words="a b").graph
    assert made is not None
    assert made.made_for == ((("words",), "a b"),)


def test_ways_that_go_on_alike_are_written_once() -> None:
    @program
    def alike(s: State) -> str:
        for i in range(6):
            s += gen(f"x{i}", choices=["a", "b", "c", "stop"])
            if s[f"x{i}"] == "stop":
                return f"stopped{i}"
            s += {"a": "one", "b": "two", "c": "three"}[s[f"x{i}"]]
            s += gen(f"y{i}", max_tokens=2)
        return "all"

    compiled, eager = _both(alike)

    assert compiled == eager
    graph = alike.compile(passes=()).graph
    assert graph is not None
    assert sum(1 for _ in walk(graph.body)) < 60  # 3 ** 6 if each way had its own rest
