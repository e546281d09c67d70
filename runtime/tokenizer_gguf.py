"""Tokenizers of GGUF files: byte-level BPE rebuilt from the file's metadata.

Called by `tokenizer.load_tokenizer`. A GGUF file names its pre-tokenizer instead of describing it,
so `PRE_TOKENIZERS` holds the description of each known name, as the models' own tokenizer.json have
it (names: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from umbel.runtime.errors import ModelError
from umbel.runtime.tokenizer_files import TokenizerData, turn_end_ids

# Values of tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_DIGITS = "each digit by itself"  # not \p{N}: that is an older Unicode version in the regex engine
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CASED_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCTUATION}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_PUNCTUATION}|{_SPACES}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_PUNCTUATION}|{_SPACES}"
_GPT4O = (
    rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"|{_CASED_PUNCTUATION}|{_SPACES}"
)
_DEEPSEEK_V3_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    _DEEPSEEK_V3_WORDS,
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splits done one after the other, each keeping matches and gaps as pieces."""

    splits: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token is that token, whatever the merges say
    adds_bos: bool = False  # when the file does not say
    nfc: bool = False


_DIGIT_WISE_GPT2 = PreTokenizer((_DIGITS, _GPT2))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_LLAMA3_LIKE = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "smollm": _DIGIT_WISE_GPT2,
    "starcoder": _DIGIT_WISE_GPT2,
    "refact": _DIGIT_WISE_GPT2,
    "gpt-2": _PLAIN_GPT2,
    "gpt2": _PLAIN_GPT2,
    "phi-2": _PLAIN_GPT2,
    "olmo": _PLAIN_GPT2,
    "mpt": _PLAIN_GPT2,
    # What converters wrote before they knew the model; the split is that of llama.cpp.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "llama3": _LLAMA3_LIKE,
    "llama-v3": _LLAMA3_LIKE,
    "llama-bpe": _LLAMA3_LIKE,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,), nfc=True),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "deepseek-v3": PreTokenizer(_DEEPSEEK_V3),
}


def read_gguf(metadata: Mapping[str, Any], path: Path) -> TokenizerData:
    """The tokenizer that the metadata of a GGUF file describes; `path` is for messages.

    Raises `ModelError` for another kind than byte-level BPE, an unknown pre-tokenizer, and metadata
    that is missing or malformed.
    """
    fields = _Fields(metadata, path)
    model = fields.get("model", str)
    if model != "gpt2":
        raise ModelError(
            f"{path} has a tokenizer of the GGUF type {model!r}, which is not supported; supported "
            f"is 'gpt2' (byte-level BPE): use the model's safetensors folder with tokenizer.json"
        )
    pre = _pre_tokenizer(fields)
    tokens = fields.strings("tokens")
    types = fields.types("token_type", len(tokens))
    names = _special_names(fields, tokens)
    bpe = _bpe(fields, pre, tokens)
    # Two, because what differs is state of a tokenizer. The merges they share, as 49k tokens take
    # 9 MiB and some time.
    plain = _backend(bpe, pre, tokens, types, names)
    marked = _backend(bpe, pre, tokens, types, names)
    plain.encode_special_tokens = True
    template = metadata.get("tokenizer.chat_template")
    chat_template = template if isinstance(template, str) else None
    bos_id = fields.token_id("bos_token_id", len(tokens))
    stated = fields.optional("add_bos_token", bool)
    ends = [fields.token_id(f"{kind}_token_id", len(tokens)) for kind in ("eos", "eot", "eom")]
    return TokenizerData(
        plain=plain,
        marked=marked,
        spelling="byte_level",
        eos_ids=frozenset({i for i in ends if i is not None} | turn_end_ids(chat_template, marked)),
        bos_id=bos_id,
        starts_with_bos=bos_id is not None and (pre.adds_bos if stated is None else stated),
        chat_template=chat_template,
        special_names=names,
    )


def _pre_tokenizer(fields: "_Fields") -> PreTokenizer:
    name = fields.optional("pre", str)
    if name is None:
        raise ModelError(
            f"{fields.path} does not name its pre-tokenizer (tokenizer.ggml.pre), so text cannot "
            f"be split as the model expects; use a file made by a current converter"
        )
    if name not in PRE_TOKENIZERS:
        raise ModelError(
            f"{fields.path} uses the pre-tokenizer {name!r}, which is not known; known are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}: use the model's safetensors folder"
        )
    return PRE_TOKENIZERS[name]


def _special_names(fields: "_Fields", tokens: Sequence[str]) -> dict[str, str]:
    kinds = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found = {s: fields.token_id(f"{kind}_token_id", len(tokens)) for kind, s in kinds.items()}
    return {f"{short}_token": tokens[i] for short, i in found.items() if i is not None}


def _bpe(fields: "_Fields", pre: PreTokenizer, tokens: Sequence[str]) -> models.BPE:
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    merges = fields.merges()
    try:
        return models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges)
    except Exception as exc:  # the library raises bare Exception
        raise ModelError(f"{fields.path} has malformed tokenizer.ggml.merges: {exc}") from exc


def _backend(
    bpe: models.BPE,
    pre: PreTokenizer,
    tokens: Sequence[str],
    types: Sequence[int],
    names: Mapping[str, str],
) -> Tokenizer:
    backend = Tokenizer(bpe)
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = [*(_split(pattern) for pattern in pre.splits), byte_level]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    named = set(names.values())
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _UNKNOWN) or token in named:
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False, special=False)])
    return backend


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == _DIGITS:
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


class _Fields:
    """Checked access to the `tokenizer.ggml.*` metadata of one file."""

    def __init__(self, metadata: Mapping[str, Any], path: Path) -> None:
        self._metadata = metadata
        self.path = path

    def optional(self, name: str, kind: type) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is not None and not isinstance(value, kind):
            raise self._bad(name, f"a {kind.__name__}, got {type(value).__name__}")
        return value

    def get(self, name: str, kind: type) -> Any:
        value = self.optional(name, kind)
        if value is None:
            raise self._bad(name, f"a {kind.__name__}, but it is missing")
        return value

    def strings(self, name: str) -> list[str]:
        values = self._metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(values, Sequence) or not all(isinstance(v, str) for v in values):
            raise self._bad(name, "a list of strings")
        return list(values)

    def merges(self) -> list[tuple[str, str]]:
        parted = [merge.partition(" ") for merge in self.strings("merges")]
        return [(left, right) for left, _, right in parted]

    def types(self, name: str, count: int) -> list[int]:
        values = self._metadata.get(f"tokenizer.ggml.{name}")
        if values is None or len(values) != count:
            raise self._bad(name, f"one type for each of the {count} tokens")
        return [int(value) for value in values]

    def token_id(self, name: str, count: int) -> int | None:
        value = self.optional(name, int)
        if value is not None and not 0 <= value < count:
            raise self._bad(name, f"an id below {count}, got {value}")
        return None if value is None else int(value)

    def _bad(self, name: str, expected: str) -> ModelError:
        return ModelError(f"{self.path}: tokenizer.ggml.{name} is not valid: expected {expected}")
