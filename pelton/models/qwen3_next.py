"""Qwen3-Next: Qwen3.5's layers and experts, with the projections of Gated DeltaNet in joint tensors."""

from __future__ import annotations

from typing import ClassVar

from pelton.models.fields import Fields
from pelton.models.qwen3_5_moe import Qwen3_5MoeText, config_experts
from pelton.models.spec import MlpSpec, MoeSpec


class Qwen3Next(Qwen3_5MoeText):
    name = "qwen3_next"
    title = "Qwen3-Next"
    config_names = ("Qwen3NextForCausalLM",)
    gguf_names = ("qwen3next",)
    stored_as: ClassVar[tuple[str, ...]] = ()
    is_gguf_tiled = False
    has_joint_projections = True

    def config_feed_forwards(self, fields: Fields, num_layers: int) -> tuple[MlpSpec | MoeSpec, ...]:
        dense, experts = MlpSpec(fields.integer("intermediate_size")), config_experts(fields)
        step = fields.integer("decoder_sparse_step", 1)
        dense_layers = fields.integers("mlp_only_layers")
        return tuple(dense if index in dense_layers or (index + 1) % step else experts for index in range(num_layers))
