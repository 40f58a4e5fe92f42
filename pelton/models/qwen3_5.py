"""Qwen3.5 dense: three layers of Gated DeltaNet for each of gated full attention, (1 + w) norms. The text part only."""

from __future__ import annotations

from typing import Any, ClassVar

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.graph.graph import Graph
from pelton.models.architecture import Architecture, Binding, CheckpointHeader, Ignored
from pelton.models.blocks import decoder
from pelton.models.delta_names import check_convolutions, delta_bindings
from pelton.models.fields import MAX_CONTEXT, Fields
from pelton.models.llama import config_rotary, gguf_rotary, gguf_vocab_size
from pelton.models.names import decoder_bindings
from pelton.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec

NORMS = {
    "gguf": {"mixer_norm": "attn_norm", "feed_forward_norm": "post_attention_norm"},
    "safetensors": {"mixer_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"},
}
FULL, LINEAR = "full_attention", "linear_attention"
FULL_INTERVAL = 4  # every fourth layer is full where the file does not say
ROTARY_PART = 0.25  # of a head, likewise
PREDICTOR = "predicts further tokens: speculation is off"


class Qwen3_5Text(Architecture):
    """root: what safetensors put before the names of the decoder's tensors."""

    name = "qwen3_5_text"
    title = "Qwen3.5, text"
    config_names: ClassVar[tuple[str, ...]] = ("Qwen3_5ForCausalLM",)
    gguf_names: ClassVar[tuple[str, ...]] = ()
    stored_as: ClassVar[tuple[str, ...]] = ("qwen35",)
    root: ClassVar[str] = "model"
    is_gguf_tiled: ClassVar[bool] = True  # the converter reorders value heads
    has_joint_projections: ClassVar[bool] = False  # see delta_names.py

    def spec(self, checkpoint: CheckpointHeader) -> ModelSpec:
        is_gguf = checkpoint.kind == "gguf"
        spec = self._spec_from_gguf(checkpoint) if is_gguf else self._spec_from_config(checkpoint)
        check_convolutions(spec, checkpoint, self.root)
        return spec

    def _spec_from_config(self, checkpoint: CheckpointHeader) -> ModelSpec:
        outer = Fields(checkpoint.metadata, "config.json")
        fields = outer.table("text_config") or outer
        _refuse_variants(fields)
        num_layers = fields.integer("num_hidden_layers")
        max_position = fields.integer("max_position_embeddings", 32768, high=MAX_CONTEXT)
        head_dim = fields.integer("head_dim", 256)
        has_bias = fields.flag("attention_bias", False)
        attention = AttentionSpec(
            num_heads=fields.integer("num_attention_heads"),
            num_kv_heads=fields.integer("num_key_value_heads"),
            head_dim=head_dim,
            rotary=config_rotary(fields, head_dim, max_position, ROTARY_PART),
            scale=head_dim**-0.5,
            has_qk_norm=True,
            has_qkv_bias=has_bias,
            has_output_bias=has_bias,
            has_output_gate=fields.flag("attn_output_gate", True),
        )
        delta = GatedDeltaSpec(
            num_key_heads=fields.integer("linear_num_key_heads", 16),
            num_value_heads=fields.integer("linear_num_value_heads", 32),
            key_head_dim=fields.integer("linear_key_head_dim", 128),
            value_head_dim=fields.integer("linear_value_head_dim", 128),
            conv_kernel=fields.integer("linear_conv_kernel_dim", 4),
        )
        kinds = fields.texts("layer_types", num_layers) or _interval_kinds(
            num_layers, fields.integer("full_attention_interval", FULL_INTERVAL)
        )
        parts = self.config_feed_forwards(fields, num_layers)
        tied = outer if outer.has("tie_word_embeddings") else fields
        return self._spec(
            vocab_size=fields.integer("vocab_size"),
            hidden_size=fields.integer("hidden_size"),
            layers=tuple(
                LayerSpec(attention if _is_full(kind) else delta, part) for kind, part in zip(kinds, parts, strict=True)
            ),
            norm_eps=fields.number("rms_norm_eps", 1e-6, low=0, high=1),
            max_position=max_position,
            is_head_tied=tied.flag("tie_word_embeddings", False),
        )

    def _spec_from_gguf(self, checkpoint: CheckpointHeader) -> ModelSpec:
        fields = _gguf_fields(checkpoint)
        num_predictors = fields.integer("nextn_predict_layers", 0, low=0)
        num_layers = fields.integer("block_count") - num_predictors
        if num_layers < 1:
            raise CheckpointError(f"the GGUF header has `{num_predictors}` prediction layers and no others")
        max_position = fields.integer("context_length", high=MAX_CONTEXT)
        head_dim = fields.integer("attention.key_length")
        attention = AttentionSpec(
            num_heads=fields.integer("attention.head_count"),
            num_kv_heads=fields.integer("attention.head_count_kv"),
            head_dim=head_dim,
            rotary=gguf_rotary(fields, checkpoint, head_dim, max_position),
            scale=head_dim**-0.5,
            has_qk_norm=True,
            has_output_gate=True,
        )
        return self._spec(
            vocab_size=gguf_vocab_size(checkpoint),
            hidden_size=fields.integer("embedding_length"),
            layers=tuple(
                LayerSpec(attention if _is_full(kind) else self._gguf_delta(fields), self.gguf_feed_forward(fields))
                for kind in _gguf_kinds(fields, num_layers)
            ),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon", low=0, high=1),
            max_position=max_position,
            is_head_tied="output.weight" not in checkpoint.tensors,
        )

    def _spec(self, **sizes: Any) -> ModelSpec:
        return ModelSpec(architecture=self.name, **sizes)

    def _gguf_delta(self, fields: Fields) -> GatedDeltaSpec:
        value_heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
        if inner % value_heads:
            raise CheckpointError(
                f"the GGUF header has `ssm.inner_size` = `{inner}`, which `{value_heads}` value heads don't divide"
            )
        return GatedDeltaSpec(
            num_key_heads=fields.integer("ssm.group_count"),
            num_value_heads=value_heads,
            key_head_dim=fields.integer("ssm.state_size"),
            value_head_dim=inner // value_heads,
            conv_kernel=fields.integer("ssm.conv_kernel"),
            is_tiled=self.is_gguf_tiled,
            has_log_decay=False,
        )

    def config_feed_forwards(self, fields: Fields, num_layers: int) -> tuple[MlpSpec | MoeSpec, ...]:
        """What works on each token alone, layer by layer."""
        return (MlpSpec(fields.integer("intermediate_size")),) * num_layers

    def gguf_feed_forward(self, fields: Fields) -> MlpSpec | MoeSpec:
        return MlpSpec(fields.integer("feed_forward_length"))

    def bindings(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Binding]:
        kind = checkpoint.kind
        return [
            *decoder_bindings(spec, checkpoint, NORMS[kind], root=self.root, has_norms_less_one=kind == "safetensors"),
            *delta_bindings(spec, kind, self.root, has_joint_projections=self.has_joint_projections),
        ]

    def ignored(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Ignored]:
        if checkpoint.kind == "gguf":
            num_predictors = _gguf_fields(checkpoint).integer("nextn_predict_layers", 0, low=0)
            blocks = range(len(spec.layers), len(spec.layers) + num_predictors)
            return [Ignored(f"blk.{block}.*", PREDICTOR) for block in blocks]
        ignored = [Ignored(f"mtp.{part}", PREDICTOR) for part in ("fc.weight", "*norm*.weight", "layers.*")]
        if self.root != "model":
            ignored.append(Ignored("model.visual.*", "sees images: only text is read"))
        if spec.is_head_tied:
            ignored.append(Ignored("lm_head.weight", "the head is tied to the embedding"))
        return ignored

    def build(self, spec: ModelSpec, graph: Graph) -> None:
        decoder(graph, spec)


