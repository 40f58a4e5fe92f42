"""Rotary frequencies equal the reference library's for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.models import rotary
from pelton.models.fields import Fields
from pelton.models.llama import config_rotary
from pelton.models.spec import AttentionSpec, LayerSpec, ModelSpec, RotarySpec

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 8.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
    },
    {
        "rope_type": "longrope",
        "original_max_position_embeddings": 4096,
        "short_factor": [1 + i / 50 for i in range(64)],
        "long_factor": [1 + i for i in range(64)],
    },
    {"rope_type": "dynamic", "factor": 3.0},
]
MAX_POSITION = 131072


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s['rope_type']}-{len(s)}-{s.get('factor')}")
def test_scaled_frequencies_equal_the_reference(scaling: dict[str, Any]) -> None:
    parameters = {"rope_theta": 500000.0, **scaling}
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=MAX_POSITION, rope_parameters=dict(parameters)
    )
    spec = of_one_layer(rotary.from_fields(128, 500000.0, Fields(parameters, "config.json"), MAX_POSITION))
    for num_tokens in (1, 4096, 4097, MAX_POSITION, MAX_POSITION + 1, 2 * MAX_POSITION):
        expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"), seq_len=num_tokens)
        found = rotary_of(rotary.at_length(spec, num_tokens))
        # The reference computes in float32, where a power of theta is off by a few units in the last place.
        assert found.inv_freq == pytest.approx(expected.tolist(), rel=2e-6)
        assert found.attention_factor == pytest.approx(factor, rel=1e-6)


def of_one_layer(found: RotarySpec) -> ModelSpec:
    layer = LayerSpec(AttentionSpec(1, 1, found.dim, found, 1.0), None)
    return ModelSpec("", 1, 1, (layer,), 0.0, MAX_POSITION, True)


def rotary_of(spec: ModelSpec) -> RotarySpec:
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, AttentionSpec)
    assert mixer.rotary is not None
    return mixer.rotary


def test_only_dynamic_scaling_reaches_further_than_the_model_was_made_for() -> None:
    reach = {}
    for scaling in SCALINGS:
        fields = Fields({"rope_theta": 500000.0, **scaling}, "config.json")
        reach[scaling["rope_type"]] = rotary.stretched_position(of_one_layer(rotary.from_fields(128, 5e5, fields, 100)))
    assert {kind for kind, length in reach.items() if length != MAX_POSITION} == {"dynamic"}
    assert reach["dynamic"] == 300


def test_old_and_new_ways_of_writing_agree() -> None:
    old = Fields({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}}, "config.json")
    new = Fields({"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0}}, "config.json")
    assert config_rotary(old, 64, 4096) == config_rotary(new, 64, 4096)


def test_divisors_of_a_gguf_are_applied() -> None:
    assert rotary.divided(4, 100.0, [1.0, 2.0], "rope_freqs.weight") == (1.0, 0.05)


def test_unknown_scaling_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="`spiral`"):
        rotary.from_fields(64, 1e4, Fields({"rope_type": "spiral", "factor": 2.0}, "config.json"), 2048)


@pytest.mark.parametrize("kind", rotary.SCALINGS)
def test_unknown_key_of_a_scaling_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"`short_mscale` = `1\.2`"):
        rotary.from_fields(64, 1e4, Fields({"rope_type": kind, "short_mscale": 1.2}, "config.json"), 2048)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "longrope", "short_factor": [1.0] * 32}, "long_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [1.0] * 31}, "long_factor"),
        ({"rope_type": "su", "short_factor": [1.0, float("nan")] * 16, "long_factor": [1.0] * 32}, "short_factor"),
        ({"rope_type": "longrope", "original_max_position_embeddings": 1}, "original_max_position_embeddings"),
        ({"rope_type": "dynamic", "factor": 0.5}, "factor"),
        ({"rope_type": "dynamic"}, "factor"),
    ],
)
def test_impossible_scaling_is_refused_by_name(scaling: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        rotary.from_fields(64, 1e4, Fields(scaling, "config.json"), 2048)


@pytest.mark.parametrize("dim", [0, 7])
def test_odd_rotary_size_is_refused(dim: int) -> None:
    with pytest.raises(CheckpointError, match="even and positive"):
        rotary.base_frequencies(dim, 1e4)
