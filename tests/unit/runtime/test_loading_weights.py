"""From files to a decoder: what fits is loaded, whatever does not fit is refused by name."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from umbel.kernels.native.threads import is_available
from umbel.runtime.errors import ModelError
from umbel.runtime.loading.gguf_file import GGUFFile
from umbel.runtime.loading.load import load_model, read_config
from umbel.runtime.loading.source import ModelSource, find_model
from umbel.runtime.models.decoder import Decoder
from umbel.runtime.models.hf_config import config_from_hf
from umbel.runtime.models.tensors import expected_tensors

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


class SelfContext:
    """Every row attends to itself only."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def _tensors(config: dict[str, Any] = CONFIG) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = expected_tensors(config_from_hf(config))
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def _folder(path: Path, tensors: dict[str, Tensor] | None, **config: Any) -> ModelSource:
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    if tensors is not None:
        save_file(tensors, path / "model.safetensors")
    return find_model(str(path))


def _shards(path: Path, tensors: dict[str, Tensor], num_shards: int = 3) -> ModelSource:
    names = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    weight_map = {name: names[i % num_shards] for i, name in enumerate(tensors)}
    for file in names:
        part = {name: tensors[name] for name in tensors if weight_map[name] == file}
        save_file(part, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return _folder(path, None)


def _logits(model: Decoder, num_rows: int = 5) -> Tensor:
    rows = torch.arange(num_rows)
    return model.logits(model.forward(rows, rows, SelfContext()))


def _load(source: ModelSource, **options: Any) -> Decoder:
    return load_model(source, **{"dtype": torch.float32, **options})


def test_shards_give_the_same_model_as_one_file(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "three").mkdir()
    tensors = _tensors()

    one = _load(_folder(tmp_path / "one", tensors))
    three = _load(_shards(tmp_path / "three", tensors))

    assert torch.equal(_logits(one), _logits(three))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_stored_dtypes_are_converted_to_the_wanted_one(
    stored: torch.dtype, dtype: torch.dtype, tmp_path: Path
) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in _tensors().items()}

    model = _load(_folder(tmp_path, tensors), dtype=dtype)

    assert model.dtype == dtype
    assert _logits(model).dtype == torch.float32
    assert _logits(model).shape == (5, 20)


def test_tensors_of_no_use_are_passed_over(tmp_path: Path) -> None:
    tensors = _tensors({**CONFIG, "tie_word_embeddings": True})
    tensors["lm_head.weight"] = torch.zeros(20, 16)  # tied: the embedding is the head
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    model = _load(_folder(tmp_path, tensors, tie_word_embeddings=True))

    assert float(_logits(model).abs().max()) > 0.0


def test_missing_extra_and_wrongly_shaped_tensors_are_named_with_their_shapes(
    tmp_path: Path,
) -> None:
    tensors = _tensors()
    del tensors["lm_head.weight"]
    tensors["model.extra.weight"] = torch.zeros(3, 2)
    tensors[Q_PROJ] = torch.zeros(16, 8)

    with pytest.raises(ModelError) as caught:
        _load(_folder(tmp_path, tensors))

    message = str(caught.value)
    assert str(tmp_path) in message
    assert "missing lm_head.weight [20, 16]" in message
    assert "unexpected model.extra.weight [3, 2]" in message
    assert f"{Q_PROJ} has shape [16, 8], expected [16, 16]" in message


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="and 14 more"):
        _load(_folder(tmp_path, {"other": torch.zeros(1)}))


def test_an_integer_tensor_is_refused_by_name(tmp_path: Path) -> None:
    tensors = _tensors()
    tensors[Q_PROJ] = torch.zeros(16, 16, dtype=torch.int8)

    with pytest.raises(ModelError, match=rf"{Q_PROJ}.* has dtype torch.int8"):
        _load(_folder(tmp_path, tensors))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    source = _shards(tmp_path, _tensors())
    (tmp_path / "model-00002-of-00003.safetensors").unlink()

    with pytest.raises(ModelError, match=r"3 shards, missing are model-00002-of-00003"):
        _load(source)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is not a readable index"),
        ("[]", "is not a readable index"),
        ('{"weight_map": {"a": "../secret.safetensors"}}', "outside its folder: ../secret"),
    ],
)
def test_a_bad_index_of_shards_is_refused(index: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)

    with pytest.raises(ModelError, match=message):
        _load(_folder(tmp_path, None))


def test_a_truncated_safetensors_file_is_named(tmp_path: Path) -> None:
    source = _folder(tmp_path, _tensors())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])

    with pytest.raises(ModelError, match=r"model\.safetensors is not a readable safetensors file"):
        _load(source)


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    source = _folder(tmp_path, None)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")

    with pytest.raises(ModelError, match=r"pytorch_model\.bin: pickles can run code"):
        _load(source)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no weights"):
        _load(_folder(tmp_path, None))


