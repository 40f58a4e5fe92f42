"""From log-probabilities to the JSON of the two kinds of completion; it knows outputs and a tokenizer's spelling.

A token that is not whole UTF-8 is written `bytes:\\xe2\\x80`, as OpenAI writes it, so that different tokens rarely look
alike. JSON has no infinities: a token that could not come has the log-probability -9999.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from pelton.outputs import Logprob, PositionLogprobs
from pelton.server.openai.documents import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from pelton.text.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0


def token_name(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def finite(logprob: float) -> float:
    """Not less than LEAST_LOGPROB. Anything else is the very same float: clients compare by equality."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def chat_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs], num_top: int, tokenizer: Tokenizer
) -> ChatLogprobs:
    """One entry per token. top_logprobs: the num_top most likely, with or without the chosen one."""
    content = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        data = tokenizer.token_bytes(token_id)
        top = []
        for other_id, other in _most_likely(entry, num_top):
            other_data = tokenizer.token_bytes(other_id)
            top.append(TopLogprob(token_name(other_data), finite(other.logprob), list(other_data)))
        content.append(TokenLogprob(token_name(data), finite(entry[token_id].logprob), list(data), top))
    return ChatLogprobs(content)


def prompt_logprobs(told: Sequence[PositionLogprobs | None]) -> PromptLogprobs:
    """vLLM's shape: per token of the prompt, token id -> what it would have been; null for the first."""
    return [
        None
        if entry is None
        else {
            str(token_id): PromptLogprob(finite(each.logprob), each.rank, each.decoded_token)
            for token_id, each in entry.items()
        }
        for entry in told
    ]


class CompletionLogprobsWriter:
    """Legacy log-probabilities of one choice, in pieces; it keeps count of the text that the tokens make up.

    text_offset is where a token's text starts in the choice's text, prompt included if it is echoed. A token that only
    completes a character starts where that character does.
    """

    def __init__(self, num_top: int, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._num_top = num_top
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def echo(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[PositionLogprobs | None],
        num_unspelled: int,
        num_characters: int,
    ) -> CompletionLogprobs:
        """Of the prompt. num_unspelled: first tokens that its text does not spell (BOS). num_characters: its text's."""
        found = CompletionLogprobs([], [], [], [])
        for position, (token_id, entry) in enumerate(zip(token_ids, logprobs, strict=True)):
            self._add(found, token_id, entry, is_spelled=position >= num_unspelled)
        self._offset = num_characters
        self._decoder.reset()
        return found

    def write(self, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]) -> CompletionLogprobs:
        found = CompletionLogprobs([], [], [], [])
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            is_spelled = not (self._skip_special and self._tokenizer.is_control(token_id))
            self._add(found, token_id, entry, is_spelled=is_spelled)
        return found

    def _add(
        self, found: CompletionLogprobs, token_id: int, entry: PositionLogprobs | None, *, is_spelled: bool
    ) -> None:
        data = self._tokenizer.token_bytes(token_id)
        found.tokens.append(token_name(data))
        found.text_offset.append(self._offset)
        if entry is None:
            found.token_logprobs.append(None)
            found.top_logprobs.append(None)
        else:
            found.token_logprobs.append(finite(entry[token_id].logprob))
            found.top_logprobs.append(self._top(token_id, entry))
        if is_spelled:
            self._offset += len(self._decoder.decode(data))

    def _top(self, token_id: int, entry: PositionLogprobs) -> dict[str, float]:
        """The most likely tokens and the chosen one by name. Of two that are spelled alike the likelier one counts."""
        top: dict[str, float] = {}
        for other_id, other in [*_most_likely(entry, self._num_top), (token_id, entry[token_id])]:
            name = token_name(self._tokenizer.token_bytes(other_id))
            top[name] = max(finite(other.logprob), top.get(name, LEAST_LOGPROB))
        return top


def _most_likely(entry: PositionLogprobs, num_top: int) -> list[tuple[int, Logprob]]:
    return sorted(entry.items(), key=lambda item: item[1].rank)[:num_top]
