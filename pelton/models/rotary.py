"""Rotary frequencies with every scaling that the models here use, resolved to plain numbers; knows no tensors.

Formulas: RoFormer (Su et al. 2021); linear interpolation (Chen et al. 2023); "llama3" as in the Llama 3.1 release;
YaRN (Peng et al. 2023), whose appendix has dynamic NTK; LongRoPE (Ding et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.models.fields import MAX_CONTEXT, Fields
from pelton.models.spec import AttentionSpec, DynamicNtk, LongFactors, ModelSpec, RotarySpec

# What describes each scaling, beside what all have.
SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": (),
    "dynamic": (),
    "llama3": ("low_freq_factor", "high_freq_factor"),
    "yarn": ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim", "finetuned"),
    "longrope": ("short_factor", "long_factor", "attention_factor"),
}
_OLD_NAMES = {"su": "longrope"}
_COMMON = ("type", "rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings")
_SECTIONS = ("mrope_section", "mrope_interleaved")  # without effect on text, whose three positions are one


def base_frequencies(dim: int, theta: float) -> list[float]:
    """[dim / 2] angles per position: theta ** (-2 i / dim)."""
    if dim < 2 or dim % 2:
        raise CheckpointError(f"the rotated part of a head has `{dim}` dimensions; it must be even and positive")
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def divided(dim: int, theta: float, divisors: Sequence[float], name: str) -> tuple[float, ...]:
    """Angles by one divisor per pair, as llama3 scaling in a GGUF and longrope have them. name: what holds them."""
    frequencies = base_frequencies(dim, theta)
    if len(divisors) != len(frequencies) or not all(math.isfinite(d) and d > 0 for d in divisors):
        raise CheckpointError(f"`{name}` must hold {len(frequencies)} positive numbers")
    return tuple(f / d for f, d in zip(frequencies, divisors, strict=True))


def from_fields(
    dim: int, theta: float, scaling: Fields | None, max_position: int, original: int | None = None
) -> RotarySpec:
    """scaling: `rope_scaling` / `rope_parameters` of config.json, or None.

    original: tokens that the angles without scaling were trained for, where that stands beside `scaling`.
    Raises UnsupportedModelError for a scaling, or a key of one, that is not known.
    """
    frequencies = base_frequencies(dim, theta)
    if scaling is None:
        return RotarySpec(dim, tuple(frequencies))
    kind = scaling.text("rope_type", scaling.raw("type", "default"))
    kind = _OLD_NAMES.get(kind, kind)
    if kind not in SCALINGS:
        raise UnsupportedModelError(
            f"the model asks for `{kind}` scaling of its rotary embedding", f"known are {', '.join(SCALINGS)}"
        )
    scaling.refuse_others({*_COMMON, *_SECTIONS, *SCALINGS[kind]}, f"`{kind}` scaling")
    if original is None:
        original = scaling.integer("original_max_position_embeddings", max(2, max_position), low=2, high=MAX_CONTEXT)
    match kind:
        case "linear":
            return linear(dim, theta, _factor(scaling))
        case "dynamic":
            return _dynamic(dim, theta, frequencies, scaling, max_position)
        case "llama3":
            return _llama3(dim, frequencies, scaling, original)
        case "yarn":
            return _yarn(dim, theta, frequencies, scaling, original, max_position)
        case "longrope":
            return _longrope(dim, theta, scaling, original, max_position)
    return RotarySpec(dim, tuple(frequencies))


def at_length(spec: ModelSpec, max_model_len: int) -> ModelSpec:
    """The model as it serves sequences of up to so many tokens, with the same angles for all of them.

    The reference changes from one set of angles to another while a sequence grows, which makes what was kept of its
    beginning wrong. Here one set is chosen at the start, so that an answer does not depend on when it passes the limit.
    """
    layers = tuple(
        replace(layer, mixer=replace(layer.mixer, rotary=_settled(layer.mixer.rotary, max_model_len)))
        if isinstance(layer.mixer, AttentionSpec) and layer.mixer.rotary is not None
        else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


def trained_position(spec: ModelSpec) -> int | None:
    """Above how many tokens `at_length` gives other angles; None where the length makes no difference."""
    return min((longer.trained for longer in _longer(spec)), default=None)


def stretched_position(spec: ModelSpec) -> int:
    """The longest context that is served if it is asked for: dynamic NTK reaches further than what it was made for."""
    return max(
        (int(longer.trained * longer.factor) for longer in _longer(spec) if isinstance(longer, DynamicNtk)),
        default=spec.max_position,
    )


def _longer(spec: ModelSpec) -> list[LongFactors | DynamicNtk]:
    return [
        layer.mixer.rotary.longer
        for layer in spec.layers
        if isinstance(layer.mixer, AttentionSpec) and layer.mixer.rotary is not None and layer.mixer.rotary.longer
    ]


def _settled(rotary: RotarySpec, num_tokens: int) -> RotarySpec:
    longer = rotary.longer
    inv_freq = rotary.inv_freq
    if longer is not None and num_tokens > longer.trained:
        if isinstance(longer, LongFactors):
            inv_freq = longer.inv_freq
        else:
            stretch = longer.factor * num_tokens / longer.trained - (longer.factor - 1)
            theta = longer.theta * stretch ** (rotary.dim / (rotary.dim - 2))
            inv_freq = tuple(base_frequencies(rotary.dim, theta))
    return replace(rotary, inv_freq=inv_freq, longer=None)


def _factor(scaling: Fields, default: float | None = None) -> float:
    if default is not None and not scaling.has("factor"):
        return default
    return scaling.number("factor", low=1e-3, high=1e6)


def linear(dim: int, theta: float, factor: float) -> RotarySpec:
    return RotarySpec(dim, tuple(f / factor for f in base_frequencies(dim, theta)))


def _dynamic(dim: int, theta: float, frequencies: list[float], scaling: Fields, max_position: int) -> RotarySpec:
    if dim < 4:
        raise CheckpointError(f"`dynamic` scaling needs at least `4` rotated dimensions; a head has `{dim}`")
    longer = DynamicNtk(max_position, theta, scaling.number("factor", low=1, high=1e6))
    return RotarySpec(dim, tuple(frequencies), longer=longer)


def _llama3(dim: int, frequencies: list[float], scaling: Fields, original: int) -> RotarySpec:
    factor = _factor(scaling)
    low = scaling.number("low_freq_factor", low=1e-6, high=1e6)
    high = scaling.number("high_freq_factor", low=1e-6, high=1e6)
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


def _yarn(
    dim: int, theta: float, frequencies: list[float], scaling: Fields, original: int, max_position: int
) -> RotarySpec:
    factor = _factor(scaling, max_position / original)
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

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    weights = [scaling.number(key, 0.0, low=0, high=1e3) for key in ("mscale", "mscale_all_dim")]
    usual = magnitude(weights[0]) / magnitude(weights[1]) if all(weights) else magnitude(1.0)
    attention_factor = scaling.number("attention_factor", usual, low=1e-3, high=1e3)
    return RotarySpec(dim, tuple(scaled(i, f) for i, f in enumerate(frequencies)), attention_factor)


def _longrope(dim: int, theta: float, scaling: Fields, original: int, max_position: int) -> RotarySpec:
    short, long = (
        divided(dim, theta, scaling.numbers(key, dim // 2, low=1e-6, high=1e9), key)
        for key in ("short_factor", "long_factor")
    )
    factor = _factor(scaling, max_position / original)
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    attention_factor = scaling.number("attention_factor", usual, low=1e-3, high=1e3)
    return RotarySpec(dim, short, attention_factor, LongFactors(original, long))
