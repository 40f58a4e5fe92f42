"""How decoder checkpoints name their tensors, in both kinds of file. Model files add what they have beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from pelton.models.architecture import Binding
from pelton.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec

# Parameter → tensor, without ".weight" / ".bias".
OUTER: dict[str, dict[str, str]] = {
    "gguf": {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"},
    "safetensors": {"embed_tokens": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"},
}
LAYER_PREFIX = {"gguf": "blk", "safetensors": "model.layers"}
ATTENTION: dict[str, dict[str, str]] = {
    "gguf": {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"},
    "safetensors": {name: f"self_attn.{name}_proj" for name in "qkvo"},
}
QK_NORM: dict[str, dict[str, str]] = {
    "gguf": {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"},
    "safetensors": {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"},
}
MLP: dict[str, dict[str, str]] = {
    "gguf": {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"},
    "safetensors": {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


class ExpertNames(msgspec.Struct, frozen=True):
    """Of safetensors, below a layer; of GGUF there is one way."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


class FusedNames(msgspec.Struct, frozen=True):
    """Tensors below a layer that hold several matrices, one after the other: q, k and v; gate and up."""

    attention: str
    mlp: str


def decoder_bindings(
    spec: ModelSpec,
    kind: str,
    norms: Mapping[str, str],
    *,
    is_rotary_interleaved: bool = False,
    has_norms_less_one: bool = False,
    experts: ExpertNames = ExpertNames(),  # noqa: B008  frozen
    fused: FusedNames | None = None,
) -> list[Binding]:
    """All parameters of blocks.py's decoder.

    norms:                  a layer's norm parameters → tensor names of this kind.
    experts:                how safetensors call the parts of a mixture of experts.
    fused:                  where q, k and v are one tensor, and gate and up one; their parts have no biases then.
    is_rotary_interleaved:  the file's q and k rows are ordered for rotation of neighbours (GGUF `llama`).
    has_norms_less_one:     the file's norm weights are w of (1 + w).
    """
    outer = OUTER[kind]
    bindings = [
        Binding("embed_tokens.weight", f"{outer['embed_tokens']}.weight"),
        Binding("norm.weight", f"{outer['norm']}.weight", add_one=has_norms_less_one),
    ]
    if not spec.is_head_tied:
        bindings.append(Binding("lm_head.weight", f"{outer['lm_head']}.weight"))
    for index, layer in enumerate(spec.layers):
        parameter, tensor = f"layers.{index}", f"{LAYER_PREFIX[kind]}.{index}"
        for name, stored in norms.items():
            if _has_norm(layer, name):
                bindings.append(
                    Binding(f"{parameter}.{name}.weight", f"{tensor}.{stored}.weight", add_one=has_norms_less_one)
                )
        if isinstance(layer.mixer, AttentionSpec):
            bindings += _attention(
                layer.mixer, kind, f"{parameter}.attention", tensor, is_rotary_interleaved, has_norms_less_one, fused
            )
        if isinstance(layer.feed_forward, MoeSpec):
            bindings += experts_bindings(layer.feed_forward, spec, kind, f"{parameter}.experts", tensor, experts)
        if isinstance(layer.feed_forward, MlpSpec) and fused is not None:
            size = layer.feed_forward.intermediate_size
            bindings += _fused(f"{parameter}.mlp", f"{tensor}.{fused.mlp}", {"gate": size, "up": size})
            bindings += _matrix(f"{parameter}.mlp.down", f"{tensor}.{MLP[kind]['down']}", has_bias=False)
        elif isinstance(layer.feed_forward, MlpSpec):
            for name, stored in MLP[kind].items():
                bindings += _matrix(f"{parameter}.mlp.{name}", f"{tensor}.{stored}", layer.feed_forward.has_bias)
    return bindings


def _has_norm(layer: LayerSpec, name: str) -> bool:
    return (layer.mixer if name.startswith("mixer") else layer.feed_forward) is not None


