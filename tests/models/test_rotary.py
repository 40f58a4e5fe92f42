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
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s['rope_type']}-{s['factor']}")
def test_scaled_frequencies_equal_the_reference(scaling: dict[str, Any]) -> None:
    parameters = {"rope_theta": 500000.0, **scaling}
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=dict(parameters)
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    found = rotary.from_fields(128, 500000.0, Fields(parameters, "config.json"), 131072)
    # The reference computes in float32, where a power of theta is off by a few units in the last place.
    assert found.inv_freq == pytest.approx(expected.tolist(), rel=2e-6)
    assert found.attention_factor == pytest.approx(factor, rel=1e-6)


def test_old_and_new_ways_of_writing_agree() -> None:
    old = Fields({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}}, "config.json")
    new = Fields({"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0}}, "config.json")
    assert config_rotary(old, 64, 4096) == config_rotary(new, 64, 4096)


def test_divisors_of_a_gguf_are_applied() -> None:
    assert rotary.divided(4, 100.0, [1.0, 2.0]).inv_freq == (1.0, 0.05)


def test_unknown_scaling_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="`dynamic`"):
        rotary.from_fields(64, 1e4, Fields({"rope_type": "dynamic", "factor": 2.0}, "config.json"), 2048)


@pytest.mark.parametrize("dim", [0, 7])
def test_odd_rotary_size_is_refused(dim: int) -> None:
    with pytest.raises(CheckpointError, match="even and positive"):
        rotary.base_frequencies(dim, 1e4)
