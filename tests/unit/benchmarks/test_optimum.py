"""The offline optimum that the suite of programs is held to, and where two of its runs part."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.frontend_dsl.fake_client import FakeClient

from umbel.frontend_dsl import State, gen, program, select
from umbel.runtime.outputs import Chunk, Completion, FinishReason, Timing, Usage

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "programs"


def _load(name: str) -> ModuleType:
    file = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks.programs.{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses, and `ties`, look there
    spec.loader.exec_module(module)
    return module


optimum = _load("optimum")
ties = _load("ties")


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_the_fewest_tokens_are_the_different_prefixes(sequences: list[list[int]]) -> None:
    prefixes = {tuple(tokens[:stop]) for tokens in sequences for stop in range(1, len(tokens) + 1)}

    assert optimum.fewest_tokens(sequences) == len(prefixes)


def test_shares_are_of_what_can_be_reused() -> None:
    use = optimum.cache_use([[1, 2, 3], [1, 2, 4], [1, 2, 3]], computed=6)

    assert (use.needed, use.fewest) == (9, 4)
    assert use.hit_rate == 1 - 6 / 9
    assert use.share_of_best == pytest.approx((9 - 6) / (9 - 4))
    assert optimum.cache_use([[1], [2]], computed=2).share_of_best == 1


def test_a_recorder_keeps_prompts_scores_and_all_but_the_last_sampled_token() -> None:
    @program(temperature=0.0)
    def both(s: State) -> str:
        s += "ab" + gen("x", max_tokens=3)
        s += select("y", ["cd", "e"])
        return s["x"]

    with FakeClient() as client:
        recorder = optimum.Recorder(client)
        text = both.eager().run(recorder).result

    prompt = [*client.bos_ids(), *map(ord, "ab")]
    output = list(map(ord, text))
    fed, *scored = [list(tokens) for tokens in recorder.sequences()]
    assert fed[: len(prompt)] == prompt
    assert fed == [*prompt, *output][: len(fed)]
    assert scored == [[*prompt, *output, ord("c")], [*prompt, *output]]


def test_tokens_that_are_forced_at_the_end_are_not_fed() -> None:
    fed = optimum.Fed([1, 2], 2, is_constrained=True)

    fed.note(Chunk(0, token_ids=(3,)))
    fed.note(Chunk(0, token_ids=(4, 5, 6)))
    fed.note(_last((3, 4, 5, 6), num_forced=2))

    assert fed.tokens[: fed.num_fed] == [1, 2, 3]


def test_guesses_that_came_true_were_fed() -> None:
    fed = optimum.Fed([1, 2], 2)

    fed.note(Chunk(0, token_ids=(3,)))
    fed.note(Chunk(0, token_ids=(4, 5, 6)))

    assert fed.tokens[: fed.num_fed] == [1, 2, 3, 4, 5]


def test_nothing_is_fed_for_an_output_that_is_forced_altogether() -> None:
    fed = optimum.Fed([1, 2], 2, is_constrained=True)

    fed.note(Chunk(0, token_ids=(3, 4)))
    fed.note(_last((3, 4), num_forced=2))

    assert fed.num_fed == 0


def test_runs_part_at_the_first_token_that_differs_after_the_same_prompt() -> None:
    def fed(prompt: list[int], output: list[int], *, is_greedy: bool = True) -> Any:
        return optimum.Fed([*prompt, *output], 0, num_prompt=len(prompt) * is_greedy)

    one = [fed([1, 2], [5, 6, 7]), fed([3], [4]), fed([8], [9]), fed([6], [1], is_greedy=False)]
    other = [fed([1, 2], [5, 7, 6]), fed([3], [4]), fed([6], [2], is_greedy=False)]

    assert list(ties.partings(one, other)) == [((1, 2, 5), 6, 7)]


def _last(token_ids: tuple[int, ...], *, num_forced: int) -> Chunk:
    usage = Usage(num_output_tokens=len(token_ids), num_forced_tokens=num_forced)
    completion = Completion(
        index=0, text="", token_ids=token_ids, text_token_ids=token_ids,
        finish_reason=FinishReason.STOP, stop_reason=None, logprobs=None, prompt_logprobs=None,
        usage=usage, timing=Timing(),
    )  # fmt: skip
    return Chunk(0, completion=completion)
