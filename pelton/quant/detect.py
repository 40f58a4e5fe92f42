"""Which format a checkpoint's tensors have, and which ways of quantising a config announces. Reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pelton.errors import UnsupportedModelError
from pelton.quant.gguf_types import GGUF_SCHEMES
from pelton.quant.scheme import Scheme

# Files beside safetensors that announce a quantisation outside config.json.
QUANTISATION_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")


def scheme_of(format: str, tensor: str) -> Scheme:
    """The scheme of a stored format. tensor: named in the error.

    Raises UnsupportedModelError for a format that Pelton recognises at most by name.
    """
    scheme = GGUF_SCHEMES.get(format)
    if scheme is None or scheme.unpack_blocks is None:
        raise UnsupportedModelError(
            f"tensor `{tensor}` is stored as `{format}`, which Pelton does not read",
            hint="use a version of the model in another format, such as Q4_K_M, Q8_0 or bfloat16",
        )
    return scheme


def announced_method(config: Mapping[str, Any]) -> str | None:
    """The quant_method of a config.json, also of a text model inside a larger one; None if it announces none."""
    for part in (config, config.get("text_config")):
        quantisation = part.get("quantization_config") if isinstance(part, Mapping) else None
        if quantisation is not None:
            method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else None
            return str(method) if method is not None else "unnamed"
    return None
