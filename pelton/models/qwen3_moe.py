"""Qwen3's mixtures of experts: its block, with experts in place of the MLP in all layers or some."""

from __future__ import annotations

from pelton.models.fields import Fields
from pelton.models.qwen3 import Qwen3
from pelton.models.spec import MlpSpec, MoeSpec


class Qwen3Moe(Qwen3):
    name = "qwen3_moe"
    title = "Qwen3, mixture of experts"
    config_names = ("Qwen3MoeForCausalLM",)
    gguf_names = ("qwen3moe",)

    def config_feed_forwards(self, fields: Fields, num_layers: int) -> tuple[MlpSpec | MoeSpec, ...]:
        dense = MlpSpec(fields.integer("intermediate_size"))
        experts = MoeSpec(
            num_experts=fields.integer("num_experts" if fields.has("num_experts") else "num_local_experts"),
            num_chosen=fields.integer("num_experts_per_tok"),
            expert=MlpSpec(fields.integer("moe_intermediate_size")),
            is_normalised=fields.flag("norm_topk_prob", False),
        )
        step = fields.integer("decoder_sparse_step", 1)
        dense_layers = fields.integers("mlp_only_layers")
        return tuple(dense if index in dense_layers or (index + 1) % step else experts for index in range(num_layers))

    def gguf_feed_forward(self, fields: Fields, has_bias: bool) -> MlpSpec | MoeSpec:
        return MoeSpec(
            num_experts=fields.integer("expert_count"),
            num_chosen=fields.integer("expert_used_count"),
            expert=MlpSpec(fields.integer("expert_feed_forward_length")),
            is_normalised=fields.flag("expert_weights_norm", True),
        )
