"""How the values of settings are written, in a file and as flags; it knows no setting."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
_LEAST_CONTEXT = 2  # tokens: one of prompt and one of answer
_MAX_ROWS = 1 << 30  # rows of a step are 32-bit numbers in native code
_MAX_DURATION_S = 30 * 86400.0
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600}
_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(|ms|s|m|h)")
_ORIGIN_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", re.IGNORECASE)  # as browsers send it: RFC 6454, 6.1
_SIZE_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


class Kind(msgspec.Struct, frozen=True):
    """How a setting's value is written. parse: from a TOML value or a flag's text; raises ValueError."""

    metavar: str
    takes: str
    parse: Callable[[Any], Any]


def _parse_integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    number = int(value)
    if number < 1:
        raise ValueError
    return number


def _parse_context(value: Any) -> int:
    number = _parse_integer(value)
    if number < _LEAST_CONTEXT:
        raise ValueError
    return number


def _parse_rows(value: Any) -> int:
    number = _parse_integer(value)
    if number > _MAX_ROWS:
        raise ValueError
    return number


def _parse_size(value: Any) -> int:
    if not isinstance(value, str):
        return _parse_integer(value)
    match = _SIZE_PATTERN.fullmatch(value.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError
    return _parse_integer(int(float(match[1]) * _UNITS[match[2].upper()]))


def _parse_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[str(value).lower()]


def parse_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _parse_names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else list(value)
    return tuple(parse_text(name).strip() for name in names)


def _parse_origins(value: Any) -> tuple[str, ...]:
    origins = _parse_names(value)
    if not all(origin == "*" or _ORIGIN_PATTERN.fullmatch(origin) for origin in origins):
        raise ValueError
    return origins


def _parse_path(value: Any) -> Path:
    return Path(value).expanduser()


def _parse_port(value: Any) -> int:
    number = int(parse_text(value) if isinstance(value, str) else value)
    if isinstance(value, bool | float) or not 0 <= number <= 65535:
        raise ValueError
    return number


def _parse_duration(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    match = _DURATION_PATTERN.fullmatch(str(value).strip())
    if match is None:
        raise ValueError
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not seconds <= _MAX_DURATION_S:
        raise ValueError
    return seconds


def _parse_switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"on": True, "off": False}[value]


def _auto(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None or value == "auto" else parse(value)


def choice(*names: str) -> Kind:
    def parse(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return Kind("|".join(names), f"one of {', '.join(f'`{name}`' for name in names)}", parse)


AUTO_COUNT = Kind("N|auto", "a whole number above 0, or `auto`", _auto(_parse_integer))
AUTO_CONTEXT = Kind("N|auto", f"a whole number above {_LEAST_CONTEXT - 1}, or `auto`", _auto(_parse_context))
AUTO_ROWS = Kind("N|auto", f"a whole number from 1 to {_MAX_ROWS}, or `auto`", _auto(_parse_rows))
AUTO_SIZE = Kind("SIZE|auto", "a size as `512MiB`, `4GiB` or bytes, or `auto`", _auto(_parse_size))
FLAG = Kind("", "`true` or `false`", _parse_flag)
TEXT = Kind("NAME", "a text", parse_text)
AUTO_TEXT = Kind("NAME|auto", "a name, or `auto`", _auto(parse_text))
NAMES = Kind("NAME,…", "names with commas between them, or a list", _parse_names)
ORIGINS = Kind("ORIGIN,…", "`*`, or origins as `https://example.org:8443` with commas between them", _parse_origins)
AUTO_NAMES = Kind("NAME,…|auto", "names with commas between them, a list, or `auto`", _auto(_parse_names))
PATH = Kind("DIRECTORY", "a path", _parse_path)
FILE = Kind("FILE", "a path", _auto(_parse_path))
COUNT = Kind("N", "a whole number above 0", _parse_integer)
SIZE = Kind("SIZE", "a size as `64KiB`, `32MiB` or bytes", _parse_size)
PORT = Kind("PORT", "a whole number from 0 (any free one) to 65535", _parse_port)
DURATION = Kind("DURATION", "a time as `30`, `30s`, `500ms` or `10m`, of 30 days at most", _parse_duration)
SWITCH = Kind("on|off", "`on` or `off`", _parse_switch)
