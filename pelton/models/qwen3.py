"""Qwen3 dense: Llama's block with a norm on each head's queries and keys, and head_dim of its own."""

from __future__ import annotations

from pelton.errors import UnsupportedModelError
from pelton.models.architecture import CheckpointHeader
from pelton.models.llama import Llama
from pelton.models.spec import ModelSpec


class Qwen3(Llama):
    name = "qwen3"
    title = "Qwen3"
    config_names = ("Qwen3ForCausalLM",)
    gguf_names = ("qwen3",)
    has_qk_norm = True
    is_gguf_rotary_interleaved = False

    def _spec_from_config(self, checkpoint: CheckpointHeader) -> ModelSpec:
        if checkpoint.metadata.get("use_sliding_window"):
            raise UnsupportedModelError("`use_sliding_window` is true; no released Qwen3 model has it")
        return super()._spec_from_config(checkpoint)
