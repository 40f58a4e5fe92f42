"""What a model is, as plain data: sizes and one LayerSpec per layer, which may all differ. Knows no files, no ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pelton.errors import CheckpointError


@dataclass(frozen=True)
class RotarySpec:
    """Rotary position embedding, rotate-half pairing (dimension i with i + dim / 2).

    dim:        rotated leading dimensions of a head; the rest passes through.
    inv_freq:   [dim / 2] angle per position of each pair, all scaling (linear, llama3, yarn) already applied.
    attention_factor:  multiplies cos and sin (yarn), else 1.
    """

    dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass(frozen=True)
class AttentionSpec:
    """scale multiplies q·k. window: tokens seen, the query's own included; None sees all.

    Raises CheckpointError if the query heads don't divide among the KV heads.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary: RotarySpec | None
    scale: float
    window: int | None = None
    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads != 0:
            raise CheckpointError(f"`{self.num_heads}` heads don't divide among `{self.num_kv_heads}` KV heads")


@dataclass(frozen=True)
class MlpSpec:
    """Gated: down(activation(gate(x)) * up(x))."""

    intermediate_size: int
    activation: Literal["silu", "gelu_tanh"] = "silu"
    has_bias: bool = False


@dataclass(frozen=True)
class LayerSpec:
    """None for a part means that the layer has none: no parameters, no cache, nothing added to the residual."""

    attention: AttentionSpec | None
    mlp: MlpSpec | None


@dataclass(frozen=True)
class ModelSpec:
    """architecture: the registry's name. max_position: longest context that the model was made for."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    max_position: int
    is_head_tied: bool
    embedding_scale: float = 1.0
