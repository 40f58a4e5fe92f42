"""Mixtral: Mistral's block with a mixture of experts for the MLP. As GGUF it is called `llama`."""

from __future__ import annotations

from typing import ClassVar

from pelton.models.fields import Fields
from pelton.models.mistral import Mistral
from pelton.models.names import ExpertNames
from pelton.models.spec import MlpSpec, MoeSpec


class Mixtral(Mistral):
    name = "mixtral"
    title = "Mixtral"
    config_names = ("MixtralForCausalLM",)
    expert_names: ClassVar[ExpertNames] = ExpertNames(
        router="block_sparse_moe.gate", experts="block_sparse_moe.experts", gate="w1", up="w3", down="w2"
    )

    def config_feed_forwards(self, fields: Fields, num_layers: int) -> tuple[MlpSpec | MoeSpec, ...]:
        experts = MoeSpec(
            num_experts=fields.integer("num_local_experts"),
            num_chosen=fields.integer("num_experts_per_tok"),
            expert=MlpSpec(fields.integer("intermediate_size")),
        )
        return (experts,) * num_layers
