"""Scripts for scripted engines, and what tests ask of a process's leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pelton.config import Settings, load_settings

MODEL = Path(__file__).parent / "fixtures/scripted/model"
END = 2  # <|im_end|>
T = TypeVar("T")


def write_script(directory: Path, lines: Sequence[Mapping[str, Any]], **head: Any) -> str:
    """The value of the setting `engine` for a script with these lines."""
    file = directory / "script.jsonl"
    first = {"model": os.path.relpath(MODEL, directory), "max_model_len": 512, "max_num_seqs": 8, **head}
    file.write_text("\n".join(json.dumps(line) for line in (first, *lines)) + "\n")
    return f"scripted:{file}"


def settings_for(engine: str, **others: Any) -> Settings:
    return load_settings({"engine": engine, **others})


def run(work: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
    """On a loop of its own, which must end by itself."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout_s):
            return await work

    return asyncio.run(bounded())


def children() -> set[int]:
    """Processes that this one has started and not reaped."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update(int(pid) for pid in (thread / "children").read_text().split())
    return found


def open_files() -> set[str]:
    """What the descriptors of this process lead to."""
    found = set()
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor that lists them
            found.add(f"{entry.name} {os.readlink(entry.path)}")
    return found
