"""Progress is for people who watch: nothing is written where standard error is no terminal."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import pytest

from pelton.weights import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total_bytes", [None, 10])
def test_nothing_is_written_without_a_terminal(
    total_bytes: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.shown("fetching x", tmp_path, total_bytes):
        pass
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total_bytes", [None, 10])
def test_terminal_sees_what_is_fetched(
    total_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown("fetching x", tmp_path, total_bytes):
        (tmp_path / "part").write_bytes(b"12345")
    assert "fetching x" in terminal.getvalue()
    assert progress.WATCHER not in {thread.name for thread in threading.enumerate()}


def test_failure_inside_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyError), progress.shown("fetching x", tmp_path, None):
        raise KeyError
