"""Qwen2 and Qwen2.5: Llama's block with biases on queries, keys and values."""

from __future__ import annotations

from pelton.errors import UnsupportedModelError
from pelton.models.architecture import CheckpointHeader
from pelton.models.llama import Llama
from pelton.models.spec import ModelSpec


class Qwen2(Llama):
    name = "qwen2"
    title = "Qwen2, Qwen2.5"
    config_names = ("Qwen2ForCausalLM",)
    gguf_names = ("qwen2",)
    has_qkv_bias = True
    is_gguf_rotary_interleaved = False

    def _spec_from_config(self, checkpoint: CheckpointHeader) -> ModelSpec:
        if checkpoint.metadata.get("use_sliding_window"):
            raise UnsupportedModelError("`use_sliding_window` is true; no released Qwen2 model has it")
        return super()._spec_from_config(checkpoint)
