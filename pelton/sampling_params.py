"""How one request wants its tokens chosen and when it stops; it does not know how that is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from pelton.errors import UsageError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_CHOICES = 16
MAX_LOGIT_BIAS = 1024
# Text of this length can be held back, and is copied once per piece that comes meanwhile.
MAX_STOP_CHARACTERS = 1024
# The least positive number that kernels divide by or compare with: float32's least normal one.
LEAST_POSITIVE = 2.0**-126


class SamplingParams(msgspec.Struct, frozen=True):
    """Names and defaults as in vLLM's offline API, so that a script changes one import.

    n:                  independent choices per prompt, 1 to 16.
    temperature:        0 chooses the most likely token; ties go to the lowest id.
    top_k:              keep the k most likely tokens; 0 or -1 keeps all.
    top_p, min_p:       keep the smallest set with mass >= top_p; drop tokens below min_p x the best probability.
    seed:               None draws one at admission. The same seed, prompt and position give the same token,
                        whatever runs beside it.
    max_tokens:         None means until the context is full. A full context also ends an answer that has fewer: its
                        finish_reason is "length" then as well, and its tokens are fewer than max_tokens.
    min_tokens:         end-of-sequence and stop tokens can't be chosen before as many tokens.
    stop:               strings that end the text (not included unless include_stop_str_in_output).
    stop_token_ids:     tokens that end it. Like stop and logit_bias, None is none.
    logprobs:           report the chosen token's log-probability and this many alternatives (0 to 20); None: nothing.
    prompt_logprobs:    the same for every prompt token after the first.
    logit_bias:         token id -> added to its logit, at most 1,024 entries, each within [-100, 100].
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "stop", (self.stop,) if isinstance(self.stop, str) else _tuple("stop", self.stop))
        force_setattr(self, "stop_token_ids", _tuple("stop_token_ids", self.stop_token_ids))
        force_setattr(self, "logit_bias", _dict("logit_bias", self.logit_bias))
        _check_integer("n", self.n, 1, MAX_CHOICES)
        _check("temperature", self.temperature, 0.0, 100.0)
        _check_integer("top_k", self.top_k, -1, 1 << 31)
        _check("top_p", self.top_p, LEAST_POSITIVE, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, LEAST_POSITIVE, 100.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _check_integer("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, 1 << 31)
        _check_integer("min_tokens", self.min_tokens, 0, 1 << 31)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(f"`min_tokens` is `{self.min_tokens}`, more than `max_tokens`, `{self.max_tokens}`")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _check_integer(name, value, 0, MAX_LOGPROBS)
        if len(self.stop) > MAX_STOP_STRINGS or any(not isinstance(s, str) or not s for s in self.stop):
            raise UsageError(f"`stop` takes at most {MAX_STOP_STRINGS} strings, none of them empty")
        if any(len(stop) > MAX_STOP_CHARACTERS for stop in self.stop):
            raise UsageError(f"a stop string has at most {MAX_STOP_CHARACTERS} characters")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"`{name}` is `{getattr(self, name)!r}`, which is neither true nor false")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise UsageError(f"`logit_bias` has `{len(self.logit_bias)}` entries; at most {MAX_LOGIT_BIAS} are taken")
        for token, bias in self.logit_bias.items():
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise UsageError(f"`logit_bias` has key `{token!r}`; keys are token ids")
            _check(f"logit_bias[{token}]", bias, -100.0, 100.0)


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    """None is none, as in vLLM."""
    if value is None:
        return ()
    if isinstance(value, bytes | Mapping) or not isinstance(value, Collection):
        raise UsageError(f"`{name}` is `{value!r}`, which is not a list")
    return tuple(value)


def _dict(name: str, value: Any) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"`{name}` is `{value!r}`, which is not a dict")
    return dict(value)


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int):
        raise UsageError(f"`{name}` is `{value!r}`, which is not a whole number")
    _check(name, value, low, high)


def _check(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise UsageError(f"`{name}` is `{value!r}`, which is not a number")
    if value < low or value > high:
        raise UsageError(f"`{name}` is `{value}`; it must be at least {low} and at most {high}")
