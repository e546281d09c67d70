import json
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.loading.source import ModelSource
from umbel.runtime.tokenizer import Tokenizer, load_tokenizer
from umbel.runtime.tokenizer_gguf import PRE_TOKENIZERS, read_gguf

# GPT-2's visible characters for the bytes 0..255, written out independently of the code.
VISIBLE = [chr(b) for b in range(256) if chr(b).isprintable() and not chr(b).isspace()]
SHIFTED = [b for b in range(256) if chr(b) not in VISIBLE]
BYTE_CHARS = [chr(b) if chr(b) in VISIBLE else chr(256 + SHIFTED.index(b)) for b in range(256)]
MERGES = ["h i", "Ġ hi", "1 2", "< |"]
GGUF_TOKENS = [*BYTE_CHARS, "hi", "Ġhi", "12", "<|", "<|end|>", "<|bos|>", "<think>", "<|eot_id|>"]
HI, SPACE_HI, TWELVE, END, BOS, THINK, EOT = 256, 257, 258, 260, 261, 262, 263


def metadata(**changes: Any) -> dict[str, Any]:
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": GGUF_TOKENS,
        "token_type": [1] * 260 + [3, 3, 4, 3],
        "merges": MERGES,
        "eos_token_id": END,
        "bos_token_id": BOS,
    }
    fields.update(changes)
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


def gguf(**changes: Any) -> Tokenizer:
    return Tokenizer(read_gguf(metadata(**changes), Path("tiny.gguf")))


def added(token_id: int, text: str, *, special: bool = True) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": text, "special": special, **flags}


def byte_level_json(**changes: Any) -> dict[str, Any]:
    vocab = {token: token_id for token_id, token in enumerate(GGUF_TOKENS[:260])}
    specials = [added(260, "<|end|>"), added(261, "<|bos|>"), added(262, "<think>", special=False)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": MERGES,
        },
        **changes,
    }