class Qwen3_5(Qwen3_5Text):
    """The text part of a model that also sees."""

    name = "qwen3_5"
    config_names = ("Qwen3_5ForConditionalGeneration",)
    gguf_names = ("qwen35",)
    root = "model.language_model"


def _gguf_fields(checkpoint: CheckpointHeader) -> Fields:
    return Fields(checkpoint.metadata, "the GGUF header", f"{checkpoint.metadata['general.architecture']}.")


def _refuse_variants(fields: Fields) -> None:
    """Raises UnsupportedModelError for what no released model of the family has."""
    if fields.text("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"`hidden_act` is `{fields.raw('hidden_act')}`; these models have `silu`")
    if fields.raw("use_sliding_window"):
        raise UnsupportedModelError("`use_sliding_window` is true; these models have no windows")


def _interval_kinds(num_layers: int, interval: int) -> list[str]:
    return [LINEAR if (index + 1) % interval else FULL for index in range(num_layers)]


def _gguf_kinds(fields: Fields, num_layers: int) -> list[str]:
    """`attention.recurrent_layers` has a flag for each block, prediction layers included; else the interval counts."""
    flags = fields.flags("attention.recurrent_layers", num_layers)
    if flags is None:
        return _interval_kinds(num_layers, fields.integer("full_attention_interval", FULL_INTERVAL))
    return [LINEAR if flag else FULL for flag in flags[:num_layers]]


def _is_full(kind: str) -> bool:
    if kind not in (FULL, LINEAR):
        raise UnsupportedModelError(f"`layer_types` has `{kind}`", f"known are `{FULL}` and `{LINEAR}`")
    return kind == FULL
