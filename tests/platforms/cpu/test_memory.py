from __future__ import annotations

import os
from pathlib import Path

import pytest

from pelton.platforms.cpu.memory import usable_memory

GIB = 1 << 30


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: {8 << 20} kB\nMemAvailable: {4 << 20} kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_a_group_the_machine_limits(tmp_path: Path) -> None:
    memory = usable_memory(machine(tmp_path, {}))
    assert (memory.nbytes, memory.group_room) == (4 * GIB, None)
    assert memory.reason == "available on this machine"


def test_a_group_of_version_2_limits(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod/box"
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        f"{group}/memory.max": f"{2 * GIB}\n",
        f"{group}/memory.current": f"{GIB}\n",
        f"{group}/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
    }
    memory = usable_memory(machine(tmp_path, files))
    assert memory.nbytes == GIB + GIB // 2
    assert memory.reason == "left within the control group's limit"


def test_the_tightest_ancestor_counts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/pod/box\n"}
    for folder, limit in (("pod/box", "max"), ("pod", str(GIB))):
        files[f"sys/fs/cgroup/{folder}/memory.max"] = limit
        files[f"sys/fs/cgroup/{folder}/memory.current"] = "0"
    assert usable_memory(machine(tmp_path, files)).nbytes == GIB


def test_a_group_of_version_1_limits(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/box"
    files = {
        "proc/self/cgroup": "4:memory:/box\n3:cpuset:/\n0::/\n",
        f"{group}/memory.limit_in_bytes": f"{GIB}",
        f"{group}/memory.usage_in_bytes": f"{GIB // 4}",
        f"{group}/memory.stat": "total_inactive_file 0\n",
    }
    assert usable_memory(machine(tmp_path, files)).nbytes == GIB * 3 // 4


def test_version_1_writes_no_limit_as_a_huge_number(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5",
    }
    assert usable_memory(machine(tmp_path, files)).group_room is None


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "100",
        "sys/fs/cgroup/memory.current": "200",
    }
    assert usable_memory(machine(tmp_path, files)).nbytes == 0


def test_half_of_all_is_assumed_and_told_where_the_system_does_not_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    memory = usable_memory(machine(tmp_path, {"proc/meminfo": "MemTotal: 5 kB\n"}))
    assert memory.nbytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    assert "half of all is assumed" in caplog.text


def test_this_machine_answers() -> None:
    assert usable_memory().nbytes > 0
