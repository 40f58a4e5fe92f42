"""How many cores this process may use: affinity, physical cores, and the time that its control groups grant.

Reads /proc and /sys only; it does not know what the cores will be used for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pelton.platforms.cpu.control_groups import group_folders, read_text

logger = logging.getLogger(__name__)


class UsableCores(msgspec.Struct, frozen=True):
    """What limits the number of threads that can run at once.

    logical:   CPUs that the affinity allows.
    physical:  cores among them; two hardware threads of one core count once, since they share its arithmetic.
    quota:     CPUs' worth of time that the control groups grant, None for no limit.
    """

    logical: int
    physical: int
    quota: float | None

    @property
    def num_threads(self) -> int:
        """One per physical core, rounded down to the quota: a team that is throttled waits for its slowest thread."""
        if self.quota is None:
            return self.physical
        return max(1, min(self.physical, int(self.quota)))

    @property
    def reason(self) -> str:
        if self.num_threads < self.physical:
            return f"control group quota of {self.quota:g} CPUs"
        if self.physical < self.logical:
            return f"one per physical core of {self.logical} allowed CPUs"
        return "one per allowed core"


def usable_cores(root: Path = Path("/"), affinity: Iterable[int] | None = None) -> UsableCores:
    """root and affinity: the machine's, or a test's."""
    if affinity is None:
        affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cpus = set(affinity)
    cores = {_core_of(root, cpu) for cpu in cpus}
    return UsableCores(logical=len(cpus), physical=len(cores), quota=_quota(root))


def _core_of(root: Path, cpu: int) -> str:
    """A name that all hardware threads of one core share: the list of them."""
    folder = root / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the old name
        siblings = read_text(folder / name)
        if siblings:
            return siblings
    return f"cpu {cpu}"  # unknown topology: a core of its own


def _quota(root: Path) -> float | None:
    """The smallest quota of this process's control groups and their ancestors, version 1 and 2."""
    quotas = []
    for version, folder in group_folders(root, "cpu"):
        if version == 2:
            quotas.append(_quota_of(read_text(folder / "cpu.max")))
        else:
            limit, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
            quotas.append(_quota_of(f"{limit} {period}") if limit and period else None)
    known = [quota for quota in quotas if quota is not None]
    return min(known) if known else None


def _quota_of(limit_and_period: str | None) -> float | None:
    """`50000 100000` is half a CPU; `max 100000` (version 2) and `-1 100000` (version 1) are no limit."""
    if limit_and_period is None:
        return None
    limit, _, period = limit_and_period.partition(" ")
    if limit in ("max", "-1"):
        return None
    try:
        return int(limit) / int(period)
    except (ValueError, ZeroDivisionError):
        logger.warning("control group quota `%s` is not understood and is ignored", limit_and_period)
        return None
