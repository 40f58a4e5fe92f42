"""Core counting on made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton.platforms.cpu.topology import usable_cores


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def hyperthreaded(root: Path) -> None:
    """Four cores, two threads each: 0 and 4 are one core."""
    for cpu in range(8):
        write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}")


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    hyperthreaded(tmp_path)
    cores = usable_cores(tmp_path, range(8))
    assert (cores.logical, cores.physical, cores.quota, cores.num_threads) == (8, 4, None, 4)
    assert cores.reason == "one per physical core of 8 allowed CPUs"


def test_affinity_limits_the_cores(tmp_path: Path) -> None:
    hyperthreaded(tmp_path)
    assert usable_cores(tmp_path, {0, 4, 5}).num_threads == 2


def test_old_kernels_name_of_the_siblings_is_read(tmp_path: Path) -> None:
    for cpu in range(2):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", "0-1")
    assert usable_cores(tmp_path, range(2)).num_threads == 1


def test_unknown_topology_counts_every_cpu(tmp_path: Path) -> None:
    cores = usable_cores(tmp_path, range(3))
    assert cores.num_threads == 3
    assert cores.reason == "one per allowed core"


@pytest.mark.parametrize(
    ("limit", "num_threads"),
    [("max 100000", 4), ("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 4)],
)
def test_group_quota_limits_the_threads(tmp_path: Path, limit: str, num_threads: int) -> None:
    hyperthreaded(tmp_path)
    write(tmp_path, "proc/self/cgroup", "0::/user/pelton")
    write(tmp_path, "sys/fs/cgroup/user/pelton/cpu.max", limit)
    assert usable_cores(tmp_path, range(8)).num_threads == num_threads


def test_an_ancestors_quota_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b")
    write(tmp_path, "sys/fs/cgroup/a/b/cpu.max", "max 100000")
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", "200000 100000")
    cores = usable_cores(tmp_path, range(4))
    assert cores.num_threads == 2
    assert cores.reason == "control group quota of 2 CPUs"


def test_a_path_that_only_the_host_sees_falls_back_to_the_mount(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/../../docker/abc")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "100000 100000")
    assert usable_cores(tmp_path, range(4)).num_threads == 1


def test_version_1_quota_is_read(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\n0::/x")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "300000")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert usable_cores(tmp_path, range(4)).num_threads == 3


def test_unreadable_quota_is_named_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "much")
    assert usable_cores(tmp_path, range(4)).num_threads == 4
    assert "`much`" in caplog.text


def test_this_machine_has_a_core() -> None:
    assert 1 <= usable_cores().num_threads <= usable_cores().logical