def sentencepiece_json() -> dict[str, Any]:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a"]
    vocab = {token: token_id for token_id, token in enumerate(words)}
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}}]
    steps[1]["content"] = "▁"
    definition = byte_level_json(
        added_tokens=[added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        normalizer={"type": "Sequence", "normalizers": steps},
        pre_tokenizer=None,
        decoder={"type": "ByteFallback"},
    )
    definition["model"].update(
        vocab=vocab, merges=["▁ a"], byte_fallback=True, unk_token="<unk>", fuse_unk=True
    )
    return definition


def folder(path: Path, definition: Any, **files: Any) -> Tokenizer:
    (path / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return load_tokenizer(ModelSource("tiny", path, "safetensors"))


@pytest.mark.parametrize(
    "text",
    ["", "a", " hi hi", "naïve 你好 👩‍🚀", "e\u0301", "\x00\x7f\u2028", "<|end|>", "<think>x"],
)
def test_decoding_what_was_encoded_gives_the_text(text):
    tokenizer = gguf()

    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert b"".join(tokenizer.token_bytes[i] for i in tokenizer.encode(text)) == text.encode()


@given(text=st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_encoding_is_exact_for_any_text(text):
    ids = TINY.encode(text)

    assert TINY.decode(ids) == text
    assert END not in ids


TINY = gguf()


def test_special_text_becomes_a_special_token_only_when_asked_for():
    tokenizer = gguf()

    assert tokenizer.encode("hi<|end|>", special=True) == [HI, END]
    assert END not in tokenizer.encode("hi<|end|>")
    assert tokenizer.special_ids == {"<|end|>": END, "<|bos|>": BOS, "<|eot_id|>": EOT}


def test_added_text_tokens_are_tokens_in_ordinary_text_too():
    tokenizer = gguf()

    assert tokenizer.encode("<think>hi") == [THINK, HI]
    assert tokenizer.token_bytes[THINK] == b"<think>"


@pytest.mark.parametrize(("special", "text"), [("<>", "<>"), ("Ġ<>", " <>")])
def test_a_special_token_that_the_model_could_build_is_spelled_out(special, text):
    tokenizer = gguf(
        pre="llama-bpe",  # takes a whole piece as a token, if it is one
        tokens=[*BYTE_CHARS, special],
        token_type=[1] * 256 + [3],
        merges=[],
        eos_token_id=256,
        bos_token_id=None,
    )

    assert tokenizer.encode(special, special=True) == [256]
    assert tokenizer.encode(text) == list(text.encode())


def test_a_special_token_has_no_bytes_and_shows_only_on_request():
    tokenizer = gguf()

    assert tokenizer.token_bytes[END] is None
    assert tokenizer.decode([HI, END]) == "hi"
    assert tokenizer.decode([HI, END], skip_special=False) == "hi<|end|>"
    assert tokenizer.decode([HI, 99_999]) == "hi"


def test_vocab_size_counts_special_ids_and_holes(tmp_path):
    definition = byte_level_json()
    definition["model"]["vocab"]["zz"] = 299

    tokenizer = folder(tmp_path, definition)

    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == 300
    assert tokenizer.token_bytes[270] is None
    assert tokenizer.token_bytes[299] == b"zz"


def test_bytes_that_are_no_utf8_decode_to_replacement_characters():
    assert gguf().decode([0xF0, 0x9F, HI]) == "\ufffdhi"


def test_lone_surrogates_are_refused():
    with pytest.raises(InvalidRequest, match="surrogate"):
        gguf().encode("a\ud800")


def test_spelling_keeps_the_bytes_where_encoding_normalizes():
    tokenizer = gguf(pre="qwen2")
    text = "e\u0301 hi"

    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.spell(text)) == text
    assert tokenizer.spell(text)[-1] == SPACE_HI


def test_threads_share_a_tokenizer():
    tokenizer = gguf()
    texts = [f"hi {i} <|end|>" for i in range(200)]

    with ThreadPoolExecutor(4) as pool:
        plain = list(pool.map(tokenizer.encode, texts))
        marked = list(pool.map(lambda text: tokenizer.encode(text, special=True), texts))

    assert all(END not in ids for ids in plain)
    assert all(ids[-1] == END for ids in marked)


def merging_everything(text: str) -> dict[str, Any]:
    """Metadata whose merges join any two neighbours within `text`: what stays apart was split."""
    chars = "".join(BYTE_CHARS[b] for b in text.encode())
    spans = [(a, b) for a in range(len(chars)) for b in range(a + 2, len(chars) + 1)]
    spans.sort(key=lambda span: span[1] - span[0])
    merges = [f"{chars[a:m]} {chars[m:b]}" for a, b in spans for m in range(a + 1, b)]
    tokens = list(dict.fromkeys([*BYTE_CHARS, *(chars[a:b] for a, b in spans)]))
    return {
        "tokens": tokens,
        "token_type": [1] * len(tokens),
        "merges": list(dict.fromkeys(merges)),
        "eos_token_id": 0,
        "bos_token_id": None,
    }


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["don", "'t", " 1234", " X", "'", "S", ".", "\n\n", " y"]),
        ("smollm", ["don", "'t", " ", "1", "2", "3", "4", " X", "'", "S", ".", "\n\n", " y"]),
        ("default", ["don", "'", "t", " ", "123", "4", " X", "'", "S", ".", "\n\n", " y"]),
        ("llama-bpe", ["don", "'t", " ", "123", "4", " X", "'S", ".\n\n", " y"]),
        ("qwen2", ["don", "'t", " ", "1", "2", "3", "4", " X", "'S", ".\n\n", " y"]),
        ("tekken", ["don", "'t", " ", "1", "2", "3", "4", " X", "'S", ".\n\n", " y"]),
        ("gpt-4o", ["don't", " ", "123", "4", " X'S", ".\n\n", " y"]),
        ("deepseek-v3", ["don", "'t", " ", "123", "4", " X", "'S", ".\n\n", " y"]),
    ],
)
def test_a_pre_tokenizer_splits_as_its_models_do(pre, pieces):
    text = "don't 1234 X'S.\n\n y"
    tokenizer = gguf(pre=pre, **merging_everything(text))

    assert [tokenizer.decode([i]) for i in tokenizer.encode(text)] == pieces


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_spells_text_exactly(pre):
    text = "Don't PANIC: x1=12345, 你好！ café/été\r\n\n  end "

    assert gguf(pre=pre).decode(gguf(pre=pre).encode(text)) == text


def test_gguf_end_tokens_are_those_of_the_metadata_and_of_the_template():
    data = metadata()
    assert gguf().eos_ids == {END}
    assert gguf(eot_token_id=BOS).eos_ids == {END, BOS}

    data["tokenizer.chat_template"] = "{{ '<|eot_id|>' }}"
    tokenizer = Tokenizer(read_gguf(data, Path("tiny.gguf")))

    assert tokenizer.eos_ids == {END, EOT}
    assert tokenizer.chat_template == "{{ '<|eot_id|>' }}"


