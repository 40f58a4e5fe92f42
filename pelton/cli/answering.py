"""Shows one answer as it comes, measures it, and stops it at Ctrl-C; shared by chat and generate."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator

import msgspec
from msgspec.structs import asdict

from pelton.errors import RequestError, UsageError
from pelton.outputs import RequestOutput

# Time for a pipe beside a prompt to say its first byte: what produces it starts at the same moment.
PIPE_WAIT_S = 1.0


class Answer(msgspec.Struct, frozen=True):
    """finish_reason: "stop", "length" or "interrupted". Times from the request to the first and the last token."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    first_token_s: float
    total_s: float

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second after the first one."""
        if self.completion_tokens < 2 or self.total_s <= self.first_token_s:
            return None
        return (self.completion_tokens - 1) / (self.total_s - self.first_token_s)

    def statistics(self) -> str:
        parts = [f"{self.prompt_tokens} prompt tokens in {self.first_token_s:.2f} s"]
        rate = self.decode_rate
        parts.append(f"{self.completion_tokens} tokens" + (f" at {rate:.1f} tokens/s" if rate else ""))
        return ", ".join(parts)

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "decode_tokens_per_s": self.decode_rate}, ensure_ascii=False)


def show(outputs: Iterator[RequestOutput], *, quietly: bool = False) -> Answer:
    """Prints text as it arrives unless `quietly`. Ctrl-C ends this answer, not the program.

    Raises RequestError if the engine gave the request up.
    """
    pieces: list[str] = []
    prompt_tokens = completion_tokens = 0
    finish_reason = "interrupted"
    start = time.perf_counter()
    first = last = 0.0
    try:
        for output in outputs:
            last = time.perf_counter() - start
            first = first or last
            prompt_tokens = len(output.prompt_token_ids)
            for choice in output.outputs:
                completion_tokens += len(choice.token_ids)
                pieces.append(choice.text)
                if not quietly:
                    sys.stdout.write(choice.text)
                    sys.stdout.flush()
                if choice.finish_reason == "error":
                    raise RequestError(choice.error or "the request failed")
                finish_reason = choice.finish_reason or finish_reason
    except KeyboardInterrupt:
        finish_reason = "interrupted"
    finally:
        close = getattr(outputs, "close", None)
        if close is not None:
            close()
    return Answer("".join(pieces), finish_reason, prompt_tokens, completion_tokens, first, last)


def prompt_and_pipe(prompt: str | None) -> tuple[str, str]:
    """The prompt that was typed, and the text on standard input; "" for none.

    Without a prompt, or with `-` for one, all of standard input is read, however long it takes. Beside a prompt it is
    read too, but a pipe from which nothing comes at first, as one that a script left open, is left alone and told.
    """
    if prompt is None or prompt == "-":
        return "", piped_text()
    if _is_idle_pipe():
        print(
            f"(nothing came from standard input within {PIPE_WAIT_S:g} s: answering without it; "
            "give the prompt through the pipe too, with `-` in its place, to wait)",
            file=sys.stderr,
        )
        return prompt, ""
    return prompt, piped_text()


def _is_idle_pipe() -> bool:
    """Whether it may take for ever to read standard input. Files and closed pipes are ready at once."""
    if sys.stdin is None or is_terminal():
        return False
    try:
        ready, _, _ = select.select([sys.stdin], [], [], PIPE_WAIT_S)
    except (OSError, ValueError):  # not a file of the system's, or one that can't be waited for
        return False
    return not ready


def piped_text() -> str:
    """What was piped in, or "" at a terminal. Raises UsageError if it is not text."""
    if sys.stdin is None or is_terminal():
        return ""
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"what was piped in is not UTF-8 text: byte `{error.start}` of it") from error


def is_terminal() -> bool:
    """Whether somebody types; standard input may also be closed."""
    return sys.stdin is not None and sys.stdin.isatty()
