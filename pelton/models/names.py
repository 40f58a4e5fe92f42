"""How decoder checkpoints name their tensors, in both kinds of file. Model files add what they have beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import msgspec

from pelton.models.architecture import Binding, CheckpointHeader
from pelton.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec

# Parameter → tensor, without ".weight" / ".bias".
OUTER: dict[str, dict[str, str]] = {
    "gguf": {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"},
    "safetensors": {"embed_tokens": "{root}.embed_tokens", "norm": "{root}.norm", "lm_head": "lm_head"},
}
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
SHARED: dict[str, dict[str, str]] = {
    "gguf": {name: f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "safetensors": {name: f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
}
SHARED_GATE = {"gguf": "ffn_gate_inp_shexp", "safetensors": "mlp.shared_expert_gate"}


class ExpertNames(msgspec.Struct, frozen=True):
    """Of safetensors, below a layer; of GGUF there is one way."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gate_up: str = "gate_up_proj"


class FusedNames(msgspec.Struct, frozen=True):
    """Tensors below a layer that hold several matrices, one after the other: q, k and v; gate and up."""

    attention: str
    mlp: str


def decoder_bindings(
    spec: ModelSpec,
    checkpoint: CheckpointHeader,
    norms: Mapping[str, str],
    *,
    root: str = "model",
    is_rotary_interleaved: bool = False,
    has_norms_less_one: bool = False,
    experts: ExpertNames = ExpertNames(),  # noqa: B008  frozen
    fused: FusedNames | None = None,
) -> list[Binding]:
    """All parameters of blocks.py's decoder.

    root:                   what safetensors put before the decoder's tensors.
    norms:                  a layer's norm parameters → tensor names of this kind.
    experts:                how safetensors call the parts of a mixture of experts.
    fused:                  where q, k and v are one tensor, and gate and up one; their parts have no biases then.
    is_rotary_interleaved:  the file's q and k rows are ordered for rotation of neighbours (GGUF `llama`).
    has_norms_less_one:     the file's norm weights are w of (1 + w).
    """
    kind = checkpoint.kind
    outer = {name: stored.format(root=root) for name, stored in OUTER[kind].items()}
    bindings = [
        Binding("embed_tokens.weight", f"{outer['embed_tokens']}.weight"),
        Binding("norm.weight", f"{outer['norm']}.weight", add_one=has_norms_less_one, factor=spec.last_norm_factor),
    ]
    if not spec.is_head_tied:
        bindings.append(Binding("lm_head.weight", f"{outer['lm_head']}.weight"))
    for index, layer in enumerate(spec.layers):
        parameter, tensor = f"layers.{index}", layer_prefix(kind, index, root)
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
            moe = layer.feed_forward
            bindings += experts_bindings(moe, spec, checkpoint, f"{parameter}.experts", tensor, experts)
            bindings += shared_bindings(moe, kind, f"{parameter}.experts", tensor)
        if isinstance(layer.feed_forward, MlpSpec) and fused is not None:
            size = layer.feed_forward.intermediate_size
            bindings += _fused(f"{parameter}.mlp", f"{tensor}.{fused.mlp}", {"gate": size, "up": size})
            bindings += _matrix(f"{parameter}.mlp.down", f"{tensor}.{MLP[kind]['down']}", has_bias=False)
        elif isinstance(layer.feed_forward, MlpSpec):
            for name, stored in MLP[kind].items():
                bindings += _matrix(f"{parameter}.mlp.{name}", f"{tensor}.{stored}", layer.feed_forward.has_bias)
    return bindings


def layer_prefix(kind: str, index: int, root: str) -> str:
    return f"blk.{index}" if kind == "gguf" else f"{root}.layers.{index}"


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
    moe: MoeSpec, spec: ModelSpec, checkpoint: CheckpointHeader, parameter: str, tensor: str, names: ExpertNames
) -> list[Binding]:
    """GGUF has one tensor for all experts' gates and so on; safetensors one for each expert's, or one for all experts'
    gates and ups, expert by expert, and one for all downs."""
    inner, hidden = moe.expert.intermediate_size, spec.hidden_size
    if checkpoint.kind == "gguf":
        stored = {"router": "ffn_gate_inp", "gate": "ffn_gate_exps", "up": "ffn_up_exps", "down": "ffn_down_exps"}
        return [Binding(f"{parameter}.{name}.weight", f"{tensor}.{of}.weight") for name, of in stored.items()]
    bindings = [Binding(f"{parameter}.router.weight", f"{tensor}.{names.router}.weight")]
    joint = f"{tensor}.{names.experts}.{names.gate_up}"
    if joint in checkpoint.tensors:
        for expert in range(moe.num_experts):
            for index, name in enumerate(("gate", "up")):
                first = (2 * expert + index) * inner
                place = expert * inner
                bindings.append(
                    Binding(f"{parameter}.{name}.weight", joint, tensor_row=first, num_rows=inner, parameter_row=place)
                )
        return [*bindings, Binding(f"{parameter}.down.weight", f"{tensor}.{names.experts}.{names.down}")]
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


def shared_bindings(moe: MoeSpec, kind: str, parameter: str, tensor: str) -> list[Binding]:
    """Of the expert that every row takes."""
    bindings = []
    if moe.shared is not None:
        for name, stored in SHARED[kind].items():
            bindings += _matrix(f"{parameter}.mlp.{name}", f"{tensor}.{stored}", moe.shared.has_bias)
    if moe.has_shared_gate:
        bindings.append(Binding(f"{parameter}.shared_gate.weight", f"{tensor}.{SHARED_GATE[kind]}.weight"))
    return bindings


@cache  # the same in every layer
def half_order(heads: int, head_dim: int) -> tuple[int, ...]:
    """Rows of a matrix whose heads pair neighbours (2 i, 2 i + 1), in the order that pairs (i, i + head_dim / 2)."""
    half = head_dim // 2
    return tuple(head * head_dim + 2 * (i % half) + i // half for head in range(heads) for i in range(head_dim))


@cache
def alternate_order(heads: int, head_dim: int, which: int) -> tuple[int, ...]:
    """Rows of a matrix that holds two parts of each head in turn, [heads, 2, head_dim]: those of one part."""
    return tuple((2 * head + which) * head_dim + i for head in range(heads) for i in range(head_dim))
