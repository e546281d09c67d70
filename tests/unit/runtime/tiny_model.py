"""A random model of a few thousand weights on disk, with a tokenizer of one token a byte."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

from umbel.runtime.loading.source import ModelSource, find_model
from umbel.runtime.models.hf_config import config_from_hf
from umbel.runtime.models.tensors import expected_tensors

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 259,  # odd, so that ranks have parts of different sizes
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "eos_token_id": 256,
}
MISTRAL = {"model_type": "mistral", "sliding_window": 9}
QWEN3 = {"model_type": "qwen3", "tie_word_embeddings": True}
BIASES = {"attention_bias": True, "mlp_bias": True}
GEMMA3 = {
    "model_type": "gemma3_text",
    "sliding_window": 6,
    "sliding_window_pattern": 2,
    "query_pre_attn_scalar": 20,
    "final_logit_softcapping": 5.0,
    "hidden_activation": "gelu_pytorch_tanh",
}


def write_model(folder: Path, seed: int = 0, **config: Any) -> ModelSource:
    """Random weights whose activations keep their size through the layers."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {**CONFIG, **config}
    (folder / "config.json").write_text(json.dumps(fields))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_tensors(config_from_hf(fields)).items():
        drawn = torch.randn(shape, generator=generator)
        is_norm = name.endswith("norm.weight")
        tensors[name] = 1 + 0.1 * drawn if is_norm else drawn * shape[-1] ** -0.5
    save_file(tensors, folder / "model.safetensors")
    write_tokenizer(folder)
    return find_model(str(folder))


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(_byte_tokenizer()))


def _byte_tokenizer() -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 256 + idx,
                "content": content,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for idx, content in enumerate(["<|end|>", "<|a|>", "<|b|>"])
        ],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": True},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {letter: idx for idx, letter in enumerate(sorted(ByteLevel.alphabet()))},
            "merges": [],
        },
    }
