"""From the outcomes of a load test to its figures: rates, percentiles, goodput. Arithmetic only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pelton.measure.load import Outcome

PERCENTILES = (50, 95, 99)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` percent of the values do not exceed. values: sorted, not empty."""
    return values[max(0, math.ceil(len(values) * share / 100) - 1)]


def distribution(values: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles in milliseconds, None without values."""
    if not values:
        return None
    ordered = sorted(values)
    found = {"mean": sum(ordered) / len(ordered) * 1e3}
    return found | {f"p{share}": percentile(ordered, share) * 1e3 for share in PERCENTILES} | {"max": ordered[-1] * 1e3}


def summarise(
    outcomes: Sequence[Outcome], slo_first_token_ms: float | None, slo_per_token_ms: float | None
) -> dict[str, Any]:
    """slo_...: bounds that a request must keep to count as good: time to its first token, mean time per token after."""
    answered = [outcome for outcome in outcomes if outcome.error is None]
    started = min((outcome.sent for outcome in outcomes), default=0.0)
    ended = max((outcome.ended for outcome in outcomes), default=0.0)
    duration_s = max(ended - started, 1e-9)
    output_tokens = sum(outcome.output_tokens for outcome in answered)
    prompt_tokens = sum(outcome.prompt_tokens for outcome in answered)
    good = [outcome for outcome in answered if _is_good(outcome, slo_first_token_ms, slo_per_token_ms)]
    failures = Counter(f"{outcome.status or 'connection'}: {outcome.error}" for outcome in outcomes if outcome.error)
    return {
        "requests": len(outcomes),
        "answered": len(answered),
        "failures": dict(failures.most_common(10)),
        "duration_s": duration_s,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "requests_per_s": len(answered) / duration_s,
        "output_tokens_per_s": output_tokens / duration_s,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / duration_s,
        "goodput_requests_per_s": len(good) / duration_s,
        "time_to_first_token_ms": distribution([outcome.first_token_s for outcome in answered]),
        "inter_token_ms": distribution([gap for outcome in answered for gap in outcome.gaps]),
        "time_per_output_token_ms": distribution(
            [per_token for outcome in answered if (per_token := outcome.per_token_s) is not None]
        ),
        "end_to_end_ms": distribution([outcome.total_s for outcome in answered]),
    }


def _is_good(outcome: Outcome, slo_first_token_ms: float | None, slo_per_token_ms: float | None) -> bool:
    per_token_s = outcome.per_token_s or 0.0
    return (slo_first_token_ms is None or outcome.first_token_s * 1e3 <= slo_first_token_ms) and (
        slo_per_token_ms is None or per_token_s * 1e3 <= slo_per_token_ms
    )
