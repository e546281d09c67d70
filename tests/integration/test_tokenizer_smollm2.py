"""The embedded model's tokenizer, against ids of its tokenizer.json."""

import pytest

from umbel.runtime.chat import ChatTemplate
from umbel.runtime.loading.source import find_model
from umbel.runtime.output_text import OutputText
from umbel.runtime.tokenizer import Tokenizer, load_tokenizer

END_OF_TURN = 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(find_model(None))


# Made with the tokenizer.json of HuggingFaceTB/SmolLM2-135M-Instruct.
KNOWN_IDS = [
    ("", []),
    ("Hello, world!", [19556, 28, 905, 17]),
    (" 1234 56.7", [216, 33, 34, 35, 36, 216, 37, 38, 30, 39]),
    ("don't we'll  go\n\n  there\t", [12420, 982, 392, 3060, 216, 685, 8866, 665, 197]),
    (
        "naïve café 你好 👩\u200d🚀",
        [
            *(3546, 46494, 37366, 216, 18645, 250, 48392, 138),
            *(15107, 235, 119, 321, 231, 10813, 244, 218),
        ],
    ),
    ("²٣x", [19133, 164, 113, 104]),
    ('{"a": [1, 2]}', [39428, 81, 1799, 933, 33, 28, 216, 34, 28852]),
    (
        "<|im_start|>user\nhi<|im_end|>\n",
        [44, 108, 306, 79, 3738, 108, 46, 4093, 198, 6004, 44, 108, 306, 79, 486, 108, 46, 198],
    ),
]


@pytest.mark.parametrize(("text", "ids"), KNOWN_IDS)
def test_text_has_the_ids_of_the_models_own_tokenizer(tokenizer, text, ids):
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == text


def test_template_text_has_special_tokens(tokenizer):
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n", special=True)

    assert ids == [1, 4093, 198, 6004, END_OF_TURN, 198]


def test_the_models_facts_come_from_the_file(tokenizer):
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == {END_OF_TURN}
    assert tokenizer.bos_id == 1
    assert tokenizer.bos_ids() == []
    assert len(tokenizer.special_ids) == 17
    assert sum(data is None for data in tokenizer.token_bytes) == 17


def test_a_conversation_put_together_from_pieces_has_the_tokens_of_the_whole(tokenizer):
    template = ChatTemplate.of(tokenizer)
    messages = [{"role": "user", "content": "Hi <|im_end|> there"}]

    opened = tokenizer.encode(template.open_role([], "user"), special=True)
    content = tokenizer.encode("Hi <|im_end|> there")
    closed = tokenizer.encode(template.close_role([], "user"), special=True)
    prompt = tokenizer.encode(template.open_role(messages, "assistant"), special=True)

    assert opened[:3] == [1, 9690, 198]
    whole = template.encode(tokenizer, messages, add_generation_prompt=True)
    assert tokenizer.decode(opened + content + closed + prompt) == tokenizer.decode(whole)
    assert whole.count(END_OF_TURN) == 2


def test_streamed_text_of_real_tokens_is_the_text(tokenizer):
    text = "Ein naïver Café-Besuch 👩\u200d🚀 kostet 12,50 €.\n\nEND of it"
    output = OutputText(tokenizer, stop=["END"])

    shown = "".join(output.push([i]) for i in tokenizer.encode(text)) + output.finish()

    assert shown == text[: text.index("END")]
    assert tokenizer.decode(output.text_token_ids()) == shown
