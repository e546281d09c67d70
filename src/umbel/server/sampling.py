"""From the fields of a body to `SamplingParams`."""

from typing import Any

from umbel.runtime.errors import InvalidRequest
from umbel.server.errors import UnsupportedField
from umbel.server.protocol.fields import GenerationFields

_AS_THEY_ARE = (
    "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "n", "min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens",
    "speculate",
)  # fmt: skip
_MAX_SEED = 2**63


def sampling_options(body: GenerationFields) -> dict[str, Any]:
    """The options that a body gives; the rest keep the defaults of `SamplingParams`.

    Raises `InvalidRequest` for values that mean nothing here.
    """
    _refuse_unsupported(body)
    options = {
        name: getattr(body, name) for name in _AS_THEY_ARE if getattr(body, name) is not None
    }
    if body.top_k is not None:
        options["top_k"] = 0 if body.top_k == -1 else body.top_k  # vLLM's -1: all
    if body.seed is not None:
        options["seed"] = body.seed % _MAX_SEED  # any integer is a seed for OpenAI
    if body.stop is not None:
        options["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.logit_bias:
        options["logit_bias"] = _logit_bias(body.logit_bias)
    return options


def _refuse_unsupported(body: GenerationFields) -> None:
    if body.include_stop_str_in_output:
        raise UnsupportedField(
            "include_stop_str_in_output=true is not supported: an output ends before its stop "
            "string, which `stop_reason` names; leave the field out",
            param="include_stop_str_in_output",
        )


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    bias = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit()):
            raise InvalidRequest(
                f"logit_bias has the key {key!r:.40}, which is no token id: expected a map from "
                "token ids to numbers in [-100, 100]",
                param="logit_bias",
            )
        bias[int(key)] = value
    return bias
