"""Tool calls in the formats of the common models, with and without special tokens."""

from typing import Any

import pytest
from unit.grammar.oracles import byte_vocabulary, mask_ids, matches

from umbel.grammar import GrammarError, Vocabulary, compile_tool_calls
from umbel.grammar.cfg.tools import tool_formats

ONE_NUMBER = {
    "type": "object",
    "properties": {"n": {"enum": [1]}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "add", "parameters": ONE_NUMBER},
    {"type": "function", "function": {"name": "stop", "description": "End it."}},
]

# Calls of both tools as the models' templates write them (special tokens as their text).
BOTH = {
    "llama3_function_tag": '<function=add>{"n": 1}</function><function=stop>{}</function>',
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"n": 1}}, '
    '{"name": "stop", "arguments": {}}]',
    "mistral_args": '[TOOL_CALLS]add[ARGS]{"n": 1}[TOOL_CALLS]stop[ARGS]{}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    '{"n": 1}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v3_1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
    '{"n": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>",
}
ONE = {
    "llama3_json": '{"name": "add", "parameters": {"n": 1}}',
    "llama3_python_tag": '<|python_tag|>{"name": "add", "parameters": {"n": 1}}',
    "llama3_function_tag": '<function=add>{"n": 1}</function>',
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>',
    "qwen": '<tool_call>\n{"name": "add", "arguments": {"n": 1}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"n": 1}}]',
    "mistral_args": '[TOOL_CALLS]add[ARGS]{"n": 1}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    '{"n": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v3_1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
    '{"n": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "harmony": '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"n": 1}',
}


def test_every_format_has_an_example_here() -> None:
    assert set(ONE) == set(tool_formats())


@pytest.mark.parametrize("name", sorted(ONE))
def test_a_call_is_accepted_and_its_arguments_are_checked(name: str) -> None:
    call = ONE[name]
    for choice in ("auto", "required", "add"):
        constraint = compile_tool_calls(TOOLS, name, byte_vocabulary(), choice=choice)
        assert matches(constraint, call), choice
        assert not matches(constraint, call.replace("1", "2")), choice
        assert not matches(constraint, call.replace("add", "sub")), choice


@pytest.mark.parametrize("name", sorted(BOTH))
def test_parallel_calls_can_be_allowed_and_not(name: str) -> None:
    several = compile_tool_calls(TOOLS, name, byte_vocabulary())
    single = compile_tool_calls(TOOLS, name, byte_vocabulary(), parallel=False)

    assert matches(several, BOTH[name])
    assert not matches(single, BOTH[name])


@pytest.mark.parametrize("name", sorted(set(ONE) - {"harmony"}))
def test_choices_decide_about_text(name: str) -> None:
    call = ONE[name]
    text = "Let me see. "

    assert matches(compile_tool_calls(TOOLS, name, byte_vocabulary()), text + call)
    assert matches(compile_tool_calls(TOOLS, name, byte_vocabulary()), text)
    required = compile_tool_calls(TOOLS, name, byte_vocabulary(), choice="required")
    assert not matches(required, text)
    none = compile_tool_calls(TOOLS, name, byte_vocabulary(), choice="none")
    assert matches(none, text)
    assert not matches(none, text + call)


def test_a_named_tool_excludes_the_others() -> None:
    constraint = compile_tool_calls(TOOLS, "hermes", byte_vocabulary(), choice="stop")

    assert matches(constraint, '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>')
    assert not matches(constraint, ONE["hermes"])


def test_harmony_reasons_first_and_then_answers_or_calls() -> None:
    thought = "<|channel|>analysis<|message|>Hm, <|end.<|end|><|start|>assistant"
    answer = "<|channel|>final<|message|>Done."
    call = ONE["harmony"]
    auto = compile_tool_calls(TOOLS, "harmony", byte_vocabulary())

    assert all(matches(auto, text) for text in (answer, thought + answer, thought + call))
    assert not matches(auto, thought)
    required = compile_tool_calls(TOOLS, "harmony", byte_vocabulary(), choice="required")
    assert matches(required, thought + thought + call)
    assert not matches(required, answer)
    none = compile_tool_calls(TOOLS, "harmony", byte_vocabulary(), choice="none")
    assert matches(none, thought + answer)
    assert not matches(none, call)


def test_special_tokens_stand_for_their_names_where_the_model_has_them() -> None:
    texts: list[bytes | None] = [bytes([value]) for value in range(256)]
    names = {"[TOOL_CALLS]": 257, "[ARGS]": 258}
    vocabulary = Vocabulary([*texts, None, None, None], [256], size=260, special_ids=names)
    constraint = compile_tool_calls(TOOLS, "mistral_args", vocabulary)
    matcher = constraint.start()

    for token in (*b"Hi [TOOL_CALLS]!", 257, *b"add", 258, *b'{"n"'):
        assert matcher.advance(token), token
    none = compile_tool_calls(TOOLS, "mistral_args", vocabulary, choice="none").start()
    assert 257 not in mask_ids(none, vocabulary)


REFUSED: list[tuple[list[Any], str, str, str]] = [
    (TOOLS, "gpt2", "auto", "unknown tool format"),
    (TOOLS, "hermes", "sub", "neither auto"),
    ([], "hermes", "required", "there are no tools"),
    ([{"parameters": {}}], "hermes", "auto", "a tool is"),
    ([TOOLS[0], TOOLS[0]], "hermes", "auto", "two tools are named"),
    ([{"name": "f", "parameters": {"type": "x"}}], "hermes", "auto", "tool 'f'"),
]


@pytest.mark.parametrize(("tools", "name", "choice", "part"), REFUSED)
def test_wrong_tools_are_refused(tools: list[Any], name: str, choice: str, part: str) -> None:
    with pytest.raises(GrammarError, match=part):
        compile_tool_calls(tools, name, byte_vocabulary(), choice=choice)


def test_without_tools_there_is_only_text() -> None:
    constraint = compile_tool_calls([], "hermes", byte_vocabulary())

    assert matches(constraint, "hello")
    assert not matches(constraint, "<tool_call>")
