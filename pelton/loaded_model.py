"""A model that can answer: its engine, tokenizer, chat template and generation settings, loaded together.

What its program is made of is runner/assembly.py's.
"""

from __future__ import annotations

import json
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

# Of generation_config.json, by our name for it.
_GENERATION_SETTINGS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_tokens": "max_new_tokens",
}


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
    generation = read_generation_config(checkpoint.sidecars.get("generation_config.json"))
    runner = prepared.load()
    # An end that the model has no row for can't be drawn.
    ends = sorted(token_id for token_id in tokenizer.eog_token_ids if token_id < prepared.spec.vocab_size)
    engine = Engine(runner, prepared.plan.limits, tuple(ends))
    return LoadedModel(prepared.name, engine, tokenizer, chat_template, prepared.plan, generation)


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
