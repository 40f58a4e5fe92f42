"""Llama: Llama 2 and 3, SmolLM2, and everything that shares their names and mathematics."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.graph.graph import Graph
from pelton.models import rotary
from pelton.models.architecture import Architecture, Binding, CheckpointHeader, Ignored
from pelton.models.blocks import decoder
from pelton.models.fields import MAX_CONTEXT, Fields
from pelton.models.names import ExpertNames, FusedNames, decoder_bindings
from pelton.models.spec import AttentionSpec, LayerSpec, LongFactors, MlpSpec, ModelSpec, MoeSpec, RotarySpec

NORMS = {
    "gguf": {"mixer_norm": "attn_norm", "feed_forward_norm": "ffn_norm"},
    "safetensors": {"mixer_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"},
}


ROPE_FREQS, SHORT_FACTORS, LONG_FACTORS = (f"rope_{name}.weight" for name in ("freqs", "factors_short", "factors_long"))
# GGUF's keys below rope.scaling, as config.json calls them.
_GGUF_SCALING = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


class Llama(Architecture):
    name = "llama"
    title = "Llama, SmolLM2; as GGUF Mistral and Mixtral too"
    config_names = ("LlamaForCausalLM",)
    gguf_names: ClassVar[tuple[str, ...]] = ("llama",)
    has_qk_norm = False
    has_qkv_bias = False  # whatever the configuration says; GGUF shows it by its tensors
    is_gguf_rotary_interleaved = True  # the converter reorders q and k for rotation of neighbours
    expert_names: ClassVar[ExpertNames] = ExpertNames()
    fused_names: ClassVar[dict[str, FusedNames]] = {}  # by kind of file

    def spec(self, checkpoint: CheckpointHeader) -> ModelSpec:
        if checkpoint.kind == "gguf":
            return self._spec_from_gguf(checkpoint)
        return self._spec_from_config(checkpoint)

    def _spec_from_config(self, checkpoint: CheckpointHeader) -> ModelSpec:
        fields = Fields(checkpoint.metadata, "config.json")
        if fields.text("hidden_act", "silu") != "silu":
            raise UnsupportedModelError(f"`hidden_act` is `{fields.raw('hidden_act')}`; {self.name} models have `silu`")
        hidden = fields.integer("hidden_size")
        heads = fields.integer("num_attention_heads")
        head_dim = fields.integer("head_dim", hidden // heads)
        max_position = fields.integer("max_position_embeddings", 2048, high=MAX_CONTEXT)
        has_bias = fields.flag("attention_bias", False)
        num_layers = fields.integer("num_hidden_layers")
        attention = AttentionSpec(
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            rotary=config_rotary(fields, head_dim, max_position),
            scale=head_dim**-0.5,
            has_qk_norm=self.has_qk_norm,
            has_qkv_bias=has_bias or self.has_qkv_bias,
            has_output_bias=has_bias,
        )
        return ModelSpec(
            architecture=self.name,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden,
            layers=tuple(LayerSpec(attention, part) for part in self.config_feed_forwards(fields, num_layers)),
            norm_eps=fields.number("rms_norm_eps", 1e-6, low=0, high=1),
            max_position=max_position,
            is_head_tied=fields.flag("tie_word_embeddings", False),
        )

    def _spec_from_gguf(self, checkpoint: CheckpointHeader) -> ModelSpec:
        fields = Fields(checkpoint.metadata, "the GGUF header", f"{checkpoint.metadata['general.architecture']}.")
        hidden = fields.integer("embedding_length")
        heads = fields.integer("attention.head_count")
        head_dim = fields.integer("attention.key_length", hidden // heads)
        max_position = fields.integer("context_length", high=MAX_CONTEXT)
        attention = AttentionSpec(
            num_heads=heads,
            num_kv_heads=fields.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            rotary=gguf_rotary(fields, checkpoint, head_dim, max_position),
            scale=head_dim**-0.5,
            has_qk_norm=self.has_qk_norm,
            has_qkv_bias="blk.0.attn_q.bias" in checkpoint.tensors,
            has_output_bias="blk.0.attn_output.bias" in checkpoint.tensors,
        )
        part = self.gguf_feed_forward(fields, has_bias="blk.0.ffn_gate.bias" in checkpoint.tensors)
        return ModelSpec(
            architecture=self.name,
            vocab_size=gguf_vocab_size(checkpoint),
            hidden_size=hidden,
            layers=(LayerSpec(attention, part),) * fields.integer("block_count"),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon", low=0, high=1),
            max_position=max_position,
            is_head_tied="output.weight" not in checkpoint.tensors,
        )

    def config_feed_forwards(self, fields: Fields, num_layers: int) -> tuple[MlpSpec | MoeSpec, ...]:
        """What works on each token alone, layer by layer."""
        mlp = MlpSpec(fields.integer("intermediate_size"), has_bias=fields.flag("mlp_bias", False))
        return (mlp,) * num_layers

    def gguf_feed_forward(self, fields: Fields, has_bias: bool) -> MlpSpec | MoeSpec:
        """The same in every layer. Experts make it what is called Mixtral elsewhere."""
        size = fields.integer("feed_forward_length")
        if fields.has("expert_count"):
            return MoeSpec(fields.integer("expert_count"), fields.integer("expert_used_count"), MlpSpec(size))
        return MlpSpec(size, has_bias=has_bias)

    def bindings(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Binding]:
        kind = checkpoint.kind
        return decoder_bindings(
            spec,
            checkpoint,
            NORMS[kind],
            is_rotary_interleaved=kind == "gguf" and self.is_gguf_rotary_interleaved,
            experts=self.expert_names,
            fused=self.fused_names.get(kind),
        )

    def ignored(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Ignored]:
        return decoder_ignored(spec, checkpoint.kind)

    def build(self, spec: ModelSpec, graph: Graph) -> None:
        decoder(graph, spec)


def config_rotary(fields: Fields, head_dim: int, max_position: int, part: float = 1.0) -> RotarySpec:
    """`rope_parameters` (new) or `rope_theta` with `rope_scaling` (old). part: of a head that is turned by default."""
    scaling = fields.table("rope_parameters") or fields.table("rope_scaling")
    theta_source = scaling if scaling is not None and scaling.has("rope_theta") else fields
    theta = theta_source.number("rope_theta", 10000.0, low=1, high=1e12)
    part_source = scaling if scaling is not None and scaling.has("partial_rotary_factor") else fields
    dim = int(head_dim * part_source.number("partial_rotary_factor", part, low=0, high=1))
    original = None
    if fields.has("original_max_position_embeddings"):  # where Phi-3 has it; it wins over the one in the table
        original = fields.integer("original_max_position_embeddings", low=2, high=MAX_CONTEXT)
    return rotary.from_fields(dim, theta, scaling, max_position, original)


def gguf_rotary(fields: Fields, checkpoint: CheckpointHeader, head_dim: int, max_position: int) -> RotarySpec:
    dim = fields.integer("rope.dimension_count", head_dim)
    theta = fields.number("rope.freq_base", 10000.0, low=1, high=1e12)
    if ROPE_FREQS in checkpoint.tensors:
        return RotarySpec(dim, rotary.divided(dim, theta, checkpoint.read_vector(ROPE_FREQS), ROPE_FREQS))
    attention_factor = fields.number("rope.scaling.attn_factor", 1.0, low=1e-3, high=1e3)
    if LONG_FACTORS in checkpoint.tensors:
        if SHORT_FACTORS not in checkpoint.tensors:
            raise CheckpointError(f"the file has `{LONG_FACTORS}` but no `{SHORT_FACTORS}`", "download it again")
        names = (SHORT_FACTORS, LONG_FACTORS)
        short, long = (rotary.divided(dim, theta, checkpoint.read_vector(name), name) for name in names)
        trained = fields.integer("rope.scaling.original_context_length", max_position, high=MAX_CONTEXT)
        return RotarySpec(dim, short, attention_factor, LongFactors(trained, long))
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none":
        return rotary.from_fields(dim, theta, None, max_position)
    described: dict[str, Any] = {"rope_type": kind}
    for key, name in _GGUF_SCALING.items():
        if fields.has(f"rope.scaling.{key}"):
            described[name] = fields.raw(f"rope.scaling.{key}")
    found = rotary.from_fields(dim, theta, Fields(described, "the GGUF header, rope.scaling"), max_position)
    return replace(found, attention_factor=found.attention_factor * attention_factor)


def gguf_vocab_size(checkpoint: CheckpointHeader) -> int:
    """Rows of the embedding: the header need not say it elsewhere."""
    table = checkpoint.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise UnsupportedModelError("the file has no matrix `token_embd.weight`", "it may hold only a vocabulary")
    return int(table.shape[0])


def decoder_ignored(spec: ModelSpec, kind: str) -> list[Ignored]:
    ignored = []
    if kind == "gguf":
        names = (ROPE_FREQS, SHORT_FACTORS, LONG_FACTORS)
        ignored += [Ignored(name, "already in the rotary frequencies") for name in names]
    else:
        ignored.append(Ignored("model.layers.*.self_attn.rotary_emb.inv_freq", "derived from the configuration"))
        if spec.is_head_tied:
            ignored.append(Ignored("lm_head.weight", "the head is tied to the embedding"))
    return ignored
