"""The text side of a model: prompts become token ids here. It knows no engine and reads no weights.

It is loaded from a checkpoint's header alone, so that a process which only speaks to an engine has no more than this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from pelton.errors import ChatTemplateError, UsageError
from pelton.recommended_sampling import recommended_sampling

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

_TEMPLATE_ARGUMENTS = {"self", "messages", "tools", "add_generation_prompt", "continue_final_message", "max_bytes"}


class TextModel(msgspec.Struct, frozen=True):
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
        if not is_list(prompt):
            raise UsageError(f"a prompt is a text or a list of token ids, not `{type(prompt).__name__}`")
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int):
                raise UsageError(f"a prompt as token ids has `{token!r}`, which is not one")
        return None, list(prompt)

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
        if not is_list(messages) or not all(isinstance(message, Mapping) for message in messages):
            raise UsageError("`messages` is a list of dicts with `role` and `content`")
        if not isinstance(chat_template_kwargs, Mapping | None):
            raise UsageError(f"`chat_template_kwargs` is a dict, not `{type(chat_template_kwargs).__name__}`")
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
    sampling = recommended_sampling(source, generation_config)
    return TextModel(name, tokenizer, load_chat_template(source, tokenizer), sampling)


def is_list(value: object) -> bool:
    """A list or tuple of anything; a text is none."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