def test_a_config_that_is_not_supported_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: model_type 'gpt2'"):
        _load(_folder(tmp_path, _tensors(), model_type="gpt2"))


@pytest.mark.parametrize("load_format", ["gguf", "pickle"])
def test_a_load_format_that_does_not_fit_is_refused(load_format: str, tmp_path: Path) -> None:
    source = _folder(tmp_path, _tensors())

    with pytest.raises(ModelError, match=f"load_format='{load_format}' does not fit"):
        _load(source, load_format=load_format)


def test_float16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"torch.float16 is not supported"):
        _load(_folder(tmp_path, _tensors()), dtype=torch.float16)


def test_dummy_weights_need_a_config_only_and_depend_on_the_seed(tmp_path: Path) -> None:
    source = _folder(tmp_path, None)

    first, again, other = (
        _logits(_load(source, load_format="dummy", seed=seed)) for seed in (1, 1, 2)
    )

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert bool(first.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tokens_enter_the_embedded_model_as_the_rows_of_its_file(dtype: torch.dtype) -> None:
    embedded = find_model(None)
    table = torch.from_numpy(GGUFFile(embedded.path).load("token_embd.weight")).to(dtype)
    token_ids = torch.tensor([0, 1, 17, 49_151, 17])

    model = load_model(embedded, dtype=dtype)

    assert torch.equal(model.embed(token_ids), table[token_ids])


def test_a_quantized_embedding_is_held_as_its_codes_and_scales() -> None:
    model = load_model(find_model(None), dtype=torch.bfloat16)

    size = model.config.vocab_size * model.config.hidden_size
    codes, dense = size + 2 * size // 32, 2 * size  # dense where the head is, which shares it
    assert model.embedding_bytes == (codes if is_available() else dense)


def test_dummy_weights_can_take_the_config_of_a_gguf_file() -> None:
    embedded = find_model(None)

    model = _load(embedded, load_format="dummy", dtype=torch.bfloat16)

    assert model.config == read_config(embedded)
    assert model.config.num_layers == 30
    assert bool(_logits(model).isfinite().all())


def _gguf(path: Path, *, split: int | None = None, **tensors: np.ndarray[Any, Any]) -> ModelSource:
    writer = gguf.GGUFWriter(path / "a.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    if split is not None:
        writer.add_uint16("split.count", split)
    for name, tensor in tensors.items():
        writer.add_tensor(name.replace("__", "."), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return find_model(str(path / "a.gguf"))


EMBEDDING = np.zeros((20, 16), np.float32)


def test_missing_and_unknown_tensors_of_a_gguf_file_are_named(tmp_path: Path) -> None:
    source = _gguf(tmp_path, token_embd__weight=EMBEDDING, blk__0__odd__weight=EMBEDDING)

    with pytest.raises(ModelError) as caught:
        _load(source)

    assert "missing model.layers.0.self_attn.q_proj.weight [16, 16]" in str(caught.value)
    assert "a.gguf" in str(caught.value)


def test_an_unknown_tensor_of_a_gguf_file_is_refused_under_its_own_name(tmp_path: Path) -> None:
    shapes = {
        "attn_norm": (16,),
        "attn_q": (16, 16),
        "attn_k": (16, 16),
        "attn_v": (16, 16),
        "attn_output": (16, 16),
        "ffn_norm": (16,),
        "ffn_gate": (24, 16),
        "ffn_up": (24, 16),
        "ffn_down": (16, 24),
        "attn_sinks": (2,),
    }
    tensors = {f"blk__0__{k}__weight": np.zeros(v, np.float32) for k, v in shapes.items()}
    norm = np.zeros(16, np.float32)
    source = _gguf(tmp_path, token_embd__weight=EMBEDDING, output_norm__weight=norm, **tensors)

    with pytest.raises(
        ModelError, match=r"configuration: unexpected blk.0.attn_sinks.weight \[2\]$"
    ):
        _load(source)


def test_one_part_of_a_split_gguf_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="one of 3 parts of a model"):
        _load(_gguf(tmp_path, split=3, token_embd__weight=EMBEDDING))


def test_a_gguf_file_without_an_embedding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tensor 'token_embd\.weight'"):
        _load(_gguf(tmp_path, other=EMBEDDING))


def test_rope_factors_of_the_wrong_length_are_refused(tmp_path: Path) -> None:
    source = _gguf(
        tmp_path, token_embd__weight=EMBEDDING, rope_freqs__weight=np.ones(7, np.float32)
    )

    with pytest.raises(ModelError, match=r"a\.gguf: the tensor rope_freqs .* 7 frequency factors"):
        read_config(source)
