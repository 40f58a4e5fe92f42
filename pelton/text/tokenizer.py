"""Text to token ids and back for one vocabulary; it knows no model and no file format.

Three kinds of token matter here. *Control* tokens (`<|im_end|>`) steer the model: they are read from text only where
the caller says that the text is a template's, and are left out of decoded text unless asked for. *User-defined* tokens
(`<think>`, runs of spaces) are ordinary text that is always one token. All others come out of the merges.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec

from pelton.errors import ContextLengthError, PeltonError, RequestError, TokenizerError

logger = logging.getLogger(__name__)

SPACE_MARK = "\u2581"


class PieceStyle(Enum):
    """How the text of an ordinary token spells its bytes."""

    BYTE_CHARACTERS = "GPT-2's printable stand-ins for the 256 bytes"
    SPACE_MARKS = "UTF-8 with U+2581 for a space, and `<0xNN>` for a lone byte"
    WORD_PARTS = "WordPiece: `##` continues the word before, anything else starts one"


class TokenizerFacts(msgspec.Struct, frozen=True):
    """What a checkpoint says about its tokenizer beside the vocabulary.

    eog_token_ids:    tokens that end a generation (EOS, end of turn, end of message).
    byte_token_ids:   ids of `<0xNN>` tokens -> the byte.
    lost_bytes:       bytes that no token spells: text loses them.
    add_space_prefix: the vocabulary was made for text that starts with a space; a whole text loses it when decoded.
    unverified:       why the token ids may differ from the model's own tokenizer, or None.
    """

    style: PieceStyle
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    eog_token_ids: frozenset[int] = frozenset()
    byte_token_ids: Mapping[int, int] = msgspec.field(default_factory=dict)
    lost_bytes: bytes = b""
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    unverified: str | None = None


class Backend(Protocol):
    """What makes token ids of text, and may be asked from several threads at once.

    native:       whether Pelton's own tokenizer does it, or the `tokenizers` library.
    added_tokens: id of each control (True) and user-defined (False) token.
    """

    @property
    def native(self) -> bool: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def added_tokens(self) -> Mapping[int, bool]: ...
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def token(self, token_id: int) -> str | None:
        """As the vocabulary spells it; None for an id that is not in it."""


class Tokenizer:
    """One vocabulary, ready to use. Safe to call from several threads; encoding releases the GIL."""

    def __init__(self, backend: Backend, facts: TokenizerFacts) -> None:
        self._backend = backend
        self.facts = facts
        self.vocab_size = backend.num_tokens
        self.bos_token_id = facts.bos_token_id
        self.eos_token_id = facts.eos_token_id
        self.pad_token_id = facts.pad_token_id
        self.eog_token_ids = facts.eog_token_ids
        self.add_bos = facts.add_bos
        self.add_eos = facts.add_eos
        self.unverified = facts.unverified
        self._bytes_of: dict[int, bytes] = {}
        self._loss_told = False
        if not backend.native:
            logger.info("the `tokenizers` library makes the token ids: there is no native tokenizer of this kind yet")

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """Text of every control token -> its id."""
        return {self.token_text(token_id): token_id for token_id in self._control_ids}

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(token_id for token_id, is_control in self._backend.added_tokens.items() if is_control)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, max_bytes: int | None = None
    ) -> list[int]:
        """Token ids of a text.

        add_special:   add BOS and EOS as the checkpoint wants it.
        parse_special: read control tokens that the text spells; False (for text of users) keeps them text.
        max_bytes:     refuse longer text (UTF-8 bytes) with ContextLengthError before any work is done.
        Raises RequestError for text that is not valid Unicode (a lone surrogate).
        """
        data = utf8_of(text, max_bytes)
        if self.facts.lost_bytes and not self._loss_told:
            self._tell_of_loss(data)
        return self._backend.encode(text, add_special=add_special, parse_special=parse_special)

    def _tell_of_loss(self, data: bytes) -> None:
        kept = data.translate(None, self.facts.lost_bytes)
        if len(kept) != len(data):
            self._loss_told = True
            lost = " ".join(f"{byte:02x}" for byte in sorted(set(data) - set(kept)))
            logger.warning(
                "the vocabulary has no tokens for some bytes of the text, which it loses (told once): %s", lost
            )

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, at_start: bool = True) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD.

        skip_special: leave control tokens out.
        at_start:     the ids are a whole text, not the rest of one: the space that SentencePiece put before it goes.
        """
        data = b"".join(
            self.token_bytes(token_id) for token_id in ids if not (skip_special and self.is_control(token_id))
        )
        text = data.decode("utf-8", "replace")
        return text[1:] if at_start and self.strips_leading_space and text.startswith(" ") else text

    @property
    def strips_leading_space(self) -> bool:
        """Whether a whole text, decoded, starts with a space that was not in it."""
        return self.facts.add_space_prefix or self.facts.style is PieceStyle.WORD_PARTS

    def is_control(self, token_id: int) -> bool:
        return token_id in self._control_ids

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it. Raises TokenizerError for an id that is not in it."""
        text = self._backend.token(token_id)
        if text is None:
            raise TokenizerError(f"token id `{token_id}` is not in the vocabulary of `{self.vocab_size}` tokens")
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for; rarely whole characters.

        An id beyond the vocabulary stands for nothing: embeddings are often padded, and a padding row can be sampled.
        """
        found = self._bytes_of.get(token_id)
        if found is None:
            found = self._bytes_of[token_id] = self._spell(token_id)
        return found

    def _spell(self, token_id: int) -> bytes:
        text = self._backend.token(token_id)
        if text is None:
            return b""
        if token_id in self.facts.byte_token_ids:
            return bytes((self.facts.byte_token_ids[token_id],))
        if token_id in self._backend.added_tokens:
            return text.encode()
        match self.facts.style:
            case PieceStyle.BYTE_CHARACTERS:
                table = byte_of_character()
                try:
                    return bytes([table[character] for character in text])
                except KeyError:  # not made of byte characters: the text itself, as the library decodes it
                    return text.encode()
            case PieceStyle.SPACE_MARKS:
                return text.replace(SPACE_MARK, " ").encode()
            case PieceStyle.WORD_PARTS:
                return (text[2:] if text.startswith("##") else " " + text).encode()

    @cached_property
    def max_token_bytes(self) -> int:
        """No token stands for more bytes of text: a context of n tokens can't hold more than n times as many."""
        if self.facts.style is PieceStyle.WORD_PARTS:
            raise TokenizerError("a WordPiece token has no bound in bytes: one `[UNK]` stands for a word of any length")
        return max(len(self.token_bytes(token_id)) for token_id in range(self.vocab_size))

    def check_vocab_size(self, num_embeddings: int) -> None:
        """Raise TokenizerError if a token of this vocabulary has no row in an embedding of num_embeddings rows."""
        if self.vocab_size > num_embeddings:
            raise TokenizerError(
                f"the tokenizer has `{self.vocab_size}` tokens, but the model embeds only `{num_embeddings}`",
                "the tokenizer files belong to another model",
            )


