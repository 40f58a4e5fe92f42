"""The portable platform: each operation by its reference, on tensors. For parity, and for devices without kernels."""

from __future__ import annotations

from pelton.platforms.torch.platform import TorchPlatform

__all__ = ["TorchPlatform"]
