"""Checked reading of a model's description, be it config.json or GGUF metadata: untrusted, so typed and bounded."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from pelton.errors import CheckpointError, UnsupportedModelError

_MISSING = object()
MAX_SIZE = 1 << 24  # no dimension, vocabulary or layer count of a real model is above
MAX_CONTEXT = 1 << 30


class Fields:
    """Values of `mapping` by key, `prefix` first. source: how error messages call the file."""

    def __init__(self, mapping: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self._mapping = mapping
        self._source = source
        self._prefix = prefix

    def raw(self, key: str, default: Any = None) -> Any:
        return self._mapping.get(self._prefix + key, default)

    def has(self, key: str) -> bool:
        return self.raw(key) is not None

    def integer(self, key: str, default: Any = _MISSING, *, low: int = 1, high: int = MAX_SIZE) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._refuse(key, value, f"an integer from {low} to {high}")
        return value

    def number(self, key: str, default: Any = _MISSING, *, low: float, high: float) -> float:
        """A finite number with low <= value <= high."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._refuse(key, value, "a finite number")
        if not low <= value <= high:
            raise self._refuse(key, value, f"a number from {low} to {high}")
        return float(value)

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._refuse(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _MISSING) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._refuse(key, value, "a string")
        return value

    def table(self, key: str) -> Fields | None:
        """A nested object, None where it is absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._refuse(key, value, "an object")
        return Fields(value, f"{self._source}, {key}")

    def integers(self, key: str, *, length: int | None = None, low: int = 0, high: int = MAX_SIZE) -> list[int]:
        """A list of integers, of `length` if that is given; empty where it is absent."""
        value = self.raw(key)
        if value is None:
            return []
        is_right = isinstance(value, list) and length in (None, len(value))
        if not is_right or not all(type(item) is int and low <= item <= high for item in value):
            count = "" if length is None else f"{length} "
            raise self._refuse(key, value, f"a list of {count}integers from {low} to {high}")
        return list(value)

    def numbers(self, key: str, length: int, *, low: float, high: float) -> list[float]:
        """A list of `length` finite numbers, low <= each <= high."""
        value = self._value(key, _MISSING)
        items = value if isinstance(value, list) else []
        if len(items) != length or not all(type(item) in (int, float) and low <= item <= high for item in items):
            raise self._refuse(key, value, f"a list of {length} numbers from {low} to {high}")
        return [float(item) for item in items]

    def refuse_others(self, known: Collection[str], what: str) -> None:
        """Raises UnsupportedModelError for the first key that is not known and not null. what: has these keys."""
        for key in self._mapping:
            if key not in known and self.has(key):
                raise UnsupportedModelError(
                    f"{self._source} has `{key}` = `{_shown(self.raw(key))}`, which is not known of {what}",
                    "leaving it out would change answers",
                )

    def flags(self, key: str, at_least: int) -> list[bool] | None:
        """A list of `at_least` booleans or more, None where it is absent."""
        value = self.raw(key)
        if value is None:
            return None
        items = list(value) if isinstance(value, list | memoryview) else []
        if len(items) < at_least or not all(item in (0, 1) for item in items):
            raise self._refuse(key, value, f"a list of at least {at_least} booleans")
        return [bool(item) for item in items]

    def texts(self, key: str, length: int) -> list[str] | None:
        """A list of `length` strings, None where it is absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(isinstance(item, str) for item in value):
            raise self._refuse(key, value, f"a list of {length} strings")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise CheckpointError(
                f"{self._source} has no `{self._prefix}{key}`", "the file is incomplete; download it again"
            )
        return default

    def _refuse(self, key: str, value: Any, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._source} has `{self._prefix}{key}` = `{_shown(value)}`; it must be {wanted}")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
