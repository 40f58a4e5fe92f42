"""The conversation at a terminal, through a pseudo-terminal: what a user types and what they see."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TIMEOUT_S = 60.0


class Session:
    """A running `pelton run` at its own terminal."""

    def __init__(self, model: Path, cache_dir: Path, *flags: str) -> None:
        self._controller, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pelton.cli.main", "run", str(model), "--temperature", "0", *flags],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
            env={**os.environ, "PELTON_CACHE_DIR": str(cache_dir), "TERM": "dumb"},
        )
        os.close(terminal)

    def read_until(self, pattern: str) -> str:
        """What came up to the first match, with it."""
        deadline = time.monotonic() + TIMEOUT_S
        seen = ""
        while time.monotonic() < deadline:
            if select.select([self._controller], [], [], 0.5)[0]:
                try:
                    data = os.read(self._controller, 1)  # no further than the match
                    while data[-1] & 0x80 and len(data) < 4 and not _is_text(data):
                        data += os.read(self._controller, 1)
                except OSError:  # the other side has closed
                    break
                seen += data.decode(errors="replace")
                if re.search(pattern, seen):
                    return seen
        raise AssertionError(f"no {pattern!r} in {seen!r}")

    def type(self, line: str) -> None:
        os.write(self._controller, line.encode() + b"\n")

    def ask(self, line: str) -> str:
        """Types a line and gives what is shown until the next prompt."""
        self.type(line)
        return self.read_until(r"\n> $")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_prompt(self) -> None:
        """Once it waits: readline shows its prompt before it listens, and what comes in between waits for a key."""
        deadline = time.monotonic() + TIMEOUT_S
        while _state(self.process.pid) != "S" and time.monotonic() < deadline:
            os.sched_yield()
        self.interrupt()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._controller)


def _state(pid: int) -> str:
    """Of the process's first thread: "S" sleeps, "R" runs."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.fixture
def session(chat_model: Path, tmp_path: Path) -> Iterator[Session]:
    session = Session(chat_model, tmp_path, "--max-tokens", "4")
    yield session
    session.close()


def test_a_conversation_and_its_commands(session: Session, tmp_path: Path) -> None:
    session.read_until(r"/help lists commands.*\r\nAn answer ends after 4 tokens; /set max_tokens .*\r\n> $")
    shown = session.ask("/help")
    assert all(name in shown for name in ("/clear", "/system", "/set", "/retry", "/tokens", "/bye"))
    assert "nothing was asked yet" in session.ask("/retry")
    assert "`/nothing` is not a command" in session.ask("/nothing")
    assert re.search(r"\r\n0 of 256 tokens", session.ask("/tokens"))
    first = session.ask("abc")
    assert "cut at 4 tokens" in first
    assert "prompt tokens in" in first
    assert re.search(r"\r\n[1-9]\d* of 256 tokens", session.ask("/tokens"))
    assert _answer(session.ask("/retry")) == _answer(first)
    assert "`warmth` is not a sampling setting" in session.ask("/set warmth 3")
    assert "`temperature` can't be `hot`" in session.ask("/set temperature hot")
    assert "`temperature` is `-1.0`" in session.ask("/set temperature -1")
    assert re.search(r"\r\n  temperature 0.0\r\n  top_p 0.95\r\n", session.ask("/set"))
    assert session.ask("/set max_tokens 2").endswith("\r\n  max_tokens 2\r\n> ")
    assert "cut at 2 tokens" in session.ask("abc")
    session.ask("/system xyz")
    assert re.search(r"\r\n[1-9]\d* of 256 tokens", session.ask("/tokens"))
    session.ask("/system")
    assert re.search(r"\r\n0 of 256 tokens", session.ask("/tokens"))
    too_long = session.ask("ab " * 400)
    assert "error: the prompt has" in too_long
    session.type("/bye")
    assert session.process.wait(TIMEOUT_S) == 0
    assert "/retry" in (tmp_path / "history").read_text()


@pytest.mark.parametrize("word", ["/exit", "/quit"])
def test_other_words_for_leaving_are_known(session: Session, word: str) -> None:
    session.read_until(r"\n> $")
    session.type(word)
    assert session.process.wait(TIMEOUT_S) == 0


def test_ctrl_c_stops_an_answer_and_twice_leaves(session: Session) -> None:
    session.read_until(r"\n> $")
    session.interrupt_prompt()
    session.read_until(r"Ctrl-C again leaves.*\n> $")
    assert "cut at 4 tokens" in session.ask("abc")  # and it goes on
    session.interrupt_prompt()
    session.read_until(r"Ctrl-C again leaves.*\n> $")
    session.interrupt_prompt()
    assert session.process.wait(TIMEOUT_S) == 130


@pytest.mark.model
def test_ctrl_c_within_an_answer_keeps_the_conversation(smollm2_path: Path, tmp_path: Path) -> None:
    session = Session(smollm2_path, tmp_path, "--max-tokens", "4000")
    try:
        session.read_until(r"\n> $")
        session.type("Write a long story about a fox.")
        session.read_until(r"fox\.\r\n[^(]{20}")
        session.interrupt()
        session.read_until(r"\(stopped; .*\n> $")
        assert re.search(r"\r\n[1-9]\d* of 8192 tokens", session.ask("/tokens"))
        session.type("/retry")
        session.read_until(r"/retry\r\n[^(]{20}")
        session.interrupt()
        session.read_until(r"\(stopped; .*\n> $")
        session.interrupt_prompt()
        assert session.process.wait(TIMEOUT_S) == 130
    finally:
        session.close()


def _answer(shown: str) -> str:
    """Without the echoed line before and the statistics after."""
    return shown.partition("\r\n")[2].partition("(cut")[0]
