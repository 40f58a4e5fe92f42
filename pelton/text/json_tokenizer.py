"""Builds a Tokenizer from the JSON files beside safetensors; it knows no GGUF and no model.

`tokenizer.json` is complete: the library reads it as it stands. The other files say which of its tokens mean what.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.errors import TokenizerError, UnsupportedModelError
from pelton.text.library_backend import LibraryBackend
from pelton.text.tokenizer import PieceStyle, Tokenizer, TokenizerFacts, library_errors

if TYPE_CHECKING:
    import tokenizers

_MAX_FILE_BYTES = 256 << 20
_BYTE_TEXT = re.compile("<0x([0-9A-Fa-f]{2})>")


_SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json")


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """Build the tokenizer that a directory's `tokenizer.json` describes.

    Raises TokenizerError for a missing or malformed file, UnsupportedModelError for a decoder Pelton does not know.
    """
    import tokenizers

    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"`{directory}` has no `tokenizer.json`",
            "make one with transformers: `AutoTokenizer.from_pretrained(...).save_pretrained(...)`",
        )
    source = read_text(path)
    with library_errors(f"`{path}` is not a tokenizer"):
        backend = tokenizers.Tokenizer.from_str(source)
        backend.no_padding()
        backend.no_truncation()
        around = backend.encode("", add_special_tokens=True).ids  # what every text gets
    settings = {name: read_json(directory / name) for name in _SETTINGS_FILES if (directory / name).is_file()}
    return Tokenizer(LibraryBackend(backend), _read_facts(backend, json.loads(source), settings, around))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint. Raises TokenizerError if it is not one."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"`{path}` is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"`{path}` is not a JSON object")
    return value


def read_text(path: Path) -> str:
    """A text file of a checkpoint. Raises TokenizerError if it can't be read, is not UTF-8, or absurdly large."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise TokenizerError(f"`{path}` has `{path.stat().st_size}` bytes; at most `{_MAX_FILE_BYTES}` are read")
        return path.read_text("utf-8")
    except OSError as error:
        raise TokenizerError(f"`{path}` can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(f"`{path}` is not valid UTF-8: {error.reason} at byte `{error.start}`") from error


def _read_facts(
    backend: tokenizers.Tokenizer,
    source: Mapping[str, Any],
    settings: Mapping[str, Mapping[str, Any]],
    around: Sequence[int],
) -> TokenizerFacts:
    style, add_space_prefix = _piece_style(source)
    ids = {role: _role_id(backend, settings, role) for role in ("bos", "eos", "pad")}
    ends = {ids["eos"]}
    for name in ("generation_config.json", "config.json"):
        ends.update(_end_ids(settings.get(name, {}).get("eos_token_id"), name))
    return TokenizerFacts(
        style=style,
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=ids["pad"],
        eog_token_ids=frozenset(token_id for token_id in ends if token_id is not None),
        byte_token_ids=_byte_token_ids(backend) if style is PieceStyle.SPACE_MARKS else {},
        add_bos=bool(around) and around[0] == ids["bos"],
        add_eos=bool(around) and around[-1] == ids["eos"] and (len(around) > 1 or around[0] != ids["bos"]),
        add_space_prefix=add_space_prefix,
    )


def _role_id(backend: tokenizers.Tokenizer, settings: Mapping[str, Mapping[str, Any]], role: str) -> int | None:
    """The id of the BOS, EOS or padding token that the settings name; the first file that names it counts."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        text = settings.get(name, {}).get(f"{role}_token")
        if isinstance(text, dict):
            text = text.get("content")
        if text is None:
            continue
        token_id = backend.token_to_id(text) if isinstance(text, str) else None
        if token_id is None:
            raise TokenizerError(f"`{role}_token` of `{name}` is `{text}`, which is not in the vocabulary")
        return token_id
    return None


def _end_ids(value: object, name: str) -> list[int]:
    """`eos_token_id` of a settings file: one id, a list of ids, or nothing."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in values:
        if type(token_id) is not int or token_id < 0:
            raise TokenizerError(f"`eos_token_id` of `{name}` is `{value}`; it is a token id or a list of them")
    return list(values)


def _byte_token_ids(backend: tokenizers.Tokenizer) -> dict[int, int]:
    spelled = ((backend.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token_id: byte for token_id, byte in spelled if token_id is not None}


def _piece_style(source: Mapping[str, Any]) -> tuple[PieceStyle, bool]:
    """How tokens spell bytes, and whether a decoded text loses its first space, as the decoder says."""
    steps = list(_decoder_steps(source.get("decoder")))
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return PieceStyle.BYTE_CHARACTERS, False
    if "WordPiece" in kinds:
        return PieceStyle.WORD_PARTS, False
    if "Metaspace" in kinds:
        step = steps[kinds.index("Metaspace")]
        return PieceStyle.SPACE_MARKS, step.get("prepend_scheme", "always") != "never" and step.get(
            "add_prefix_space", True
        )
    if "ByteFallback" in kinds:
        return PieceStyle.SPACE_MARKS, any(step.get("type") == "Strip" and step.get("start") for step in steps)
    raise UnsupportedModelError(
        f"the decoder of `tokenizer.json` is {' of '.join(f'`{kind}`' for kind in kinds) or 'missing'}",
        "supported are `ByteLevel`, `Metaspace`, `ByteFallback` and `WordPiece`",
    )


def _decoder_steps(decoder: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(decoder, dict):
        if decoder.get("type") == "Sequence":
            for step in decoder.get("decoders", ()):
                yield from _decoder_steps(step)
        else:
            yield decoder
