"""Files of JSON that describe a model, config.json above all: untrusted, so bounded and unambiguous. Knows no keys."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pelton.errors import CheckpointError, ModelNotFoundError

logger = logging.getLogger(__name__)

MAX_JSON_BYTES = 64 << 20  # config.json and the index; real ones are below 10 MB
CONFIG_NAME = "config.json"


class Description(msgspec.Struct, frozen=True):
    """A config.json. is_explicit: somebody asked for this one; else it was found beside the model."""

    path: Path
    values: Mapping[str, Any]
    is_explicit: bool


def asked_description(path: Path) -> Description:
    """Of a config.json, or of a directory that holds one. Raises ModelNotFoundError or CheckpointError."""
    file = path / CONFIG_NAME if path.is_dir() else path
    if not file.is_file():
        raise ModelNotFoundError(f"there is no `{file}`", "name a config.json, or a directory that holds one")
    return Description(file, read_json(file), is_explicit=True)


def found_description(directory: Path) -> Description | None:
    """Of the config.json there. One that can't be read is left out, with a warning: nobody asked for it."""
    file = directory / CONFIG_NAME
    if not file.is_file():
        return None
    try:
        return Description(file, read_json(file), is_explicit=False)
    except CheckpointError as error:
        logger.warning("a config.json beside the model is not used: %s", error.message)
        return None


def read_json(path: Path) -> dict[str, Any]:
    """An object. Raises CheckpointError for what can't be read, is too large, or has a name twice."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise malformed(path, f"it is larger than {MAX_JSON_BYTES} bytes")
        return parse_json(path, path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"`{path}` can't be read: {error.strerror}") from error


def parse_json(path: Path, text: bytes) -> dict[str, Any]:
    """path: where the text is from, for errors."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a name occurs twice")
        return result

    try:
        value = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise malformed(path, f"its JSON can't be read: {error}") from error
    if not isinstance(value, dict):
        raise malformed(path, "its JSON is not an object")
    return value


def malformed(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"`{path}` is malformed: {what}", hint="download or convert it again")