def utf8_of(text: str, max_bytes: int | None = None) -> bytes:
    """Raises RequestError for text that is not valid Unicode, ContextLengthError for more than max_bytes."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not Unicode: character `{error.start}` is the lone surrogate `{text[error.start]!a}`"
        ) from error
    if max_bytes is not None and len(data) > max_bytes:
        raise ContextLengthError(
            f"the text has `{len(data)}` bytes, more than the `{max_bytes}` that could fit",
            "shorten the prompt or raise the context length",
        )
    return data


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn whatever the library throws over a file's content into a TokenizerError that starts with `what`.

    It raises bare Exception for most faults, and a panic, which is no Exception, for what it did not foresee.
    """
    try:
        yield
    except (PeltonError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise TokenizerError(f"{what}: {error}") from error


def byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes are U+0100 onward in order."""
    if not _BYTE_OF_CHARACTER:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        _BYTE_OF_CHARACTER.update({chr(byte): byte for byte in printable})
        _BYTE_OF_CHARACTER.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return _BYTE_OF_CHARACTER


_BYTE_OF_CHARACTER: dict[str, int] = {}


def load_tokenizer(source: Mapping[str, object] | Path) -> Tokenizer:
    """The tokenizer of GGUF metadata (its `tokenizer.ggml.*` keys), or of a directory with a `tokenizer.json`.

    Raises TokenizerError for a missing or malformed vocabulary, UnsupportedModelError for a kind Pelton does not know.
    """
    if isinstance(source, Path):
        from pelton.text.json_tokenizer import tokenizer_from_directory

        return tokenizer_from_directory(source)
    from pelton.text.gguf_tokenizer import tokenizer_from_metadata

    return tokenizer_from_metadata(source)
