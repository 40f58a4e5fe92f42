"""The chunks of streamed completions, as bytes; it knows the two dialects' shapes and nothing of what generates.

What does not change in a stream is written once: a chunk with nothing but text is a join of three byte strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from pelton.server.openai.documents import ChatLogprobs, CompletionLogprobs, Timings, Usage

Kind = Literal["chat.completion.chunk", "text_completion"]
_encode = msgspec.json.encode


class ChunkWriter:
    """Chunks of one response; all have the same id, time and model.

    tells_usage: chunks have a `usage`, null until there is something to tell.
    """

    def __init__(
        self, kind: Kind, response_id: str, created: int, model: str, *, num_choices: int, tells_usage: bool
    ) -> None:
        head = {"id": response_id, "object": kind, "created": created, "model": model}
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._is_chat = kind == "chat.completion.chunk"
        self._tells_usage = tells_usage
        before = b'{"index":%d,"delta":{"content":' if self._is_chat else b'{"index":%d,"text":'
        self._before_text = [self._head + before % index for index in range(num_choices)]
        self._after_text = (b"}" if self._is_chat else b"") + b',"finish_reason":null}' + self._end()

    def role(self, index: int, prompt_token_ids: Sequence[int] | None = None) -> bytes:
        """The first chunk of a chat's choice."""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        extra = {} if prompt_token_ids is None else {"prompt_token_ids": prompt_token_ids}
        return self._head + _encode(choice) + self._end(extra=extra)

    def text(
        self,
        index: int,
        text: str,
        *,
        logprobs: ChatLogprobs | CompletionLogprobs | None = None,
        token_ids: Sequence[int] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        if logprobs is None and token_ids is None and prompt_token_ids is None and usage is None:
            return self._before_text[index] + _encode(text) + self._after_text
        delta = {"content": text} if text else {}
        choice: dict[str, Any] = {"index": index, **({"delta": delta} if self._is_chat else {"text": text})}
        found = {"logprobs": logprobs, "token_ids": token_ids, "prompt_token_ids": prompt_token_ids}
        choice.update((name, value) for name, value in found.items() if value is not None)
        choice["finish_reason"] = None
        return self._head + _encode(choice) + self._end(usage)

    def finish(self, index: int, reason: str, stop_reason: int | str | None, usage: Usage | None = None) -> bytes:
        """The last chunk of a choice."""
        choice: dict[str, Any] = {"index": index, **({"delta": {}} if self._is_chat else {"text": ""})}
        choice["finish_reason"] = reason
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        return self._head + _encode(choice) + self._end(usage)

    def last(self, *, usage: Usage | None, timings: Timings | None) -> bytes:
        """After all choices: a chunk without any."""
        return self._head + self._end(usage, {} if timings is None else {"timings": timings})

    def _end(self, usage: Usage | None = None, extra: dict[str, Any] | None = None) -> bytes:
        rest = dict(extra or {})
        if self._tells_usage:
            rest["usage"] = usage
        return b"]" + (b"," + _encode(rest)[1:] if rest else b"}") + b"\n\n"
