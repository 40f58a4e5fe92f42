"""A result beside an earlier one: for each measure, how much better or worse, and how sure that is.

Compared are ratios to the peer of the same round, so that a slower machine slows both and shows in neither. It knows
nothing of how results are made.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.99
RESAMPLES = 4000
TOLERANCE = 0.02  # what nobody would notice is no regression, however sure it is
LESS_IS_BETTER = ("first", "peak")

Runs = Mapping[str, Sequence[Mapping[str, float]]]  # engine -> rounds -> measure -> value


@dataclass(frozen=True)
class Change:
    """How many times as good as before: the estimate, and the ends of its interval at CONFIDENCE."""

    measure: str
    estimate: float
    low: float
    high: float

    @property
    def is_regression(self) -> bool:
        return self.high < 1 - TOLERANCE


def changes(now: Runs, before: Runs) -> list[Change]:
    """Of the measures that both have. A bootstrap of the rounds, by percentiles; seeded."""
    return [
        _change(measure, _ratios(now, measure), _ratios(before, measure))
        for measure in now["pelton"][0]
        if measure in before["pelton"][0]
    ]


def _ratios(runs: Runs, measure: str) -> list[float]:
    pairs = zip(runs["pelton"], runs["llama.cpp"], strict=True)
    ratios = [ours[measure] / theirs[measure] for ours, theirs in pairs]
    return [1 / ratio for ratio in ratios] if measure.startswith(LESS_IS_BETTER) else ratios


def _change(measure: str, now: Sequence[float], before: Sequence[float]) -> Change:
    generator = random.Random(measure)
    found = sorted(
        statistics.median(generator.choices(now, k=len(now)))
        / statistics.median(generator.choices(before, k=len(before)))
        for _ in range(RESAMPLES)
    )
    outside = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Change(
        measure, statistics.median(now) / statistics.median(before), found[outside], found[RESAMPLES - 1 - outside]
    )


def table(found: Sequence[Change], about: Mapping[str, Any]) -> str:
    lines = [
        f"Beside the result of {about['date']}, commit {about['commit'][:12]}: how many times as good, from the ratios "
        f"to the peer, with the interval of {CONFIDENCE:.0%} (bootstrap of the rounds).",
        "",
        "| measure | change | interval | |",
        "|---|---|---|---|",
    ]
    for change in found:
        verdict = "regression" if change.is_regression else ""
        lines.append(
            f"| {change.measure} | {change.estimate:.3f} | {change.low:.3f} to {change.high:.3f} | {verdict} |"
        )
    return "\n".join([*lines, ""])
