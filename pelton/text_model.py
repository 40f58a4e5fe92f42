"""The text side of a model: prompts become token ids here. It knows no engine and reads no weights.

It is loaded from a checkpoint's header alone, so that a process which only speaks to an engine has no more than this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from pelton.errors import ChatTemplateError, CheckpointError, UsageError
from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.text.chat_template import ChatTemplate
    from pelton.text.tokenizer import Tokenizer
    from pelton.weights.checkpoint import Checkpoint


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


class TextPrompt(TypedDict):
    prompt: str


Prompt = str | list[int] | TokensPrompt | TextPrompt
Message = Mapping[str, Any]

_TEMPLATE_ARGUMENTS = {"messages", "tools", "add_generation_prompt", "continue_final_message", "max_bytes"}

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
class TextModel:
    """name: as it was asked for. sampling_defaults: fields of SamplingParams that the model's files recommend."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    sampling_defaults: Mapping[str, Any]

    def end_token_ids(self, vocab_size: int) -> tuple[int, ...]:
        """The tokens that end an answer. One that the model has no row for can't be drawn."""
        return tuple(sorted(token_id for token_id in self.tokenizer.eog_token_ids if token_id < vocab_size))

    def encode(self, prompt: Any, *, max_bytes: int | None = None) -> tuple[str | None, list[int]]:
        """(text if the prompt was one, token ids).

        max_bytes: refuse longer text with ContextLengthError before any work is done. Raises UsageError for what is no
        prompt.
        """
        if isinstance(prompt, Mapping):
            given = dict(prompt)
            if len(given) != 1 or not given.keys() <= {"prompt", "prompt_token_ids"}:
                raise UsageError("a prompt as a dict has one key: `prompt` or `prompt_token_ids`")
            (prompt,) = given.values()
        if isinstance(prompt, str):
            return prompt, self.tokenizer.encode(prompt, parse_special=True, max_bytes=max_bytes)
        token_ids = list(prompt)
        if any(isinstance(token, bool) or not isinstance(token, int) for token in token_ids):
            raise UsageError("a prompt is a text or a list of token ids")
        return None, token_ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_bytes: int | None = None,
    ) -> tuple[str, list[int]]:
        """(text as the model's template writes it, token ids).

        max_bytes: as `encode`, of the text that the template wrote. Raises ChatTemplateError if the model has no
        template or it refuses the messages, UsageError for template arguments that are not the caller's to give.
        """
        if self.chat_template is None:
            raise ChatTemplateError(
                f"`{self.name}` has no chat template: it continues texts, it does not converse",
                "use `generate`, or take an instruction-tuned model",
            )
        variables = dict(chat_template_kwargs or {})
        reserved = _TEMPLATE_ARGUMENTS & variables.keys()
        if reserved:
            raise UsageError(f"`chat_template_kwargs` can't set `{min(reserved)}`", "it has an argument of its own")
        return self.chat_template.encode(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            max_bytes=max_bytes,
            **variables,
        )


def load_text_model(name: str, checkpoint: Checkpoint) -> TextModel:
    """Reads no more than the header. Raises ModelError of some kind."""
    source = checkpoint.metadata if checkpoint.kind == "gguf" else checkpoint.files[0].parent
    return text_model_from(name, source, checkpoint.sidecars.get("generation_config.json"))


def text_model_from(name: str, source: Mapping[str, object] | Path, generation_config: Path | None) -> TextModel:
    """source: a GGUF file's metadata, or a directory with a `tokenizer.json`. Raises as load_text_model."""
    from pelton.text.chat_template import load_chat_template
    from pelton.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(source)
    return TextModel(name, tokenizer, load_chat_template(source, tokenizer), read_generation_config(generation_config))


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
