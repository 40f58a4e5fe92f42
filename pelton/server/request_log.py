"""One line per finished HTTP request: who, where, how many tokens, how long, how it ended. It never knows a prompt
unless it is told to.
"""

from __future__ import annotations

import datetime
import json
import time
from contextlib import suppress
from typing import Any, TextIO

import msgspec

from pelton.engine.request import RequestTimes


class Generation(msgspec.Struct):
    """One request to the engine, of which an HTTP request may come to several.

    num_choices, max_tokens: as asked for.
    finish_reasons:  one per choice that ended.
    started_s:       when its first choice left the queue, as the engine tells with the end of a choice.
    first_token_s, last_token_s, finished_s: as seen here. All by time.monotonic.
    """

    num_choices: int = 1
    max_tokens: int | None = None
    arrived_s: float = msgspec.field(default_factory=time.monotonic)
    started_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    finished_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    finish_reasons: list[str] = msgspec.field(default_factory=list)
    has_failed: bool = False

    def end_choice(self, reason: str, times: RequestTimes | None) -> None:
        self.finish_reasons.append(reason)
        if times is not None:
            self.num_preemptions += times.num_preemptions
        if times is not None and (self.started_s is None or times.started_s < self.started_s):
            self.started_s = times.started_s

    @property
    def seconds_per_token(self) -> float | None:
        """Mean between the tokens of a choice; None if there are not two."""
        num_gaps = self.num_output_tokens - self.num_choices
        if self.first_token_s is None or self.finished_s is None or num_gaps < 1:
            return None
        return (self.finished_s - self.first_token_s) * self.num_choices / num_gaps


class RequestRecord(msgspec.Struct):
    """What is known of one HTTP request so far. Its handler adds to it; the frame tells it once the answer is out.

    route:           the path of the table, not the one that was asked for, so that there are few of them.
    model:           set by the handler once it is known to be one of ours.
    ignored_params:  set by the handler: fields of the body that had no effect.
    prompts:         as text; empty unless the settings say to log them.
    status:          None until the answer began; 499 if the client left before.
    """

    request_id: str
    method: str
    route: str
    arrived_s: float = msgspec.field(default_factory=time.monotonic)
    model: str | None = None
    ignored_params: tuple[str, ...] = ()
    prompts: list[str] = msgspec.field(default_factory=list)
    generations: list[Generation] = msgspec.field(default_factory=list)
    status: int | None = None
    error_code: str | None = None  # also of one that is told within a stream


class RequestLog:
    """Writes lines of ASCII to a stream, as JSON for machines or as text for people."""

    def __init__(self, stream: TextIO, log_format: str) -> None:
        """log_format: "text", "json", or "auto": text if the stream is a terminal."""
        self._stream = stream
        self._is_json = log_format == "json" or (log_format == "auto" and not stream.isatty())

    def write(self, record: RequestRecord) -> None:
        described = describe(record)
        if self._is_json:
            line = json.dumps(described)
        else:
            line = " ".join(f"{name}={_as_text(value)}" for name, value in described.items())
        with suppress(OSError):  # whoever read it has gone, or the disk is full: requests are answered all the same
            self._stream.write(line + "\n")
            self._stream.flush()


def describe(record: RequestRecord) -> dict[str, Any]:
    """What there is to tell, by name; what does not apply is left out. Times in seconds."""
    now_s = time.monotonic()
    told: dict[str, Any] = {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        "id": record.request_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "model": record.model,
        "total_s": round(now_s - record.arrived_s, 6),
        "error": record.error_code,
        "ignored_params": list(record.ignored_params) or None,
        "prompts": record.prompts or None,
    }
    if record.generations:
        told |= _describe_generations(record.generations)
    return {name: value for name, value in told.items() if value is not None}


def _describe_generations(generations: list[Generation]) -> dict[str, Any]:
    """Sums of the tokens; of the times, the earliest first token and the longest wait."""
    queued = [one.started_s - one.arrived_s for one in generations if one.started_s is not None]
    first = [one.first_token_s - one.arrived_s for one in generations if one.first_token_s is not None]
    reasons = sorted({reason for one in generations for reason in one.finish_reasons})
    return {
        "prompt_tokens": sum(one.num_prompt_tokens for one in generations),
        "cached_tokens": sum(one.num_cached_tokens for one in generations),
        "output_tokens": sum(one.num_output_tokens for one in generations),
        "queue_s": round(max(queued), 6) if queued else None,
        "first_token_s": round(min(first), 6) if first else None,
        "reason": ",".join(reasons) or None,
    }


def _as_text(value: Any) -> str:
    """As JSON where a plain word would be ambiguous: what clients sent can't end the line or begin a field."""
    if isinstance(value, str) and value.isascii() and value.isprintable() and not set(value) & {" ", "=", '"'}:
        return value
    return json.dumps(value)
