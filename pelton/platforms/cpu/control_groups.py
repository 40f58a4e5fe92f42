"""Where this process's control groups are: the folders that may limit it, version 1 and 2. It reads no limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def group_folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of each group and its ancestors that govern `controller` ("cpu", "memory").

    Inside a container the path may be one that only the host sees; then what is left is the mount itself, which is
    the container's group.
    """
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = root / "sys/fs/cgroup"
        if hierarchy == "0" and controllers == "":
            yield from ((2, folder) for folder in _ancestors(mount, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _ancestors(mount / controllers, path))


def read_text(path: Path) -> str | None:
    """None where there is no such file, or not one that can be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])
