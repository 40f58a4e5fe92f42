"""How much memory this process may still take: the machine's and its control groups'. It plans nothing."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from pelton.platforms.cpu.control_groups import group_folders, read_text

logger = logging.getLogger(__name__)

# limit, usage, and the line of memory.stat that counts file pages that can be dropped, per version of control groups
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as a number close to 2**63


class UsableMemory(msgspec.Struct, frozen=True):
    """available: what the system can give without swapping. group_room: what is left within the tightest control
    group, None if none limits. All in bytes."""

    available: int
    group_room: int | None

    @property
    def nbytes(self) -> int:
        return self.available if self.group_room is None else min(self.available, self.group_room)

    @property
    def reason(self) -> str:
        if self.group_room is not None and self.group_room < self.available:
            return "left within the control group's limit"
        return "available on this machine"


def usable_memory(root: Path = Path("/")) -> UsableMemory:
    """root: the machine's, or a test's.

    Where the system does not say what is available, half of all is assumed, and told.
    """
    rooms = [_room(folder, version) for version, folder in group_folders(root, "memory")]
    known = [room for room in rooms if room is not None]
    return UsableMemory(_available(root), min(known) if known else None)


def _available(root: Path) -> int:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    logger.warning("the system does not say how much memory is available; half of all is assumed, %d bytes", half)
    return half


def _room(folder: Path, version: int) -> int | None:
    """Limit less what is in use, file pages that can be dropped not counted as in use."""
    limit_name, usage_name, dropped_name = _FILES[version]
    limit, usage = _number(read_text(folder / limit_name)), _number(read_text(folder / usage_name))
    if limit is None or usage is None or limit >= _NO_LIMIT:
        return None
    droppable = 0
    for line in (read_text(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == dropped_name:
            droppable = _number(value) or 0
    return max(0, limit - usage + min(droppable, usage))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
