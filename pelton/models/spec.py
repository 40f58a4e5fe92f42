"""What a model is, as plain data: sizes and one LayerSpec per layer, which may all differ. Knows no files, no ops."""

from __future__ import annotations

from typing import Literal

import msgspec

from pelton.errors import CheckpointError


class LongFactors(msgspec.Struct, frozen=True):
    """Angles of a model that serves sequences of more than `trained` tokens (LongRoPE, arXiv:2402.13753)."""

    trained: int
    inv_freq: tuple[float, ...]


class DynamicNtk(msgspec.Struct, frozen=True):
    """Angles of a model that serves sequences of more than `trained` tokens follow from how long they may be."""

    trained: int
    theta: float
    factor: float


class RotarySpec(msgspec.Struct, frozen=True):
    """Rotary position embedding, rotate-half pairing (dimension i with i + dim / 2).

    dim:        rotated leading dimensions of a head; the rest passes through.
    inv_freq:   [dim / 2] angle per position of each pair, all scaling (linear, llama3, yarn) already applied.
    attention_factor:  multiplies cos and sin (yarn, longrope), else 1.
    longer:     what takes inv_freq's place where longer sequences are served (rotary.at_length); None: nothing does.
    """

    dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    longer: LongFactors | DynamicNtk | None = None


class AttentionSpec(msgspec.Struct, frozen=True):
    """scale multiplies q·k. window: tokens seen, the query's own included; None sees all.

    has_output_gate: each head of the query projection is [q | gate], and sigmoid(gate) multiplies what is mixed.
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
    has_output_gate: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads != 0:
            raise CheckpointError(f"`{self.num_heads}` heads don't divide among `{self.num_kv_heads}` KV heads")


class MlpSpec(msgspec.Struct, frozen=True):
    """Gated: down(activation(gate(x)) * up(x))."""

    intermediate_size: int
    activation: Literal["silu", "gelu_tanh"] = "silu"
    has_bias: bool = False


class MoeSpec(msgspec.Struct, frozen=True):
    """Mixture of experts: of num_experts gated MLPs, each row takes the num_chosen that the router likes best.

    expert:          every expert's MLP.
    is_normalised:   the chosen ones' weights are divided by their sum.
    shared:          an MLP that every row takes as well; has_shared_gate: times a sigmoid of its own.
    """

    num_experts: int
    num_chosen: int
    expert: MlpSpec
    is_normalised: bool = True
    shared: MlpSpec | None = None
    has_shared_gate: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.num_chosen <= self.num_experts:
            raise CheckpointError(f"each token takes `{self.num_chosen}` of `{self.num_experts}` experts")


class GatedDeltaSpec(msgspec.Struct, frozen=True):
    """Gated DeltaNet (arXiv:2412.06464): linear attention over a state per value head, behind a causal convolution.

    conv_kernel:      tokens that the convolution sees, the present one included.
    is_tiled:         value head j reads key head j % num_key_heads; else j // (num_value_heads / num_key_heads).
    has_log_decay:    the decay parameter holds log(rate), not -rate.
    Raises CheckpointError if the value heads don't divide among the key heads.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4
    is_tiled: bool = False
    has_log_decay: bool = True

    def __post_init__(self) -> None:
        if self.num_value_heads % self.num_key_heads != 0:
            raise CheckpointError(
                f"`{self.num_value_heads}` value heads don't divide among `{self.num_key_heads}` key heads"
            )


class LayerSpec(msgspec.Struct, frozen=True):
    """mixer: what moves between tokens. feed_forward: what works on each alone. None for a part means that the layer
    has none: no parameters, no cache, nothing added to the residual."""

    mixer: AttentionSpec | GatedDeltaSpec | None
    feed_forward: MlpSpec | MoeSpec | None


class ModelSpec(msgspec.Struct, frozen=True):
    """architecture: the registry's name. max_position: longest context that the model was made for.

    last_norm_factor: what the weights of the norm before the head are multiplied with, and so the logits.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    max_position: int
    is_head_tied: bool
    embedding_scale: float = 1.0
    last_norm_factor: float = 1.0
