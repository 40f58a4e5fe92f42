"""Phi-3 and Phi-4: Mistral's block with q, k and v in one tensor, and gate and up in another."""

from __future__ import annotations

from typing import ClassVar

from pelton.models.architecture import CheckpointHeader
from pelton.models.fields import Fields
from pelton.models.mistral import Mistral, with_window
from pelton.models.names import FusedNames
from pelton.models.spec import ModelSpec


class Phi3(Mistral):
    name = "phi3"
    title = "Phi-3, Phi-4"
    config_names = ("Phi3ForCausalLM",)
    gguf_names = ("phi3",)
    stored_as: ClassVar[tuple[str, ...]] = ()
    is_gguf_rotary_interleaved = False
    fused_names: ClassVar[dict[str, FusedNames]] = {
        "gguf": FusedNames("attn_qkv", "ffn_up"),
        "safetensors": FusedNames("self_attn.qkv_proj", "mlp.gate_up_proj"),
    }

    def _spec_from_gguf(self, checkpoint: CheckpointHeader) -> ModelSpec:
        spec = super()._spec_from_gguf(checkpoint)
        return with_window(spec, Fields(checkpoint.metadata, "the GGUF header", "phi3.attention."))
