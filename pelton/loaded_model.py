"""A model that can answer: its engine, tokenizer, chat template and generation settings, loaded together.

What its program is made of is runner/assembly.py's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pelton.config import Settings
from pelton.engine.engine import Engine
from pelton.errors import CheckpointError, UsageError
from pelton.plan import Plan
from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.text.chat_template import ChatTemplate
    from pelton.text.tokenizer import Tokenizer
    from pelton.weights.checkpoint import Checkpoint

Result = TypeVar("Result")

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

    prepared = prepare(settings)
    checkpoint = prepared.checkpoint
    generation = read_generation_config(checkpoint.sidecars.get("generation_config.json"))
    # Reading weights keeps the cores busy without the interpreter: what text needs is made beside it.
    text = _Task(lambda: _load_text(checkpoint, prepared.spec.vocab_size))
    try:
        runner = prepared.load()
    finally:
        text.wait()
    try:
        tokenizer, chat_template = text.result()
    except BaseException:
        runner.close()
        raise
    # An end that the model has no row for can't be drawn.
    ends = sorted(token_id for token_id in tokenizer.eog_token_ids if token_id < prepared.spec.vocab_size)
    engine = Engine(runner, prepared.plan.limits, tuple(ends))
    return LoadedModel(prepared.name, engine, tokenizer, chat_template, prepared.plan, generation)


def _load_text(checkpoint: Checkpoint, vocab_size: int) -> tuple[Tokenizer, ChatTemplate | None]:
    from pelton.text.chat_template import load_chat_template
    from pelton.text.tokenizer import load_tokenizer

    source = checkpoint.metadata if checkpoint.kind == "gguf" else checkpoint.files[0].parent
    tokenizer = load_tokenizer(source)
    tokenizer.check_vocab_size(vocab_size)
    return tokenizer, load_chat_template(source, tokenizer)


class _Task(Generic[Result]):
    """Work in a thread of its own, begun at once. What it raises comes out of `result`."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pelton-text", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001  whoever asks for the result gets it
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> Result:
        self.wait()
        if self._error is not None:
            raise self._error
        return cast(Result, self._result)


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
