"""Whether the engine makes progress, from what it has told so far: nothing here asks it or waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.engine.client import STALL_IN_STEPS
from pelton.engine.messages import EngineStats

if TYPE_CHECKING:
    from pelton.async_llm import AsyncLLM
    from pelton.server.metrics import Metrics

# An engine with work that makes no step for so long is stuck, unless its steps are known to be slow.
_MIN_STALL_S = 30.0


class EngineWatch:
    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics
        self._longest_step_s = 0.0

    def take(self, stats: EngineStats) -> None:
        """Is told of every step."""
        self._longest_step_s = max(self._longest_step_s, stats.step_seconds)
        if self._metrics is not None:
            self._metrics.observe_step(stats)

    def problem(self, llm: AsyncLLM) -> str | None:
        """Why no request would be answered now, None if it would."""
        if llm.status != "ready":
            return llm.status
        limit_s = max(_MIN_STALL_S, STALL_IN_STEPS * self._longest_step_s)
        if llm.silence_s > limit_s:
            return f"stalled: there has been work and no step for more than {limit_s:.0f} s"
        return None