def _attention(
    attention: AttentionSpec,
    kind: str,
    parameter: str,
    tensor: str,
    interleaved: bool,
    less_one: bool,
    fused: FusedNames | None,
) -> list[Binding]:
    bindings = []
    if fused is not None:
        queries, keys = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        bindings += _fused(parameter, f"{tensor}.{fused.attention}", {"q": queries, "k": keys, "v": keys})
    for name, stored in ATTENTION[kind].items():
        if fused is not None and name in "qkv":
            continue
        has_bias = attention.has_output_bias if name == "o" else attention.has_qkv_bias
        order = None
        if interleaved and name in "qk" and attention.rotary is not None:
            heads = attention.num_heads if name == "q" else attention.num_kv_heads
            order = half_order(heads, attention.head_dim)
        if name == "q" and attention.has_output_gate:
            for part, rows in (("q", 0), ("gate", 1)):
                order = alternate_order(attention.num_heads, attention.head_dim, rows)
                bindings += _matrix(f"{parameter}.{part}", f"{tensor}.{stored}", has_bias, order)
            continue
        bindings += _matrix(f"{parameter}.{name}", f"{tensor}.{stored}", has_bias, order)
    if attention.has_qk_norm:
        for name, stored in QK_NORM[kind].items():
            bindings.append(Binding(f"{parameter}.{name}.weight", f"{tensor}.{stored}.weight", add_one=less_one))
    return bindings


def _fused(parameter: str, tensor: str, rows: Mapping[str, int]) -> list[Binding]:
    """rows: of each part, in order."""
    bindings, first = [], 0
    for name, count in rows.items():
        bindings.append(Binding(f"{parameter}.{name}.weight", f"{tensor}.weight", tensor_row=first, num_rows=count))
        first += count
    return bindings


def _matrix(parameter: str, tensor: str, has_bias: bool, row_order: tuple[int, ...] | None = None) -> list[Binding]:
    bindings = [Binding(f"{parameter}.weight", f"{tensor}.weight", row_order)]
    if has_bias:
        bindings.append(Binding(f"{parameter}.bias", f"{tensor}.bias", row_order))
    return bindings


def experts_bindings(
    moe: MoeSpec, spec: ModelSpec, kind: str, parameter: str, tensor: str, names: ExpertNames
) -> list[Binding]:
    """GGUF has one tensor for all experts' gates and so on, safetensors one for each expert's."""
    if kind == "gguf":
        stored = {"router": "ffn_gate_inp", "gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}
        return [Binding(f"{parameter}.{name}.weight", f"{tensor}.{of}.weight") for name, of in stored.items()]
    bindings = [Binding(f"{parameter}.router.weight", f"{tensor}.{names.router}.weight")]
    inner, hidden = moe.expert.intermediate_size, spec.hidden_size
    for name, stored_name, rows in (("gate", names.gate, inner), ("up", names.up, inner), ("down", names.down, hidden)):
        bindings += [
            Binding(
                f"{parameter}.{name}.weight",
                f"{tensor}.{names.experts}.{expert}.{stored_name}.weight",
                num_rows=rows,
                parameter_row=expert * rows,
            )
            for expert in range(moe.num_experts)
        ]
    return bindings


@cache  # the same in every layer
def half_order(heads: int, head_dim: int) -> tuple[int, ...]:
    """Rows of a matrix whose heads pair neighbours (2 i, 2 i + 1), in the order that pairs (i, i + head_dim / 2)."""
    half = head_dim // 2
    return tuple(head * head_dim + 2 * (i % half) + i // half for head in range(heads) for i in range(head_dim))


@cache
def alternate_order(heads: int, head_dim: int, which: int) -> tuple[int, ...]:
    """Rows of a matrix that holds two parts of each head in turn, [heads, 2, head_dim]: those of the first or second."""
    return tuple((2 * head + which) * head_dim + i for head in range(heads) for i in range(head_dim))
