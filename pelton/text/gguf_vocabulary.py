"""The vocabulary in GGUF metadata, checked, and what the file says about its tokens; it builds no tokenizer."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import msgspec

from pelton import _native
from pelton.errors import TokenizerError
from pelton.text.tokenizer import PieceStyle, TokenizerFacts

logger = logging.getLogger(__name__)

# Values of `tokenizer.ggml.token_type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
# Values of `tokenizer.ggml.model` whose token ids are made natively; the `tokenizers` library makes those of the rest.
NATIVE_MODELS = ("gpt2", "gemma4", "whitespace", "llama")
_BYTE_TEXT = re.compile("<0x([0-9A-Fa-f]{2})>")

# Tokens that end a generation whatever the file calls them: many files name only one of several.
_END_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>",
    "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>", "<fim_pad>",
    "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
})  # fmt: skip
# HTML's end of strike-out in some vocabularies (Gemma), EOS in others: only as a control token it ends anything.
_END_TEXTS_IF_CONTROL = frozenset({"</s>"})
# Formats in which `<|end|>` closes one message of several: with all tokens of one set present it ends no generation.
_END_IS_NOT_LAST = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|calls|>", "<|flush|>"}))


class Vocabulary(msgspec.Struct, frozen=True, dict=True):
    """The checked arrays of the file; index is token id."""

    native: _native.Vocabulary
    types: list[int]

    def __len__(self) -> int:
        return len(self.native)

    def __contains__(self, text: str) -> bool:
        return self.native.find(text) is not None

    def text(self, token_id: int) -> str:
        text = self.native.text(token_id)
        assert text is not None, f"there is no token `{token_id}`"
        return text

    def texts(self) -> list[str]:
        return [self.text(token_id) for token_id in range(len(self))]

    @cached_property
    def _special(self) -> dict[int, int]:
        return {token_id: kind for token_id, kind in enumerate(self.types) if kind != NORMAL}

    def of_type(self, *types: int) -> list[int]:
        """Ids in order; not of normal tokens."""
        return [token_id for token_id, kind in self._special.items() if kind in types]


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    strings = string_array(metadata, "tokenizer.ggml.tokens")
    if len(strings) == 0:
        raise TokenizerError("the vocabulary is empty: `tokenizer.ggml.tokens` has no entries")
    native = _native.Vocabulary(strings)
    if native.find("") is not None:
        native = _native.Vocabulary(_with_names_for_empty_texts(strings))
    repeated = native.repeated()
    if repeated is not None:
        raise TokenizerError(
            f"the vocabulary has `{native.text(repeated[0])}` twice: ids `{repeated[0]}` and `{repeated[1]}`"
        )
    types = list(map(int, number_list(metadata, "tokenizer.ggml.token_type", len(native), default=NORMAL)))
    for token_id in map(native.find, _END_TEXTS):
        if token_id is not None:
            types[token_id] = CONTROL  # some files give it as ordinary text, but no user's text may end a generation
    return Vocabulary(native, types)


def _with_names_for_empty_texts(strings: _native.Strings) -> _native.Strings:
    texts = [strings[token_id] for token_id in range(len(strings))]
    empty = [token_id for token_id, text in enumerate(texts) if not text]
    logger.warning(
        "%d tokens of the vocabulary have no text, the first is id `%d`: no text makes them", len(empty), empty[0]
    )
    return _native.Strings(tuple(text or f"[EMPTY_{token_id}]" for token_id, text in enumerate(texts)))


@runtime_checkable
class _Header(Protocol):
    """Metadata whose strings can stay where the file's header is."""

    def strings(self, key: str) -> _native.Strings | None: ...


def string_array(metadata: Mapping[str, object], key: str) -> _native.Strings:
    if key not in metadata:
        raise TokenizerError(f"the file has no `{key}`")
    strings = metadata.strings(key) if isinstance(metadata, _Header) else _strings_of(metadata[key])
    if strings is None:
        raise TokenizerError(f"`{key}` is not an array of strings")
    return strings


