"""What the decoder promises to the runner; its numbers are compared with transformers elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.source import find_model
from umbel.runtime.models.decoder import Decoder

CONFIG: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


class Recorder:
    """Notes the calls and lets every row attend to itself only."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        self.calls.append(
            {
                "layer": layer,
                "shapes": [tuple(x.shape) for x in (q, k, v)],
                "strides": [x.stride(-1) for x in (q, k, v)],
                "scale": scale,
                "window": window,
                "k": k.clone(),
            }
        )
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def _model(folder: Path, model_type: str = "llama", **config: Any) -> Decoder:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **CONFIG, **config}))
    return load_model(find_model(str(folder)), dtype=torch.float32, load_format="dummy")


def _forward(model: Decoder, ids: list[int], positions: list[int]) -> tuple[Tensor, Recorder]:
    recorder = Recorder()
    return model.forward(torch.tensor(ids), torch.tensor(positions), recorder), recorder


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_each_layer_attends_once_with_heads_of_the_promised_shapes(
    model_type: str, tmp_path: Path
) -> None:
    hidden, recorder = _forward(_model(tmp_path, model_type), [1, 2, 3], [0, 1, 2])

    assert hidden.shape == (3, 16)
    assert [call["layer"] for call in recorder.calls] == [0, 1, 2, 3]
    for call in recorder.calls:
        assert call["shapes"] == [(3, 4, 8), (3, 2, 8), (3, 2, 8)]
        assert call["strides"] == [1, 1, 1]


def test_scale_and_window_of_each_layer_reach_the_context(tmp_path: Path) -> None:
    fields = {"sliding_window": 5, "sliding_window_pattern": 2, "query_pre_attn_scalar": 4}

    _, recorder = _forward(_model(tmp_path, "gemma3_text", **fields), [1], [0])

    assert [call["window"] for call in recorder.calls] == [5, None, 5, None]
    assert [call["scale"] for call in recorder.calls] == [0.5] * 4


def test_keys_of_layers_without_rope_do_not_depend_on_the_position(tmp_path: Path) -> None:
    _, recorder = _forward(_model(tmp_path, "smollm3"), [7, 7], [3, 9])

    differs = [not torch.allclose(call["k"][0], call["k"][1]) for call in recorder.calls]
    assert differs == [True, True, True, False]


def test_rows_do_not_influence_each_other_outside_attention(tmp_path: Path) -> None:
    model = _model(tmp_path)

    together, _ = _forward(model, [5, 9, 2], [4, 0, 17])
    alone, _ = _forward(model, [2], [17])

    torch.testing.assert_close(together[2:], alone, atol=1e-6, rtol=0.0)


def test_logits_are_float32_for_the_rows_asked_for(tmp_path: Path) -> None:
    model = _model(tmp_path)
    hidden, _ = _forward(model, [1, 2, 3], [0, 1, 2])

    assert model.logits(hidden).shape == (3, 20)
    assert model.logits(hidden[:0]).shape == (0, 20)
    assert model.logits(hidden).dtype == torch.float32


def test_a_soft_cap_bounds_the_logits(tmp_path: Path) -> None:
    (tmp_path / "free").mkdir()
    (tmp_path / "capped").mkdir()
    free = _model(tmp_path / "free", "gemma3_text")
    capped = _model(tmp_path / "capped", "gemma3_text", final_logit_softcapping=0.05)
    hidden, _ = _forward(free, [1, 2], [0, 1])

    logits = free.logits(hidden)

    assert float(logits.abs().max()) > 0.05
    torch.testing.assert_close(capped.logits(hidden), 0.05 * torch.tanh(logits / 0.05))


def test_no_rows_are_a_step_too(tmp_path: Path) -> None:
    model = _model(tmp_path)
    none = torch.zeros(0, dtype=torch.int64)

    assert model.forward(none, none, Recorder()).shape == (0, 16)


@pytest.mark.parametrize(("token_id", "position"), [(20, 0), (-1, 0), (0, 64)])
def test_token_ids_and_positions_outside_the_model_raise(
    token_id: int, position: int, tmp_path: Path
) -> None:
    model = _model(tmp_path)

    with pytest.raises(IndexError):
        _forward(model, [token_id], [position])


def test_weight_bytes_are_those_of_all_products(tmp_path: Path) -> None:
    model = _model(tmp_path)

    attention = (4 + 2 * 2) * 8 * 16 + 16 * 4 * 8
    per_layer = attention + 3 * 16 * 24
    assert model.weight_bytes == 4 * (4 * per_layer + 20 * 16)


def test_results_are_not_tracked_by_autograd(tmp_path: Path) -> None:
    model = _model(tmp_path)

    hidden, _ = _forward(model, [1], [0])

    assert not hidden.requires_grad
    assert not model.logits(hidden).requires_grad
