"""SmolLM3: Llama's block without positions in every fourth layer (arXiv:2501.18795)."""

from __future__ import annotations

from msgspec.structs import replace

from pelton.errors import UnsupportedModelError
from pelton.models.architecture import CheckpointHeader
from pelton.models.fields import Fields
from pelton.models.llama import Llama
from pelton.models.spec import AttentionSpec, ModelSpec

INTERVAL = 4  # of layers without rotary embedding where the file does not list them


class SmolLm3(Llama):
    name = "smollm3"
    title = "SmolLM3"
    config_names = ("SmolLM3ForCausalLM",)
    gguf_names = ("smollm3",)

    def _spec_from_config(self, checkpoint: CheckpointHeader) -> ModelSpec:
        fields = Fields(checkpoint.metadata, "config.json")
        if fields.flag("use_sliding_window", False):
            raise UnsupportedModelError("`use_sliding_window` is true; no released SmolLM3 model has it")
        spec = super()._spec_from_config(checkpoint)
        interval = fields.integer("no_rope_layer_interval", INTERVAL)
        listed = fields.integers("no_rope_layers", length=len(spec.layers))  # 1 where the layer has positions
        has_positions = [bool(flag) for flag in listed] if listed else None
        return _without_positions(spec, has_positions or _every(interval, len(spec.layers)))

    def _spec_from_gguf(self, checkpoint: CheckpointHeader) -> ModelSpec:
        spec = super()._spec_from_gguf(checkpoint)
        return _without_positions(spec, _every(INTERVAL, len(spec.layers)))


def _every(interval: int, num_layers: int) -> list[bool]:
    return [(index + 1) % interval != 0 for index in range(num_layers)]


def _without_positions(spec: ModelSpec, has_positions: list[bool]) -> ModelSpec:
    layers = []
    for layer, keeps in zip(spec.layers, has_positions, strict=True):
        assert isinstance(layer.mixer, AttentionSpec), "every layer has attention"
        layers.append(layer if keeps else replace(layer, mixer=replace(layer.mixer, rotary=None)))
    return replace(spec, layers=tuple(layers))