def _strings_of(values: object) -> _native.Strings | None:
    if not isinstance(values, list | tuple) or not set(map(type, values)) <= {str}:
        return None
    return _native.Strings(tuple(values))


def number_list(metadata: Mapping[str, object], key: str, count: int, *, default: float | None = None) -> list[float]:
    values = metadata.get(key)
    if values is None:
        if default is None:
            raise TokenizerError(f"the file has no `{key}`")
        return [default] * count
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise TokenizerError(f"`{key}` is not an array of numbers")
    numbers = list(values)
    if len(numbers) != count:
        raise TokenizerError(f"`{key}` has `{len(numbers)}` entries for a vocabulary of `{count}` tokens")
    is_whole = isinstance(values, memoryview) and values.format in "bBhHiIqQ"  # as a file has it: no need to look
    if not is_whole and (not set(map(type, numbers)) <= {int, float} or not all(map(math.isfinite, numbers))):
        raise TokenizerError(f"`{key}` is not an array of numbers")
    return numbers


def read_token_id(
    metadata: Mapping[str, object], name: str, vocabulary: Vocabulary, default: int | None = None
) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key, default)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < len(vocabulary):
        raise TokenizerError(f"`{key}` is `{value}`; the vocabulary has ids 0 to {len(vocabulary) - 1}")
    return value


def read_flag(metadata: Mapping[str, object], name: str, default: bool) -> bool:
    return bool(metadata.get(f"tokenizer.ggml.{name}", default))


def read_facts(
    metadata: Mapping[str, object],
    vocabulary: Vocabulary,
    style: PieceStyle,
    *,
    add_bos: bool,
    bos: int | None = None,
    eos: int | None = None,
    add_space_prefix: bool = False,
    unverified: str | None = None,
) -> TokenizerFacts:
    """add_bos, bos and eos are what the kind of tokenizer means where the file is silent."""
    eos_token_id = read_token_id(metadata, "eos", vocabulary, eos)
    ends = {eos_token_id, *(read_token_id(metadata, name, vocabulary) for name in ("eot", "eom"))}
    ends.update(map(vocabulary.native.find, _END_TEXTS))
    controls = set(vocabulary.of_type(CONTROL))
    ends.update(controls.intersection(map(vocabulary.native.find, _END_TEXTS_IF_CONTROL)))
    if any(all(text in vocabulary for text in texts) for texts in _END_IS_NOT_LAST):
        ends.discard(vocabulary.native.find("<|end|>"))
    facts = TokenizerFacts(
        style=style,
        bos_token_id=read_token_id(metadata, "bos", vocabulary, bos),
        eos_token_id=eos_token_id,
        pad_token_id=read_token_id(metadata, "padding", vocabulary),
        eog_token_ids=frozenset(token_id for token_id in ends if token_id is not None),
        byte_token_ids=_byte_token_ids(vocabulary),
        add_bos=read_flag(metadata, "add_bos_token", add_bos),
        add_eos=read_flag(metadata, "add_eos_token", False),
        add_space_prefix=add_space_prefix,
        unverified=unverified,
    )
    for wanted, token_id, name in (
        (facts.add_bos, facts.bos_token_id, "bos"),
        (facts.add_eos, facts.eos_token_id, "eos"),
    ):
        if wanted and token_id is None:
            raise TokenizerError(
                f"the file asks for {name.upper()} in every text, but has no `tokenizer.ggml.{name}_token_id`"
            )
    return facts


def _byte_token_ids(vocabulary: Vocabulary) -> dict[int, int]:
    found = {}
    for token_id in vocabulary.of_type(BYTE):
        match = _BYTE_TEXT.fullmatch(vocabulary.text(token_id))
        if match is None:
            raise TokenizerError(
                f"token `{token_id}` is a byte, but its text is `{vocabulary.text(token_id)}`, not `<0xNN>`"
            )
        found[token_id] = int(match[1], 16)
    return found
