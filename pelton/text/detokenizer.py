"""Turns tokens into text as they come, never half a character; it does not know where a generation stops."""

from __future__ import annotations

import codecs

from pelton.text.tokenizer import Tokenizer


class Detokenizer:
    """The text of one growing sequence: what `push` and `finish` return, joined, is `Tokenizer.decode` of all tokens.

    A token may end within a character. Its bytes wait for the rest; what can't become a character any more is U+FFFD,
    at the same place as in the whole text. Each token costs time in its own bytes only.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, at_start: bool = False) -> None:
        """at_start: the tokens are a whole text, not the rest of one (see `Tokenizer.decode`)."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._drop_space = at_start and tokenizer.strips_leading_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty."""
        if self._skip_special and self._tokenizer.is_control(token_id):
            return ""
        return self._without_first_space(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """The text of bytes that still wait: U+FFFD, or nothing. The sequence is over."""
        return self._without_first_space(self._decoder.decode(b"", final=True))

    def _without_first_space(self, text: str) -> str:
        if text and self._drop_space:
            self._drop_space = False
            return text.removeprefix(" ")
        return text
