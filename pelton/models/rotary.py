"""Rotary frequencies with every scaling that the models here use, resolved to plain numbers; knows no tensors.

Formulas: RoFormer (Su et al. 2021); linear interpolation (Chen et al. 2023); "llama3" as in the Llama 3.1 release;
YaRN (Peng et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.models.fields import Fields
from pelton.models.spec import RotarySpec

SCALINGS = ("default", "linear", "llama3", "yarn")


def base_frequencies(dim: int, theta: float) -> list[float]:
    """[dim / 2] angles per position: theta ** (-2 i / dim)."""
    if dim < 2 or dim % 2:
        raise CheckpointError(f"the rotated part of a head has `{dim}` dimensions; it must be even and positive")
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def divided(dim: int, theta: float, divisors: Sequence[float]) -> RotarySpec:
    """GGUF keeps llama3 scaling as one divisor per pair (`rope_freqs.weight`)."""
    frequencies = base_frequencies(dim, theta)
    if len(divisors) != len(frequencies) or not all(math.isfinite(d) and d > 0 for d in divisors):
        raise CheckpointError(f"`rope_freqs.weight` must hold {len(frequencies)} positive numbers")
    return RotarySpec(dim, tuple(f / d for f, d in zip(frequencies, divisors, strict=True)))


def from_fields(dim: int, theta: float, scaling: Fields | None, max_position: int) -> RotarySpec:
    """scaling: `rope_scaling` / `rope_parameters` of config.json, or None."""
    frequencies = base_frequencies(dim, theta)
    kind = "default" if scaling is None else scaling.text("rope_type", scaling.raw("type", "default"))
    if scaling is None or kind == "default":
        return RotarySpec(dim, tuple(frequencies))
    if kind == "linear":
        return linear(dim, theta, scaling.number("factor", low=1e-3, high=1e6))
    if kind == "llama3":
        return _llama3(dim, frequencies, scaling)
    if kind == "yarn":
        return _yarn(dim, theta, frequencies, scaling, max_position)
    raise UnsupportedModelError(
        f"the model asks for `{kind}` scaling of its rotary embedding", f"known are {', '.join(SCALINGS)}"
    )


def linear(dim: int, theta: float, factor: float) -> RotarySpec:
    return RotarySpec(dim, tuple(f / factor for f in base_frequencies(dim, theta)))


def _llama3(dim: int, frequencies: list[float], scaling: Fields) -> RotarySpec:
    factor = scaling.number("factor", low=1e-3, high=1e6)
    low = scaling.number("low_freq_factor", low=1e-6, high=1e6)
    high = scaling.number("high_freq_factor", low=1e-6, high=1e6)
    original = scaling.integer("original_max_position_embeddings")
    if high <= low:
        raise CheckpointError(f"`high_freq_factor` is `{high}`, not above `low_freq_factor`, `{low}`")

    def scaled(frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            return frequency
        if wavelength > original / low:
            return frequency / factor
        smooth = (original / wavelength - low) / (high - low)
        return (1 - smooth) * frequency / factor + smooth * frequency

    return RotarySpec(dim, tuple(scaled(f) for f in frequencies))


def _yarn(dim: int, theta: float, frequencies: list[float], scaling: Fields, max_position: int) -> RotarySpec:
    factor = scaling.number("factor", low=1e-3, high=1e6)
    original = scaling.integer("original_max_position_embeddings", max_position)
    fast = scaling.number("beta_fast", 32.0, low=1e-3, high=1e6)
    slow = scaling.number("beta_slow", 1.0, low=1e-3, high=1e6)

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension_of(fast), dimension_of(slow)
    if scaling.flag("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001

    def scaled(index: int, frequency: float) -> float:
        ramp = min(max((index - first) / (last - first), 0.0), 1.0)
        return frequency / factor * ramp + frequency * (1 - ramp)

    attention_factor = scaling.number(
        "attention_factor", 0.1 * math.log(factor) + 1 if factor > 1 else 1.0, low=1e-3, high=1e3
    )
    return RotarySpec(dim, tuple(scaled(i, f) for i, f in enumerate(frequencies)), attention_factor)
