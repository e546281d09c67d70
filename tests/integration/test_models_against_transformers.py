"""Every supported architecture against transformers: equal logits and greedy tokens in float32.

Tiny random checkpoints are written by transformers, or as GGUF by the gguf package, and read by us.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.source import find_model
from umbel.runtime.models.decoder import Decoder

NUM_TOKENS = 64
TOLERANCE = 1e-3
VOCAB = 256
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "eager",
}


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters=dict(LLAMA3_ROPE), tie_word_embeddings=True)
    )


def _llama_with_biases() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True))


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SIZES, head_dim=24, sliding_window=7))


def _qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, rope_parameters=dict(YARN_ROPE)))


def _qwen2_with_window() -> PreTrainedModel:
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **window))


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=40))


def _smollm3() -> PreTrainedModel:
    return SmolLM3ForCausalLM(SmolLM3Config(**SIZES))


def _gemma3() -> PreTrainedModel:
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 8.0},
    }
    sizes = {**SIZES, "num_hidden_layers": 7, "head_dim": 32, "query_pre_attn_scalar": 24}
    return Gemma3ForCausalLM(Gemma3TextConfig(**sizes, sliding_window=6, rope_parameters=ropes))


# "The history of the city goes back to Roman times, when a small fort was built on the hill above
# the river. In the Middle Ages merchants settled near the bridge, [...]" in the tokens of SmolLM2.
ENGLISH = [
    504, 1463, 282, 260, 2240, 3935, 1056, 288, 4469, 1711, 28, 645, 253, 1165, 5601, 436,
    2837, 335, 260, 13083, 2120, 260, 4626, 30, 533, 260, 5550, 13192, 19547, 9700, 2141,
    260, 7395, 28, 284, 260, 3102, 6679, 3428, 429, 260, 3735, 281, 14138, 284, 5420, 30,
    4104, 768, 7803, 1690, 288, 963, 260, 24371, 284, 288, 4549, 738, 260, 6260, 9018, 282,
    260, 1573, 3102, 30,
]  # fmt: skip
# "Water freezes at 0 degrees Celsius and boils at", " 100 degrees Celsius"
WATER_BOILS_AT = [12615, 43145, 418, 216, 32, 5027, 20590, 284, 36411, 418]
ONE_HUNDRED_DEGREES = [216, 33, 32, 32, 5027, 20590]

MODELS = {
    "llama": _llama,
    "llama_with_biases": _llama_with_biases,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen2_with_window": _qwen2_with_window,
    "qwen3": _qwen3,
    "smollm3": _smollm3,
    "gemma3": _gemma3,
}
GGUF_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny products only wait for a second thread
    yield
    torch.set_num_threads(before)


class DenseContext:
    """One sequence, all keys and values in two tensors: the plainest thing that can be right."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        if layer in self._cache:
            old_k, old_v = self._cache[layer]
            k, v = torch.cat((old_k, k)), torch.cat((old_v, v))
        self._cache[layer] = k, v
        num_rows, length, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
        row = torch.arange(length - num_rows, length)[:, None]
        key = torch.arange(length)[None, :]
        visible = key <= row
        if window is not None:
            visible &= key > row - window
        heads_k, heads_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("thd,shd->hts", q, heads_k) * scale
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        return torch.einsum("hts,shd->thd", weights, heads_v)


def _randomize(model: PreTrainedModel) -> PreTrainedModel:
    """Weights that matter everywhere: biases and norms too, and logits far from ties."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(0.15 * noise)
    return model.eval()


def _prompt(length: int, vocab_size: int = VOCAB, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
    return ids


def _their_logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def _our_logits(model: Decoder, ids: list[int]) -> Tensor:
    hidden = model.forward(torch.tensor(ids), torch.arange(len(ids)), DenseContext())
    return model.logits(hidden)


def _their_greedy(model: PreTrainedModel, ids: list[int]) -> list[int]:
    with torch.inference_mode():
        mask = torch.ones(1, len(ids), dtype=torch.int64)
        out = model.generate(
            torch.tensor([ids]),
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=NUM_TOKENS,
            max_new_tokens=NUM_TOKENS,
            pad_token_id=0,
            eos_token_id=None,
        )
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


def _our_greedy(model: Decoder, ids: list[int], num_tokens: int = NUM_TOKENS) -> list[int]:
    context = DenseContext()
    hidden = model.forward(torch.tensor(ids), torch.arange(len(ids)), context)
    tokens: list[int] = []
    for position in range(len(ids), len(ids) + num_tokens):
        tokens.append(int(model.logits(hidden[-1:]).argmax()))
        hidden = model.forward(torch.tensor(tokens[-1:]), torch.tensor([position]), context)
    return tokens


def _assert_equal(ours: Decoder, theirs: PreTrainedModel) -> None:
    for length in (1, 2, 37):
        ids = _prompt(length, seed=length)
        difference = (_our_logits(ours, ids) - _their_logits(theirs, ids)).abs().max()
        assert difference < TOLERANCE, f"{length} tokens: logits differ by {difference}"
    ids = _prompt(37)
    assert _our_greedy(ours, ids) == _their_greedy(theirs, ids)


@pytest.mark.parametrize("name", MODELS)
def test_safetensors_checkpoints_give_the_logits_and_tokens_of_transformers(
    name: str, tmp_path: Path
) -> None:
    theirs = _randomize(MODELS[name]())
    theirs.save_pretrained(tmp_path, max_shard_size="60KB" if name == "qwen2" else "1GB")
    shards = list(tmp_path.glob("*.safetensors"))

    ours = load_model(find_model(str(tmp_path)), dtype=torch.float32)

    assert (len(shards) > 2) == (name == "qwen2")
    _assert_equal(ours, theirs)


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_gemma3_checkpoint_is_found(
    prefix: str, tmp_path: Path
) -> None:
    theirs = _randomize(_gemma3())
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    text_prefix = prefix + "model." if prefix == "language_model." else prefix
    renamed = {name.replace("model.", text_prefix, 1): value for name, value in tensors.items()}
    renamed["vision_tower.patch.weight"] = torch.zeros(2, 2)
    renamed["multi_modal_projector.weight"] = torch.zeros(2, 2)
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    nested = {"model_type": "gemma3", "text_config": config, "vision_config": {"hidden_size": 2}}
    (tmp_path / "config.json").write_text(json.dumps(nested))

    ours = load_model(find_model(str(tmp_path)), dtype=torch.float32)

    _assert_equal(ours, theirs)


def _interleaved(weight: Tensor, num_heads: int) -> Tensor:
    """The layout of llama.cpp: the two halves of each head row by row in turn."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _write_gguf(path: Path, architecture: str, model: PreTrainedModel) -> None:
    config = model.config
    arch = GGUF_ARCHITECTURES[architecture]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    _add_gguf_rope(writer, architecture, config.rope_parameters, head_dim)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
        writer.add_attention_scale(config.query_pre_attn_scalar**-0.5)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture in ("llama", "smollm3"):
            if "q_proj" in name:
                tensor = _interleaved(tensor, config.num_attention_heads)
            elif "k_proj" in name:
                tensor = _interleaved(tensor, config.num_key_value_heads)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            tensor = tensor + 1.0
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(stored, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_gguf_rope(
    writer: gguf.GGUFWriter, architecture: str, rope: dict[str, Any], head_dim: int
) -> None:
    if architecture == "gemma3":
        writer.add_key_value(
            "gemma3.rope.freq_base_swa",
            rope["sliding_attention"]["rope_theta"],
            gguf.GGUFValueType.FLOAT32,
        )
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_dim))


