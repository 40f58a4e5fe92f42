"""Which format a checkpoint's tensors have, and which ways of quantising a config announces. Reads no files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pelton.errors import UnsupportedModelError
from pelton.quant.gguf_types import GGUF_SCHEMES
from pelton.quant.scheme import Scheme

OTHER_FORMATS = "use a GGUF version of the model, or its unquantised safetensors"


def scheme_of(format: str, tensor: str) -> Scheme:
    """The scheme of a stored format. tensor: named in the error.

    Raises UnsupportedModelError for a format that Pelton recognises at most by name.
    """
    scheme = GGUF_SCHEMES.get(format)
    if scheme is None or scheme.unpack_blocks is None:
        raise UnsupportedModelError(
            f"tensor `{tensor}` is stored as `{format}`, which Pelton does not read",
            hint=OTHER_FORMATS,
        )
    return scheme


def refuse_quantised(config: Mapping[str, Any], where: str) -> None:
    """Raises UnsupportedModelError, which names the method, if a config.json says that the weights are quantised.

    A text model inside a larger one says so in its own part.
    """
    for part in (config, config.get("text_config")):
        quantisation = part.get("quantization_config") if isinstance(part, Mapping) else None
        if quantisation is not None:
            method = quantisation.get("quant_method") if isinstance(quantisation, Mapping) else quantisation
            raise UnsupportedModelError(
                f"`{where}` is quantised with quant_method `{method}`, which Pelton does not read yet",
                hint=OTHER_FORMATS,
            )
