"""How a model's own files want its tokens chosen: a generation_config.json, or keys of a GGUF header."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.errors import CheckpointError, UsageError
from pelton.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

# Of generation_config.json, by our name for it.
_GENERATION_SETTINGS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
}
# Of GGUF metadata, likewise.
_GGUF_PREFIX = "general.sampling."
_GGUF_SETTINGS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_OFF = (0, -1)  # of those that are not read


def recommended_sampling(source: Mapping[str, Any] | Path, generation_config: Path | None) -> dict[str, Any]:
    """Fields of SamplingParams that the model's files recommend; a file beside a GGUF file has the last word.

    source: a GGUF file's metadata, or a directory. Raises CheckpointError if they recommend what can't be.
    """
    from_header = {} if isinstance(source, Path) else read_gguf_sampling(source)
    return from_header | read_generation_config(generation_config)


def read_gguf_sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling that GGUF metadata recommend; what Pelton can't do of it is told once.

    Raises CheckpointError if they recommend what can't be.
    """
    found: dict[str, Any] = {}
    for ours, theirs in _GGUF_SETTINGS.items():
        value = metadata.get(_GGUF_PREFIX + theirs)
        if value is not None:
            # Stored as float32, which holds seven digits of what was meant.
            found[ours] = float(f"{value:.7g}") if isinstance(value, float) else value
    try:
        SamplingParams(**found)
    except UsageError as error:
        raise CheckpointError(f"the GGUF header's `{_GGUF_PREFIX}*` can't be used: {error}") from error
    read = {_GGUF_PREFIX + theirs for theirs in _GGUF_SETTINGS.values()}
    others = [
        f"`{name}`"
        for name, value in metadata.items()
        if name.startswith(_GGUF_PREFIX) and name not in read and value not in _OFF
    ]
    if others:
        logger.warning("of the sampling that the file recommends, Pelton leaves out %s", ", ".join(others))
    return found


def read_generation_config(file: Path | None) -> dict[str, Any]:
    """The sampling that a generation_config.json recommends; empty without one.

    Raises CheckpointError if the file is malformed or recommends what can't be.
    """
    if file is None:
        return {}
    try:
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("not an object")
        found = {
            ours: content[theirs] for ours, theirs in _GENERATION_SETTINGS.items() if content.get(theirs) is not None
        }
        SamplingParams(**found)
    except (OSError, ValueError, RecursionError, UsageError) as error:
        raise CheckpointError(f"`{file}` can't be used: {error}", "correct or remove the file") from error
    return found
