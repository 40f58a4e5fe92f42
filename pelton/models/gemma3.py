"""Gemma 3, text: sliding and full layers, norms around each block, (1 + w) norms, scaled embedding."""

from __future__ import annotations

import struct
from typing import ClassVar

from pelton.errors import UnsupportedModelError
from pelton.graph.graph import Graph
from pelton.models import rotary
from pelton.models.architecture import Architecture, Binding, CheckpointHeader, Ignored
from pelton.models.blocks import decoder
from pelton.models.fields import MAX_CONTEXT, Fields
from pelton.models.llama import decoder_ignored, gguf_vocab_size
from pelton.models.names import decoder_bindings
from pelton.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RotarySpec

NORMS = {
    "gguf": {
        "mixer_norm": "attn_norm",
        "mixer_post_norm": "post_attention_norm",
        "feed_forward_norm": "ffn_norm",
        "feed_forward_post_norm": "post_ffw_norm",
    },
    "safetensors": {
        "mixer_norm": "input_layernorm",
        "mixer_post_norm": "post_attention_layernorm",
        "feed_forward_norm": "pre_feedforward_layernorm",
        "feed_forward_post_norm": "post_feedforward_layernorm",
    },
}
FULL, SLIDING = "full_attention", "sliding_attention"


class Gemma3(Architecture):
    name = "gemma3"
    title = "Gemma 3, text"
    config_names = ("Gemma3ForCausalLM",)
    gguf_names = ("gemma3",)
    pattern: ClassVar[int] = 6  # every sixth layer is full where the file does not say

    def spec(self, checkpoint: CheckpointHeader) -> ModelSpec:
        if checkpoint.kind == "gguf":
            return self._spec_from_gguf(checkpoint)
        return self._spec_from_config(checkpoint)

    def _spec_from_config(self, checkpoint: CheckpointHeader) -> ModelSpec:
        fields = Fields(checkpoint.metadata, "config.json")
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if fields.has(key):
                raise UnsupportedModelError(f"`{key}` is `{fields.raw(key)}`; no released Gemma 3 model has it")
        activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
        if activation != "gelu_pytorch_tanh":
            raise UnsupportedModelError(f"`hidden_activation` is `{activation}`; Gemma 3 has `gelu_pytorch_tanh`")
        hidden = fields.integer("hidden_size")
        head_dim = fields.integer("head_dim", 256)
        max_position = fields.integer("max_position_embeddings", 131072, high=MAX_CONTEXT)
        num_layers = fields.integer("num_hidden_layers")
        table = checkpoint.tensors.get("model.embed_tokens.weight")
        return self._spec(
            vocab_size=fields.integer("vocab_size", 262208),
            hidden=hidden,
            heads=fields.integer("num_attention_heads", 8),
            kv_heads=fields.integer("num_key_value_heads", 4),
            head_dim=head_dim,
            intermediate=fields.integer("intermediate_size"),
            kinds=fields.texts("layer_types", num_layers) or self._kinds(num_layers, fields),
            window=fields.integer("sliding_window", 4096),
            rotaries=_config_rotaries(fields, head_dim, max_position),
            scale=fields.number("query_pre_attn_scalar", 256, low=1e-3, high=1e6) ** -0.5,
            eps=fields.number("rms_norm_eps", 1e-6, low=0, high=1),
            max_position=max_position,
            # The reference scales by sqrt(hidden) rounded to the embedding's own dtype.
            embedding_scale=_rounded(hidden**0.5, table.format if table is not None else "f32"),
            has_bias=fields.flag("attention_bias", False),
            is_head_tied=fields.flag("tie_word_embeddings", True),
        )

    def _spec_from_gguf(self, checkpoint: CheckpointHeader) -> ModelSpec:
        fields = Fields(checkpoint.metadata, "the GGUF header", "gemma3.")
        hidden = fields.integer("embedding_length")
        heads = fields.integer("attention.head_count")
        head_dim = fields.integer("attention.key_length", 256)
        max_position = fields.integer("context_length", high=MAX_CONTEXT)
        num_layers = fields.integer("block_count")
        full = rotary.from_fields(head_dim, fields.number("rope.freq_base", 1e6, low=1, high=1e12), None, max_position)
        if fields.text("rope.scaling.type", "none") == "linear":
            factor = fields.number("rope.scaling.factor", low=1e-3, high=1e6)
            full = rotary.linear(head_dim, fields.number("rope.freq_base", 1e6, low=1, high=1e12), factor)
        local = fields.number("rope.freq_base_swa", 1e4, low=1, high=1e12)
        # The header has no query_pre_attn_scalar; only the 27B model's (62 layers) is not its head_dim.
        scalar = hidden / heads if num_layers == 62 else head_dim
        return self._spec(
            vocab_size=gguf_vocab_size(checkpoint),
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            intermediate=fields.integer("feed_forward_length"),
            kinds=self._kinds(num_layers, Fields({}, "")),
            window=fields.integer("attention.sliding_window"),
            rotaries={FULL: full, SLIDING: rotary.from_fields(head_dim, local, None, max_position)},
            scale=scalar**-0.5,
            eps=fields.number("attention.layer_norm_rms_epsilon", low=0, high=1),
            max_position=max_position,
            embedding_scale=hidden**0.5,
            has_bias=False,
            is_head_tied="output.weight" not in checkpoint.tensors,
        )

    def _kinds(self, num_layers: int, fields: Fields) -> list[str]:
        pattern = fields.integer("sliding_window_pattern", self.pattern)
        return [FULL if (index + 1) % pattern == 0 else SLIDING for index in range(num_layers)]

    def _spec(
        self,
        *,
        vocab_size: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        intermediate: int,
        kinds: list[str],
        window: int,
        rotaries: dict[str, RotarySpec],
        scale: float,
        eps: float,
        max_position: int,
        embedding_scale: float,
        has_bias: bool,
        is_head_tied: bool,
    ) -> ModelSpec:
        unknown = sorted(set(kinds) - {FULL, SLIDING})
        if unknown:
            raise UnsupportedModelError(f"`layer_types` has `{unknown[0]}`", f"known are {FULL} and {SLIDING}")
        mlp = MlpSpec(intermediate, "gelu_tanh")
        layers = {
            kind: LayerSpec(
                AttentionSpec(
                    num_heads=heads,
                    num_kv_heads=kv_heads,
                    head_dim=head_dim,
                    rotary=rotaries[kind],
                    scale=scale,
                    window=window if kind == SLIDING else None,
                    has_qk_norm=True,
                    has_qkv_bias=has_bias,
                    has_output_bias=has_bias,
                ),
                mlp,
            )
            for kind in (FULL, SLIDING)
        }
        return ModelSpec(
            architecture=self.name,
            vocab_size=vocab_size,
            hidden_size=hidden,
            layers=tuple(layers[kind] for kind in kinds),
            norm_eps=eps,
            max_position=max_position,
            is_head_tied=is_head_tied,
            embedding_scale=embedding_scale,
        )

    def bindings(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Binding]:
        # GGUF's converter has added the one already.
        less_one = checkpoint.kind == "safetensors"
        return decoder_bindings(spec, checkpoint, NORMS[checkpoint.kind], has_norms_less_one=less_one)

    def ignored(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Ignored]:
        return decoder_ignored(spec, checkpoint.kind)

    def build(self, spec: ModelSpec, graph: Graph) -> None:
        decoder(graph, spec, has_post_norms=True)


def _config_rotaries(fields: Fields, head_dim: int, max_position: int) -> dict[str, RotarySpec]:
    """`rope_parameters` per layer type (new), or `rope_theta`, `rope_scaling`, `rope_local_base_freq` (old)."""
    new = fields.table("rope_parameters")
    if new is not None:
        found = {}
        for kind, default in ((FULL, 1e6), (SLIDING, 1e4)):
            described = new.table(kind)
            theta = default if described is None else described.number("rope_theta", default, low=1, high=1e12)
            found[kind] = rotary.from_fields(head_dim, theta, described, max_position)
        return found
    theta = fields.number("rope_theta", 1e6, low=1, high=1e12)
    local = fields.number("rope_local_base_freq", 1e4, low=1, high=1e12)
    return {
        FULL: rotary.from_fields(head_dim, theta, fields.table("rope_scaling"), max_position),
        SLIDING: rotary.from_fields(head_dim, local, None, max_position),
    }


def _rounded(value: float, format: str) -> float:
    """`value` rounded to nearest even in the given float format."""
    if format == "bf16":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    if format == "f16":
        return float(struct.unpack("<e", struct.pack("<e", value))[0])
    return value
