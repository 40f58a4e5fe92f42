"""What the sampler means, in numpy and float64: the same order of steps, with sorting, and none of its shortcuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.sampling_params import SamplingParams

# Relative error of a mass against float64: the exponential is within 1e-7 (csrc/vec/exp.h), its float32 argument
# (x - best) / T of up to 32 nats is rounded twice (2 * 32 * 2^-24 = 4e-6), and a unit is 2^-42 of the best.
TOLERANCE = 5e-6


@dataclass(frozen=True)
class Distribution:
    """Tokens that can be drawn, by id; token_ids[i] owns [bounds[i], bounds[i + 1]) of [0, 1]."""

    token_ids: list[int]
    bounds: Any

    def allows(self, token_id: int, uniform: float) -> bool:
        """Whether the token owns this point, give or take the tolerance."""
        if token_id not in self.token_ids:
            return False
        index = self.token_ids.index(token_id)
        return bool(self.bounds[index] - TOLERANCE <= uniform <= self.bounds[index + 1] + TOLERANCE)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 as its authors write it."""
    word = 0xFFFFFFFF
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & word, (p0 >> 32) ^ c3 ^ k1, p0 & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    word = 0xFFFFFFFF
    low, high, _, _ = philox((position & word, position >> 32, choice, 0), (seed & word, seed >> 32))
    return float(high << 32 | low) / 2.0**64


def modified(
    logits: Any,
    sampling: SamplingParams,
    *,
    prompt: list[int],
    output: list[int],
    eos_token_ids: tuple[int, ...] = (),
    allowed: Any = None,
) -> Any:
    """The logits before temperature. float32, one rounding per operation: what the sampler must equal bitwise."""
    x = np.array(logits, np.float32)
    if allowed is not None:
        x[~allowed] = -np.inf
    for token_id, bias in sampling.logit_bias.items():
        x[token_id] += np.float32(bias)
    if len(output) < sampling.min_tokens:
        x[[*eos_token_ids, *sampling.stop_token_ids]] = -np.inf
    seen = sorted(set(prompt) | set(output))
    repetition = np.float32(sampling.repetition_penalty)
    x[seen] = np.where(x[seen] > 0, x[seen] / repetition, x[seen] * repetition)
    counts = np.bincount(np.array(output, np.int64), minlength=len(x)).astype(np.float32)
    x = x - np.float32(sampling.frequency_penalty) * counts
    return x - np.float32(sampling.presence_penalty) * (counts > 0).astype(np.float32)


def ranking(x: Any) -> Any:
    """Token ids, the likeliest first, equal ones by id."""
    return np.lexsort((np.arange(len(x)), -x))


def distributions(x: Any, sampling: SamplingParams) -> list[Distribution]:
    """What may be drawn from modified logits. Several, where a cut falls on a boundary that rounding decides."""
    order = ranking(x)
    weights = np.exp((x.astype(np.float64) - float(x.max())) / sampling.temperature)
    num_kept = len(x)
    if 0 < sampling.top_k < len(x):
        num_kept = sampling.top_k
    kept_by_min_p = {int(np.sum(weights >= sampling.min_p * (1 + error))) for error in (-TOLERANCE, TOLERANCE)}
    found = set()
    for by_min_p in kept_by_min_p:
        kept = order[: min(num_kept, max(1, by_min_p))]
        mass = np.cumsum(weights[kept])
        for error in (-TOLERANCE, TOLERANCE):
            share = sampling.top_p + error if sampling.top_p < 1 else 2.0
            found.add(min(len(kept), int(np.searchsorted(mass, share * mass[-1])) + 1))
    return [_distribution(np.sort(order[:count]), weights) for count in sorted(found)]


def _distribution(token_ids: Any, weights: Any) -> Distribution:
    mass = np.concatenate([[0.0], np.cumsum(weights[token_ids])])
    return Distribution([int(token_id) for token_id in token_ids], mass / mass[-1])
