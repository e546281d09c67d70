"""`/v1/completions` over a scripted model."""

from typing import Any

import pytest
from unit.server.scripted_engine import CONTEXT_LEN, EOS_ID, server

COMPLETIONS = "/v1/completions"


def test_each_form_of_a_prompt_is_taken() -> None:
    with server() as made:
        made.script(lambda prompt: prompt.upper())
        answers = [
            made.post(COMPLETIONS, {"prompt": prompt})
            for prompt in ("ab", ["ab", "cd"], [98, 99], [[98, 99], [100]])
        ]

    texts = [[choice["text"] for choice in answer.json["choices"]] for answer in answers]
    assert texts == [["AB"], ["AB", "CD"], ["AB"], ["AB", "C"]]


@pytest.mark.parametrize("prompt", ["", [], [1, "a"], ["a", [1]], [[]], [9999], None, 3])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with server() as made:
        answer = made.post(COMPLETIONS, {"prompt": prompt})

    assert answer.status == 400
    assert answer.error["param"] == "prompt"


def test_the_sequences_of_several_prompts_are_numbered_prompt_by_prompt() -> None:
    with server() as made:
        made.script(lambda prompt: prompt)
        answer = made.post(COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "best_of": 2})

    texts = [choice["text"] for choice in answer.json["choices"]]
    assert texts == ["a", "a", "b", "b"]
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2, 3]
    assert answer.json["usage"]["prompt_tokens"] == 2
    assert answer.json["usage"]["completion_tokens"] == 8


def test_sixteen_tokens_are_generated_when_nothing_is_said() -> None:
    with server() as made:
        made.script("x" * 40)
        answer = made.post(COMPLETIONS, {"prompt": "a"})

    assert answer.json["choices"][0]["text"] == "x" * 16
    assert answer.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_with_logprobs_scores_the_prompt(stream: bool) -> None:
    body = {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 3, "stream": stream}
    with server() as made:
        made.script("cd")
        answer = made.post(COMPLETIONS, body)

    chunks = answer.chunks if stream else [answer.json]
    choice = chunks[0]["choices"][0]
    assert choice["text"] == "abcd"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", "d"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert choice["logprobs"]["top_logprobs"][2]["c"] == -0.25
    assert choice["finish_reason"] == "stop"


def test_no_tokens_and_an_echo_only_score_the_prompt() -> None:
    with server() as made:
        answer = made.post(
            COMPLETIONS, {"prompt": "abc", "echo": True, "logprobs": 0, "max_tokens": 0}
        )

    choice = answer.json["choices"][0]
    assert choice["text"] == "abc"
    assert len(choice["logprobs"]["tokens"]) == 3
    assert choice["logprobs"]["top_logprobs"] == [None, None, None]
    assert answer.json["usage"]["completion_tokens"] == 0


def test_a_stream_adds_up_to_the_whole_answer() -> None:
    body = {"prompt": ["ab", "cd"], "n": 2, "logprobs": 2, "echo": False}
    with server() as made:
        made.script(lambda prompt: f"{prompt} é")
        whole = made.post(COMPLETIONS, body).json["choices"]
        chunks = made.post(COMPLETIONS, {**body, "stream": True}).chunks

    added: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        grown = added.setdefault(
            choice["index"], {"text": "", "tokens": [], "offsets": [], "finish": None}
        )
        grown["text"] += choice["text"]
        grown["tokens"] += choice["logprobs"]["tokens"]
        grown["offsets"] += choice["logprobs"]["text_offset"]
        grown["finish"] = choice["finish_reason"] or grown["finish"]
    assert [added[index] for index in range(4)] == [
        {
            "text": choice["text"],
            "tokens": choice["logprobs"]["tokens"],
            "offsets": choice["logprobs"]["text_offset"],
            "finish": choice["finish_reason"],
        }
        for choice in whole
    ]


def test_options_reach_the_sampler() -> None:
    body = {
        "prompt": "a", "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": -1,
        "min_p": 0.1, "seed": -1, "logit_bias": {"98": 5}, "presence_penalty": 0.5,
        "frequency_penalty": -0.5, "repetition_penalty": 1.1, "stop": ["x", "y"],
        "stop_token_ids": [7], "ignore_eos": True, "min_tokens": 1,
        "speculate": "off",
    }  # fmt: skip
    with server() as made:
        answer = made.post(COMPLETIONS, body)
        params = made.sampler.rows[0].params

    assert answer.status == 200
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 0, 0.1)
    assert params.seed == 2**63 - 1
    assert params.logit_bias == {98: 5}
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert params.repetition_penalty == 1.1
    assert (params.stop, params.stop_token_ids) == (("x", "y"), (7,))
    assert (params.ignore_eos, params.min_tokens, params.speculate) == (True, 1, "off")


def test_a_constrained_completion_follows_its_regex() -> None:
    with server() as made:
        made.script("no")
        answer = made.post(COMPLETIONS, {"prompt": "a", "regex": "[0-9]+x"})

    assert answer.json["choices"][0]["text"].endswith("x")


@pytest.mark.parametrize(
    "changes", [{"suffix": "s"}, {"best_of": 3}, {"echo": "yes"}, {"speculate": "yes"}]
)
def test_what_is_not_supported_is_refused(changes: dict[str, Any]) -> None:
    with server() as made:
        answer = made.post(COMPLETIONS, {"prompt": "a", **changes})

    assert answer.status == 400
    assert answer.error["param"] == next(iter(changes))


def test_too_many_prompts_are_refused() -> None:
    with server() as made:
        answer = made.post(COMPLETIONS, {"prompt": ["a"] * 1025})

    assert answer.error["param"] == "prompt"


def test_the_end_token_is_no_token_of_the_logprobs() -> None:
    with server() as made:
        made.script("a")
        answer = made.post(COMPLETIONS, {"prompt": "x", "logprobs": 0})

    assert answer.json["choices"][0]["logprobs"]["tokens"] == ["a"]
    assert answer.json["usage"]["completion_tokens"] == 2
    assert EOS_ID == 0


def test_the_default_of_max_tokens_is_clipped_to_the_context_and_a_given_one_refused() -> None:
    prompt = "x" * (CONTEXT_LEN - 5)
    with server() as rig:
        rig.script("y" * 50)
        default = rig.post(COMPLETIONS, {"prompt": prompt})
        given = rig.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 16})
        full = rig.post(COMPLETIONS, {"prompt": "x" * CONTEXT_LEN})

    assert default.json["choices"][0]["text"] == "y" * 5
    assert default.json["choices"][0]["finish_reason"] == "length"
    assert given.error["code"] == full.error["code"] == "context_length_exceeded"
