"""Qwen3.5's mixtures of experts: its layers, with experts and one that every token takes in place of the MLP."""

from __future__ import annotations

from typing import ClassVar

from pelton.models.fields import Fields
from pelton.models.qwen3_5 import Qwen3_5Text
from pelton.models.spec import MlpSpec, MoeSpec


class Qwen3_5MoeText(Qwen3_5Text):
    name = "qwen3_5_moe_text"
    title = "Qwen3.5, mixture of experts, text"
    config_names = ("Qwen3_5MoeForCausalLM",)
    stored_as: ClassVar[tuple[str, ...]] = ("qwen35moe",)

    def config_feed_forwards(self, fields: Fields, num_layers: int) -> tuple[MlpSpec | MoeSpec, ...]:
        return (config_experts(fields),) * num_layers

    def gguf_feed_forward(self, fields: Fields) -> MlpSpec | MoeSpec:
        return MoeSpec(
            num_experts=fields.integer("expert_count"),
            num_chosen=fields.integer("expert_used_count"),
            expert=MlpSpec(fields.integer("expert_feed_forward_length")),
            is_normalised=fields.flag("expert_weights_norm", True),
            shared=MlpSpec(fields.integer("expert_shared_feed_forward_length")),
            has_shared_gate=True,
        )


class Qwen3_5Moe(Qwen3_5MoeText):
    """The text part of a model that also sees."""

    name = "qwen3_5_moe"
    config_names = ("Qwen3_5MoeForConditionalGeneration",)
    gguf_names = ("qwen35moe",)
    root = "model.language_model"


def config_experts(fields: Fields) -> MoeSpec:
    return MoeSpec(
        num_experts=fields.integer("num_experts"),
        num_chosen=fields.integer("num_experts_per_tok"),
        expert=MlpSpec(fields.integer("moe_intermediate_size")),
        is_normalised=fields.flag("norm_topk_prob", True),
        shared=MlpSpec(fields.integer("shared_expert_intermediate_size")),
        has_shared_gate=True,
    )
