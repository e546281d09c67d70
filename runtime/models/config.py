"""What a decoder must know about a model, whatever file format said it.

`hf_config` and `gguf_config` build a `ModelConfig`; the decoder and the loader read nothing else.
"""

from dataclasses import dataclass
from typing import Literal

from umbel.kernels.rope import RopeSpec
from umbel.runtime.errors import ModelError

Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3"]
ARCHITECTURES: tuple[Architecture, ...] = (
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma3",
)  # fmt: skip
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """How one layer attends. rope None: positions are not encoded. window None: the whole context.

    With a window of w, the row at position p sees the positions p - w + 1 .. p.
    """

    rope: RopeSpec | None
    window: int | None  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shapes and variants of a decoder-only transformer. Raises `ModelError` when impossible."""

    architecture: Architecture
    vocab_size: int  # V, rows of the embedding and of the head
    hidden_size: int  # E
    intermediate_size: int  # F
    num_heads: int  # Hq
    num_kv_heads: int  # Hkv
    head_dim: int  # D
    context_len: int  # tokens
    norm_eps: float
    layers: tuple[LayerConfig, ...]
    tied_head: bool  # the head is the embedding
    activation: Activation = "silu"
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False  # norms also behind attention and MLP, before the residual sum
    norm_offset: float = 0.0  # added to stored norm weights: Gemma checkpoints store w for 1 + w
    attention_scale: float | None = None  # None: 1 / sqrt(D)
    embedding_scale: float | None = None
    logit_softcap: float | None = None  # logits become cap * tanh(logits / cap)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads",
                     "head_dim", "context_len"):  # fmt: skip
            value = getattr(self, name)
            if value < 1:
                raise ModelError(f"{name}={value} is not valid: expected at least 1")
        if not self.layers:
            raise ModelError("the model has no layers: expected at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads; "
                f"expected a multiple"
            )
        for idx, layer in enumerate(self.layers):
            if layer.window is not None and layer.window < 1:
                raise ModelError(f"layer {idx} has a sliding window of {layer.window} tokens")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def scale(self) -> float:
        """Factor of the attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale


def unsupported(what: str, got: object, accepted: object) -> ModelError:
    """The error for a variant that is known not to be computed exactly, and therefore refused."""
    names = ", ".join(accepted) if isinstance(accepted, tuple) else str(accepted)
    return ModelError(f"{what} {got!r} is not supported; supported: {names}")