def test_gguf_sequences_start_with_bos_when_the_file_or_the_pre_tokenizer_says_so():
    assert gguf().bos_ids() == []
    assert gguf(add_bos_token=True).bos_ids() == [BOS]
    assert gguf(pre="llama-bpe").bos_ids() == [BOS]
    assert gguf(pre="llama-bpe", add_bos_token=False).bos_ids() == []
    assert gguf(pre="llama-bpe", bos_token_id=None).bos_ids() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "llama"}, "'llama', which is not supported"),
        ({"model": "bert"}, "'bert', which is not supported"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"pre": "mystery"}, "'mystery', which is not known"),
        ({"pre": None}, "does not name its pre-tokenizer"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens"),
        ({"token_type": [1]}, "one type for each of the 264 tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": ["q nothing"]}, "tokenizer.ggml.merges"),
        ({"eos_token_id": 999}, "tokenizer.ggml.eos_token_id"),
        ({"eos_token_id": "x"}, "tokenizer.ggml.eos_token_id"),
    ],
)
def test_unusable_gguf_metadata_is_refused_by_name(changes, message):
    with pytest.raises(ModelError, match=message):
        gguf(**changes)


def test_a_folder_gives_the_same_tokens_as_a_gguf_file(tmp_path):
    tokenizer = folder(tmp_path, byte_level_json(), tokenizer_config={"eos_token": "<|end|>"})

    for text in ("hi hi 12 <|end|>", " hi<think>", "你好"):
        assert tokenizer.encode(text) == gguf().encode(text)
        assert tokenizer.encode(text, special=True) == gguf().encode(text, special=True)
    assert tokenizer.token_bytes == gguf().token_bytes[:263]


def test_end_tokens_of_a_folder_come_from_all_its_files(tmp_path):
    tokenizer = folder(
        tmp_path,
        byte_level_json(),
        generation_config={"eos_token_id": [5, 6]},
        config={"eos_token_id": 7},
        tokenizer_config={"eos_token": {"content": "<|end|>"}},
    )

    assert tokenizer.eos_ids == {5, 6, END}


def test_the_model_config_names_the_end_when_there_is_no_generation_config(tmp_path):
    assert folder(tmp_path, byte_level_json(), config={"eos_token_id": 7}).eos_ids == {7}


def test_an_end_token_outside_the_vocabulary_is_refused(tmp_path):
    with pytest.raises(ModelError, match="end token 5000"):
        folder(tmp_path, byte_level_json(), generation_config={"eos_token_id": 5000})


def test_bos_of_a_folder_follows_the_config_else_the_post_processor(tmp_path):
    pieces = [
        {"SpecialToken": {"id": "<|bos|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    adds_bos = byte_level_json(
        post_processor={
            "type": "TemplateProcessing",
            "single": pieces,
            "pair": pieces,
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [BOS], "tokens": ["<|bos|>"]}},
        }
    )
    names = {"bos_token": "<|bos|>"}

    assert folder(tmp_path, adds_bos, tokenizer_config=names).bos_ids() == [BOS]
    assert folder(tmp_path, adds_bos, tokenizer_config=names).encode("hi") == [HI]
    stated = {**names, "add_bos_token": False}
    assert folder(tmp_path, adds_bos, tokenizer_config=stated).bos_ids() == []
    assert folder(tmp_path, byte_level_json(), tokenizer_config=names).bos_ids() == []


def test_the_chat_template_file_goes_before_the_config(tmp_path):
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    config = {"chat_template": templates}

    assert folder(tmp_path, byte_level_json(), tokenizer_config=config).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert folder(tmp_path, byte_level_json(), tokenizer_config=config).chat_template == "J"


def test_a_sentencepiece_style_tokenizer_is_exact_about_spaces_and_bytes(tmp_path):
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = folder(tmp_path, sentencepiece_json(), tokenizer_config=names)

    assert [tokenizer.token_bytes[i] for i in (1, 3, 3 + 0xE9, 259, 262)] == [
        None,
        b"\x00",
        b"\xe9",
        b" ",
        b" a",
    ]
    assert tokenizer.encode("a a") == [260, 262]
    for text in ("a", " a", "  ba é 😀 ▁"[:-1], "</s>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("a</s>", special=True) == [260, 2]


def test_a_missing_tokenizer_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"no usable tokenizer\.json"):
        load_tokenizer(ModelSource("tiny", tmp_path, "safetensors"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"model": {"type": "Unigram"}}', "type 'Unigram'"),
        ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "neither byte-level"),
        ('{"model": {"type": "BPE", "byte_fallback": true, "vocab": 3}}', "not a valid tokenizer"),
    ],
)
def test_a_malformed_tokenizer_file_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")

    with pytest.raises(ModelError, match=message) as caught:
        load_tokenizer(ModelSource("tiny", tmp_path, "safetensors"))
    assert "tokenizer.json" in str(caught.value)
