"""Granite, dense: Llama's block with four multipliers, none of which takes an operation.

    embedding   x = embedding_multiplier E[token]                 the embedding's own scale
    attention   softmax(attention_multiplier q k)                 the attention's own scale
    residual    x = x + residual_multiplier f(norm(x))            below
    logits      logits = W norm(x) / logits_scaling               the weights of the last norm, divided as they are read

With y = x / residual_multiplier the residual is y = y + f(norm(x)), and norm(x), with its epsilon, is norm(y) with
epsilon / residual_multiplier^2. So the stream is kept as y: the embedding's scale is divided, and the epsilons are.
"""

from __future__ import annotations

from msgspec.structs import replace

from pelton.models.architecture import CheckpointHeader
from pelton.models.fields import Fields
from pelton.models.llama import Llama
from pelton.models.spec import AttentionSpec, ModelSpec

# embedding, attention, residual, logits
_CONFIG = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
_GGUF = ("embedding_scale", "attention.scale", "residual_scale", "logit_scale")


class Granite(Llama):
    name = "granite"
    title = "Granite, dense"
    config_names = ("GraniteForCausalLM",)
    gguf_names = ("granite",)

    def spec(self, checkpoint: CheckpointHeader) -> ModelSpec:
        embedding, attention, residual, logits = _multipliers(checkpoint)
        spec = super().spec(checkpoint)
        layers = tuple(
            replace(layer, mixer=replace(layer.mixer, scale=attention or layer.mixer.scale))
            if isinstance(layer.mixer, AttentionSpec)
            else layer
            for layer in spec.layers
        )
        return replace(
            spec,
            layers=layers,
            norm_eps=spec.norm_eps / residual**2,
            embedding_scale=embedding / residual,
            last_norm_factor=1.0 / logits,
        )


def _multipliers(checkpoint: CheckpointHeader) -> tuple[float, float, float, float]:
    """Of embedding, attention (0.0 where the file leaves it to the usual one), residual and logits."""
    is_gguf = checkpoint.kind == "gguf"
    source, prefix = ("the GGUF header", "granite.") if is_gguf else ("config.json", "")
    fields = Fields(checkpoint.metadata, source, prefix)
    embedding, attention, residual, logits = _GGUF if is_gguf else _CONFIG
    return (
        fields.number(embedding, 1.0, low=1e-6, high=1e6),
        fields.number(attention, 0.0 if is_gguf else 1.0, low=0.0, high=1e6),
        fields.number(residual, 1.0, low=1e-6, high=1e6),
        fields.number(logits, 1.0, low=1e-6, high=1e6),
    )
