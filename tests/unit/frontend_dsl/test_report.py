"""The drawing of a run and its totals."""

import io

from rich.console import Console
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import State, draw, gen, program, select, totals


@program
def tree(s: State) -> None:
    s += "Q [x]: " + gen("q", max_tokens=3)
    forks = s.fork(5)
    for i, branch in enumerate(forks):
        branch += f"{i}" if i else "!"
        branch += gen("text", max_tokens=2)
    _ = forks.errors
    s += select("best", ["a", "b"])


def _drawn(state: State, **options: int) -> str:
    file = io.StringIO()
    Console(width=200, file=file).print(draw(state, **options))
    return file.getvalue()


def test_the_drawing_shows_calls_branches_and_tokens() -> None:
    with FakeClient() as client:
        state = tree.run(client)

    text = _drawn(state)

    assert "root  6 branches" in text
    assert f"gen q = '{state['q']}'  computed 8, reused 0, output {len(state['q'])}" in text
    assert f"p={state.meta('best').distribution[state['best']]:.2f}" in text
    assert "fork1[4]" in text


def test_branches_beyond_the_bound_are_summed_up() -> None:
    with FakeClient() as client:
        text = _drawn(tree.run(client), max_branches=2)

    assert "fork1[1]" in text
    assert "fork1[2]" not in text
    assert "and 3 more branches" in text


def test_a_failed_call_is_drawn_with_its_reason() -> None:
    model = FakeModel(fails=lambda context: context[-1] == ord("!"))

    with FakeClient(model=model) as client:
        state = tree.run(client)

    assert "gen text  failed: the fake model fails here" in _drawn(state)
    assert totals(state).num_failed_calls == 1


def test_totals_sum_over_all_branches() -> None:
    with FakeClient() as client:
        state = tree.run(client)

    summary = totals(state)
    outputs = [state["q"], *(branch["text"] for branch in state.branches)]
    assert summary.num_calls == 7
    assert summary.num_failed_calls == 0
    assert summary.usage.num_output_tokens == sum(map(len, outputs))
    assert summary.num_scored_tokens == 2
    assert summary.num_computed_tokens == summary.usage.num_prompt_tokens + 2
