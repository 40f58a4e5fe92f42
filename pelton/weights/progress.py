"""A download's progress on a terminal, and nothing elsewhere. Knows no downloads: it watches a directory grow."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REFRESH_S = 0.2
WATCHER = "download progress"  # the thread's name


@contextmanager
def shown(label: str, directory: Path, total_bytes: int | None) -> Iterator[None]:
    """Shows a bar on standard error while the block runs; without a total, that something is happening."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    if total_bytes is not None:
        columns += [DownloadColumn(), TransferSpeedColumn()]
    done = threading.Event()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total_bytes)

        def watch() -> None:
            while not done.wait(REFRESH_S):
                progress.update(task, completed=_size(directory) if total_bytes is not None else None)

        watcher = threading.Thread(target=watch, name=WATCHER, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _size(directory: Path) -> int:
    """Files may vanish while they are counted: they are renamed when they are complete."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
