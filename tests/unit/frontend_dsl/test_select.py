"""`select` in a program: what it submits, what it records, how the branch goes on."""

import math

import pytest
from unit.frontend_dsl.fake_client import BOS, EOS, FakeClient, FakeModel

from umbel.frontend_dsl import ProgramError, State, gen, program, select
from umbel.frontend_dsl.scoring import METHODS
from umbel.runtime.errors import InvalidRequest

CHOICES = ["yes", "no", "maybe"]


def _pick(method: str, choices: list[str], **options: object):  # type: ignore[no-untyped-def]  # a program
    @program
    def pick(s: State) -> None:
        s += "Q: "
        s += select("pick", choices, method=method, **options)  # type: ignore[arg-type]  # of the test
        s += "." + gen("after", max_tokens=2)

    return pick


@pytest.mark.parametrize("method", METHODS)
def test_the_branch_goes_on_with_the_choices_own_tokens(method: str) -> None:
    with FakeClient() as client:
        state = _pick(method, ["yes", "no", "maybe"]).run(client)

    assert state["pick"] in ("yes", "no", "maybe")
    assert client.calls[-1].context == (BOS, *map(ord, f"Q: {state['pick']}."))
    meta = state.meta("pick")
    assert meta.method == method
    assert meta.token_ids == tuple(map(ord, state["pick"]))
    assert list(meta.distribution) == ["yes", "no", "maybe"]
    assert math.fsum(meta.distribution.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("method", METHODS)
def test_all_choices_are_scored_in_one_submission(method: str) -> None:
    with FakeClient() as client:
        _pick(method, ["yes", "no", "yes!"]).run(client)

    scoring = client.calls[:-1]
    assert {call.batch for call in scoring} == {1}
    expected = {"unconditional_normalized": 6, "constrained": 4}  # + 3 priors; + 1 end
    assert len(scoring) == expected.get(method, 3)


def test_the_choice_has_the_best_mean_log_probability() -> None:
    choices = ["alpha", "beta", "c"]
    context = [BOS, *map(ord, "Q: ")]
    means = {
        choice: sum(FakeModel().score(context, list(map(ord, choice)))) / len(choice)
        for choice in choices
    }

    with FakeClient() as client:
        state = _pick("token_length_normalized", choices).run(client)

    assert state["pick"] == max(means, key=means.__getitem__)
    assert state.meta("pick").scores == pytest.approx(means)


@pytest.mark.parametrize("has_bos", [True, False])
def test_the_unconditional_probability_starts_at_the_start_token(has_bos: bool) -> None:
    with FakeClient(bos=has_bos) as client:
        state = _pick("unconditional_normalized", ["ab", "c"]).run(client)

    start = [BOS] if has_bos else []
    model = FakeModel()
    context = [*start, *map(ord, "Q: ")]
    given_prompt = model.score(context, [97, 98])
    prior = model.score(start, [97, 98]) if has_bos else (0.0, *model.score([97], [98]))
    expected = sum(given_prompt) / 2 - sum(prior) / 2
    assert state.meta("pick").scores["ab"] == pytest.approx(expected)


def test_constrained_sampling_is_drawn_from_the_distribution_it_reports() -> None:
    @program
    def pick(s: State, seed: int) -> None:
        s += "Q: "
        s += select("pick", CHOICES, method="constrained", temperature=2.0, seed=seed)

    with FakeClient() as client:
        states = pick.run_batch(client, [{"seed": seed} for seed in range(400)])
        again = pick.run(client, seed=7)

    distribution = states[0].meta("pick").distribution
    for choice in CHOICES:
        share = sum(state["pick"] == choice for state in states) / 400
        assert share == pytest.approx(distribution[choice], abs=0.09)
    assert again["pick"] == states[7]["pick"]


def test_constrained_scores_the_end_of_a_choice_that_another_goes_on_from() -> None:
    with FakeClient() as client:
        state = _pick("constrained", ["yes", "yes!"]).run(client)

    (end,) = [call for call in client.calls if call.context[-3:] == tuple(map(ord, "yes"))][:1]
    after = [BOS, *map(ord, "Q: yes")]
    end_logprob, more = FakeModel().score(after, [EOS])[0], FakeModel().score(after, [33])[0]
    assert end.context == tuple(after)
    expected = math.exp(end_logprob) / (math.exp(end_logprob) + math.exp(more))
    assert state.meta("pick").distribution["yes"] == pytest.approx(expected)
    assert state["pick"] == ("yes" if end_logprob >= more else "yes!")


def test_the_usage_of_a_select_is_the_sum_over_its_choices() -> None:
    with FakeClient() as client:
        state = _pick("greedy_token", ["ab", "c"]).run(client)

    meta = state.meta("pick")
    assert meta.usage.num_prompt_tokens == 2 * len("^Q: ")
    assert meta.usage.num_output_tokens == 0
    assert meta.num_scored_tokens == len("ab") + len("c")
    assert meta.num_computed_tokens == 2 * 4 + 3


def test_a_choice_that_is_no_token_at_all_is_refused() -> None:
    class Mute(FakeModel):
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            return [] if text == "​" else super().encode(text, special=special)

    with (
        FakeClient(model=Mute()) as client,
        pytest.raises(ProgramError, match="same tokens") as info,
    ):
        _pick("greedy_token", ["a", "​"]).run(client)

    assert isinstance(info.value.cause, InvalidRequest)


def test_one_failing_score_fails_the_select_and_cancels_the_others() -> None:
    fails_after_q = FakeModel(fails=lambda context: len(context) == 1)

    with FakeClient(model=fails_after_q) as client:
        with pytest.raises(ProgramError, match=r"select\('pick'\)"):
            _pick("unconditional_normalized", ["ab", "cd", "ef"]).run(client)
        calls = list(client.calls)

    assert len(calls) == 6
    assert all(call.is_ended or call.is_cancelled for call in calls)