def _llama3_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    context = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for dim in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (dim / head_dim)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(rope["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1.0 / ((1.0 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


@pytest.mark.parametrize("architecture", GGUF_ARCHITECTURES)
def test_gguf_files_give_the_logits_and_tokens_of_transformers(
    architecture: str, tmp_path: Path
) -> None:
    theirs = _randomize(MODELS[architecture]())
    _write_gguf(tmp_path / "tiny.gguf", architecture, theirs)

    ours = load_model(find_model(str(tmp_path / "tiny.gguf")), dtype=torch.float32)

    _assert_equal(ours, theirs)


def _embedded_in_transformers() -> PreTrainedModel:
    """The embedded file, read by the gguf package and put into a transformers model by hand."""
    reader = gguf.GGUFReader(find_model(None).path)
    tensors = {
        tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in reader.tensors
    }
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    model = LlamaForCausalLM(config).eval()
    state = {}
    for name in model.state_dict():
        tensor = tensors[
            names.get_name(name.replace("lm_head", "model.embed_tokens"), (".weight",))
        ]
        heads = {"q_proj": 9, "k_proj": 3}.get(name.split(".")[-2])
        if heads is not None:  # rows of a head: 0 32 1 33 ... in the file, 0 1 ... 32 33 ... here
            order = torch.cat((torch.arange(0, 64, 2), torch.arange(1, 64, 2)))
            tensor = tensor.view(heads, 64, -1)[:, order].reshape(tensor.shape)
        state[name] = tensor
    model.load_state_dict(state)
    return model


def test_the_embedded_model_gives_the_logits_and_tokens_of_transformers() -> None:
    theirs = _embedded_in_transformers()
    ours = load_model(find_model(None), dtype=torch.float32)
    prompts = [_prompt(3 + 2 * seed, ours.config.vocab_size, seed) for seed in range(20)]

    differences = [
        float((_our_logits(ours, ids) - _their_logits(theirs, ids)).abs().max()) for ids in prompts
    ]

    assert max(differences) < TOLERANCE
    assert _our_greedy(ours, prompts[9]) == _their_greedy(theirs, prompts[9])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_embedded_model_knows_english(dtype: torch.dtype) -> None:
    """With the rows of queries and keys in the file's order the perplexity is 68 in place of 13."""
    model = load_model(find_model(None), dtype=dtype)

    log_probs = _our_logits(model, ENGLISH).log_softmax(-1)
    chosen = log_probs[:-1].gather(1, torch.tensor(ENGLISH[1:])[:, None])

    assert float(chosen.mean().neg().exp()) < 16.0
    assert _our_greedy(model, WATER_BOILS_AT, 6) == ONE_HUNDRED_DEGREES


def test_bfloat16_stays_close_to_float32_on_the_embedded_model() -> None:
    exact = load_model(find_model(None), dtype=torch.float32)
    rounded = load_model(find_model(None), dtype=torch.bfloat16)
    ids = _prompt(48, exact.config.vocab_size)

    exact_log_probs = _our_logits(exact, ids).log_softmax(-1)
    rounded_log_probs = _our_logits(rounded, ids).log_softmax(-1)
    divergence = (exact_log_probs.exp() * (exact_log_probs - rounded_log_probs)).sum(-1)

    assert rounded.dtype == torch.bfloat16
    assert float(divergence.mean()) < 0.02
