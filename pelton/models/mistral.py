"""Mistral: Llama's block, in some versions with a sliding window on every layer. As GGUF it is called `llama`."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from pelton.models.architecture import CheckpointHeader
from pelton.models.fields import MAX_CONTEXT, Fields
from pelton.models.llama import Llama
from pelton.models.spec import AttentionSpec, ModelSpec


class Mistral(Llama):
    name = "mistral"
    title = "Mistral"
    config_names = ("MistralForCausalLM",)
    gguf_names: ClassVar[tuple[str, ...]] = ()
    stored_as: ClassVar[tuple[str, ...]] = ("llama",)

    def _spec_from_config(self, checkpoint: CheckpointHeader) -> ModelSpec:
        spec = super()._spec_from_config(checkpoint)
        return with_window(spec, Fields(checkpoint.metadata, "config.json"))


def with_window(spec: ModelSpec, fields: Fields) -> ModelSpec:
    """The same with the file's `sliding_window` on every layer, if it has one."""
    if not fields.raw("sliding_window"):
        return spec
    window = fields.integer("sliding_window", high=MAX_CONTEXT)
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, window=window)) if isinstance(layer.mixer, AttentionSpec) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)
