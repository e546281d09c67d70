"""Fields that the bodies of generating requests have in common.

A field that is declared nowhere is refused by name: it might change the output. So each field is
either honoured, or listed in `HarmlessFields`.
"""

from typing import Any

import msgspec


class HarmlessFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Accepted and not looked at: none of them changes what is generated. The only such list."""

    metadata: Any = None
    prediction: Any = None  # a hint for speed
    prompt_cache_key: Any = None  # the cache finds prefixes by itself
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None  # nothing is ever stored
    user: Any = None
    guided_decoding_backend: Any = None  # vLLM: there is one backend
    spaces_between_special_tokens: Any = None  # vLLM: special tokens are never shown
    request_id: Any = None  # vLLM
    rid: Any = None  # SGLang


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`."""

    json: str | bool | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # lark, or GBNF/EBNF
    structural_tag: str | dict[str, Any] | None = None
    json_object: bool | None = None
    disable_fallback: Any = None  # there is no fallback
    disable_any_whitespace: Any = None  # there is at most one space anyway


class NamedSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    description: str | None = None
    schema: bool | dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of an output: "text", "json_object", "json_schema", or "structural_tag" (XGrammar's,
    with the other fields).
    """

    type: str
    json_schema: NamedSchema | None = None
    format: dict[str, Any] | None = None
    structures: list[Any] | None = None
    triggers: list[Any] | None = None


class GenerationFields(HarmlessFields, kw_only=True):
    """Sampling and constraints of `/v1/completions` and `/v1/chat/completions`."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: "StreamOptions | None" = None
    max_tokens: int | None = None

    # vLLM's and SGLang's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: str | None = None  # requests with different salts share no cached prefix
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | bool | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | bool | dict[str, Any] | None = None
    structural_tag: str | dict[str, Any] | None = None

    # Umbel's
    timeout_s: float | None = None  # the deadline of this request
    speculate: str | None = None  # "auto" or "off": changes speed only


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: Any = None  # nothing is obfuscated


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int = 0


class UsageBody(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
