"""A model that can answer: its engine, tokenizer, chat template and generation settings, loaded together.

What its program is made of is runner/assembly.py's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.config import Settings
from pelton.engine.engine import Engine
from pelton.errors import CheckpointError, UsageError
from pelton.plan import Plan
from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.text.chat_template import ChatTemplate
    from pelton.text.tokenizer import Tokenizer
    from pelton.weights.checkpoint import Checkpoint

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


@dataclass(frozen=True)
class LoadedModel:
    """name: as it was asked for. sampling_defaults: fields of SamplingParams that the model's files recommend."""

    name: str
    engine: Engine
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    plan: Plan
    sampling_defaults: Mapping[str, Any]

    def close(self) -> None:
        """Gives the memory back."""
        self.engine.close()


def load_model(settings: Settings) -> LoadedModel:
    """Finds, plans and loads. Raises ModelError, DownloadError, MemoryPlanError or UsageError."""
    from pelton.runner.assembly import prepare
    from pelton.text.chat_template import load_chat_template
    from pelton.text.tokenizer import load_tokenizer

    prepared = prepare(settings)
    checkpoint = prepared.checkpoint
    source = checkpoint.metadata if checkpoint.kind == "gguf" else checkpoint.files[0].parent
    tokenizer = load_tokenizer(source)
    tokenizer.check_vocab_size(prepared.spec.vocab_size)
    chat_template = load_chat_template(source, tokenizer)
    generation = recommended_sampling(checkpoint)
    runner = prepared.load()
    # An end that the model has no row for can't be drawn.
    ends = sorted(token_id for token_id in tokenizer.eog_token_ids if token_id < prepared.spec.vocab_size)
    engine = Engine(runner, prepared.plan.limits, tuple(ends))
    return LoadedModel(prepared.name, engine, tokenizer, chat_template, prepared.plan, generation)


def recommended_sampling(checkpoint: Checkpoint) -> dict[str, Any]:
    """Fields of SamplingParams that the model's files recommend. Raises CheckpointError if they can't be."""
    if checkpoint.kind == "gguf":
        return read_gguf_sampling(checkpoint.metadata)
    return read_generation_config(checkpoint.sidecars.get("generation_config.json"))


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
