"""Reads the script of a scripted engine and finds the texts in it their tokens; who plays it is engine/scripted.py.

A script is JSON lines. The first names a directory with a `tokenizer.json` and a chat template, relative to the script,
and the sizes of the engine. Each other line is an answer:

    {"model": "DIRECTORY", "max_model_len": 4096, "max_num_seqs": 32, "kv_cache_bytes": 268435456}
    {"text": "Hello there.", "delay_s": 0.01}
    {"tokens": [5, 6, 7], "prompt": "weather", "fault": "crash", "fault_after": 2}

A request takes the first line whose `prompt` is in its prompt's text; of the lines without one, the request numbered k
takes number k modulo their count.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from pelton.config import SCRIPTED_PREFIX
from pelton.engine.engine import Engine
from pelton.engine.scripted import Fault, ScriptedRunner, ScriptLine, scripted_limits
from pelton.errors import UsageError
from pelton.text.tokenizer import Tokenizer
from pelton.text_model import TextModel, text_model_from

MAX_DELAY_S = 3600.0

T = TypeVar("T")


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    max_model_len: int = 4096
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    kv_cache_bytes: int = 256 << 20


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = None
    tokens: list[int] | None = None
    prompt: str | None = None
    delay_s: float = 0.0
    fault: Fault | None = None
    fault_after: int = 0


def load_scripted_text(engine: str) -> TextModel:
    """The text side. engine: the setting of that name. Raises UsageError or ModelError."""
    directory = _model_directory(*_read(engine))
    return text_model_from(directory.name, directory, None)


def load_scripted_engine(engine: str) -> Engine:
    """Raises UsageError for a script that can't be read, with the line."""
    file, content = _read(engine)
    head = _head(file, content)
    tokenizer = text_model_from(file.stem, _model_directory(file, content), None).tokenizer
    script = _Script(file, content[1:], tokenizer)
    limits = scripted_limits(
        tokenizer.vocab_size,
        max_model_len=head.max_model_len,
        max_num_seqs=head.max_num_seqs,
        max_num_batched_tokens=head.max_num_batched_tokens,
        kv_cache_bytes=head.kv_cache_bytes,
    )
    return Engine(ScriptedRunner(script.line_for, tokenizer.vocab_size), limits)


class _Script:
    def __init__(self, file: Path, content: Sequence[bytes], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._named: list[tuple[str, ScriptLine]] = []
        self._others: list[ScriptLine] = []
        for number, data in enumerate(content, 2):
            line = _decode(file, number, data, _Line)
            answer = self._answer(file, number, line)
            if line.prompt is None:
                self._others.append(answer)
            else:
                self._named.append((line.prompt, answer))
        if not self._others:
            self._others.append(ScriptLine([]))

    def line_for(self, prompt_token_ids: Sequence[int], number: int) -> ScriptLine:
        prompt = self._tokenizer.decode(prompt_token_ids, skip_special=False) if self._named else ""
        for part, line in self._named:
            if part in prompt:
                return line
        return self._others[number % len(self._others)]

    def _answer(self, file: Path, number: int, line: _Line) -> ScriptLine:
        if (line.text is None) == (line.tokens is None):
            raise UsageError(f"`{file}` line {number}: an answer has either `text` or `tokens`")
        tokens = line.tokens
        if tokens is None:
            tokens = self._tokenizer.encode(line.text or "", add_special=False, parse_special=True)
        if any(not 0 <= token < self._tokenizer.vocab_size for token in tokens):
            raise UsageError(f"`{file}` line {number}: there are `{self._tokenizer.vocab_size}` tokens")
        if not 0 <= line.delay_s <= MAX_DELAY_S or line.fault_after < 0:
            raise UsageError(f"`{file}` line {number}: `delay_s` is 0 to {MAX_DELAY_S}, `fault_after` at least 0")
        return ScriptLine(tokens, line.delay_s, line.fault, line.fault_after)


def _read(engine: str) -> tuple[Path, list[bytes]]:
    """The script's lines, without empty ones."""
    file = Path(engine.removeprefix(SCRIPTED_PREFIX)).expanduser()
    try:
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise UsageError(f"the script `{file}` can't be read: {error.strerror}") from error
    if not lines:
        raise UsageError(f"the script `{file}` is empty", "its first line names the model")
    return file, lines


def _head(file: Path, content: Sequence[bytes]) -> _Head:
    head = _decode(file, 1, content[0], _Head)
    sizes = (head.max_model_len, head.max_num_seqs, head.max_num_batched_tokens, head.kv_cache_bytes)
    if min(sizes) < 1:
        raise UsageError(f"`{file}` line 1: sizes are at least 1")
    return head


def _model_directory(file: Path, content: Sequence[bytes]) -> Path:
    return file.parent / _head(file, content).model


def _decode(file: Path, number: int, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"`{file}` line {number}: {error}") from error
