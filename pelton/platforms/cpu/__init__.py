"""The CPU: programs of native kernels, best instruction-set level first."""

from __future__ import annotations

from pelton.platforms.cpu.platform import CpuPlatform

__all__ = ["CpuPlatform"]
