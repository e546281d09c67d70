"""Tokenizers of Hugging Face folders: tokenizer.json and the small files beside it.

Called by `tokenizer.load_tokenizer`. The idea: both kinds of model files are reduced to one record,
`TokenizerData`, with two backends, one that recognizes special tokens and one that never does.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tokenizers

from umbel.runtime.errors import ModelError

# Special tokens that end a turn. One of them ends generation when the model's chat template writes
# it, even if the metadata names another end only (the first Llama 3 files, many converted files).
TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
)
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")

# How the strings of a vocabulary spell bytes: GPT-2's 256 printable characters, or text with a
# visible space and <0xNN> for single bytes.
Spelling = Literal["byte_level", "visible_space"]


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """What a tokenizer is made of, whichever files it came from."""

    plain: tokenizers.Tokenizer  # the text of a special token is ordinary text
    marked: tokenizers.Tokenizer  # the text of a special token is that token
    spelling: Spelling
    eos_ids: frozenset[int]
    bos_id: int | None
    starts_with_bos: bool
    chat_template: str | None
    special_names: dict[str, str] = field(default_factory=dict)  # "bos_token" -> its text, ...


def read_folder(folder: Path) -> TokenizerData:
    """The tokenizer of a folder with tokenizer.json; the files beside it may be missing.

    Raises `ModelError` naming the file when it is missing, malformed or of an unsupported kind.
    """
    path = folder / "tokenizer.json"
    definition = _read_json(path)
    if not definition:
        raise ModelError(
            f"{folder} has no usable tokenizer.json; it is needed (a tokenizer.model or vocab.json "
            f"alone is not read: save the tokenizer in the fast format)"
        )
    spelling = _check_definition(definition, path)
    config = _read_json(folder / "tokenizer_config.json")
    names = _special_names(config, _read_json(folder / "special_tokens_map.json"))
    plain, marked = _backends(definition, path, names)
    bos_id = marked.token_to_id(names["bos_token"]) if "bos_token" in names else None
    template = _chat_template(folder, config)
    return TokenizerData(
        plain=plain,
        marked=marked,
        spelling=spelling,
        eos_ids=_eos_ids(folder, names, template, marked),
        bos_id=bos_id,
        starts_with_bos=_starts_with_bos(config, marked, bos_id),
        chat_template=template,
        special_names=names,
    )


def turn_end_ids(template: str | None, backend: tokenizers.Tokenizer) -> set[int]:
    """Ids of the special tokens with which `template` ends a turn."""
    found = (backend.token_to_id(text) for text in TURN_ENDS if template and text in template)
    specials = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    return {token_id for token_id in found if token_id in specials}


def _read_json(path: Path) -> dict[str, Any]:
    """The object in the file, {} when there is no file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read as JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not valid: expected a JSON object, got {type(value).__name__}")
    return value


def _check_definition(definition: dict[str, Any], path: Path) -> Spelling:
    """Refuse what is not understood, and remove what would make encoding inexact (see below)."""
    model = definition.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise ModelError(
            f"{path} has a tokenizer of type {kind!r}, which is not supported; supported is BPE "
            f"(byte-level, or with <0xNN> byte fallback)"
        )
    definition["truncation"] = definition["padding"] = None
    nodes = [*_nodes(definition.get("pre_tokenizer")), *_nodes(definition.get("decoder"))]
    if any(node.get("type") == "ByteLevel" for node in nodes):
        spelling: Spelling = "byte_level"
    elif model.get("byte_fallback"):
        spelling = "visible_space"
    else:
        raise ModelError(
            f"{path} has a BPE tokenizer that is neither byte-level nor has byte fallback, so it "
            f"cannot spell every text; such a tokenizer is not supported"
        )
    for name in ("normalizer", "pre_tokenizer"):
        definition[name] = _without_dummy_prefix(definition.get(name))
    return spelling


def _nodes(node: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, sequences flattened."""
    if not isinstance(node, dict):
        return []
    inner = node.get("pretokenizers") or node.get("normalizers") or node.get("decoders")
    if node.get("type") != "Sequence" or not isinstance(inner, list):
        return [node]
    return [step for child in inner for step in _nodes(child)]


def _without_dummy_prefix(node: Any) -> Any:
    """The same steps without the space that some tokenizers put before every text.

    Text is appended piece by piece to a sequence, so `encode` must be exact: the pieces' tokens
    spell the pieces' text and nothing else.
    """
    if not isinstance(node, dict):
        return node
    for key in ("pretokenizers", "normalizers"):
        if isinstance(node.get(key), list):
            kept = [_without_dummy_prefix(child) for child in node[key]]
            return {**node, key: [child for child in kept if child is not None]}
    if node.get("type") == "Prepend":
        return None
    if node.get("type") == "Metaspace":
        others = {key: value for key, value in node.items() if key != "add_prefix_space"}
        return {**others, "prepend_scheme": "never"}
    if node.get("type") == "ByteLevel":
        return {**node, "add_prefix_space": False}
    return node


def _special_names(config: dict[str, Any], special_map: dict[str, Any]) -> dict[str, str]:
    names = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name) or special_map.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            names[name] = text
    return names


def _backends(
    definition: dict[str, Any], path: Path, names: Mapping[str, str]
) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    """(plain, marked). Two instances, because the switch between them is state of the instance."""
    text = json.dumps(definition)
    pair = []
    for is_plain in (True, False):
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as exc:  # the library raises bare Exception
            raise ModelError(f"{path} is not a valid tokenizer: {exc}") from exc
        known = [name for name in names.values() if backend.token_to_id(name) is not None]
        backend.add_special_tokens(
            [tokenizers.AddedToken(name, normalized=False, special=True) for name in known]
        )
        backend.encode_special_tokens = is_plain
        pair.append(backend)
    return pair[0], pair[1]


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, or the entry of tokenizer_config.json ("default", if it has several)."""
    path = folder / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read: {exc}") from exc
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {e.get("name"): e.get("template") for e in value if isinstance(e, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _eos_ids(
    folder: Path, names: Mapping[str, str], template: str | None, marked: tokenizers.Tokenizer
) -> frozenset[int]:
    """All tokens that end generation: the generation config's (else the model config's), the
    tokenizer's own, and those with which the chat template ends a turn."""
    ids: set[int] = turn_end_ids(template, marked)
    for file in ("generation_config.json", "config.json"):
        value = _read_json(folder / file).get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        found = {v for v in values if isinstance(v, int) and not isinstance(v, bool)}
        if found:
            ids |= found
            break
    own = marked.token_to_id(names["eos_token"]) if "eos_token" in names else None
    return frozenset(ids if own is None else ids | {own})


def _starts_with_bos(
    config: dict[str, Any], marked: tokenizers.Tokenizer, bos_id: int | None
) -> bool:
    if bos_id is None:
        return False
    stated = config.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    return marked.encode("a").ids[:1] == [bos_id]  # what the file's own post-processor does
