"""A whole model on tensors: chunks, batches and captures give what one plain run gives."""

from __future__ import annotations

import pytest
import torch

from pelton.errors import UsageError
from pelton.graph.program import compile
from pelton.platforms.torch import TorchPlatform
from pelton.platforms.torch.program import TorchProgram
from tests.graph.tiny_model import build_tiny_model, settings_for
from tests.platforms.steps import one_sequence, random_parameters, step_of

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


def tiny_program(dtype: torch.dtype = torch.float64, kv_dtype: str = "f64", **settings: object) -> TorchProgram:
    graph = build_tiny_model(windows=(6, None))
    program = compile(graph, TorchPlatform(dtype), settings_for(graph, "f32", kv_dtype=kv_dtype, **settings))
    return TorchProgram(program, random_parameters(graph, dtype), pool_bytes=1 << 20)


def test_a_prompt_in_chunks_gives_the_logits_of_the_whole() -> None:
    whole, chunked = tiny_program(), tiny_program()
    expected = whole.run(**one_sequence(whole.program, IDS))["head"]
    for start, end in ((0, 7), (7, 17), (17, 20)):
        logits = chunked.run(**one_sequence(chunked.program, IDS[start:end], start))["head"]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


def test_sequences_of_one_step_do_not_see_each_other() -> None:
    alone, together = tiny_program(), tiny_program()
    expected = alone.run(**one_sequence(alone.program, IDS[:5]))["head"]
    logits = together.run(**step_of(together.program, [(IDS[5:], 0), (IDS[:5], 0)]))["head"]
    torch.testing.assert_close(logits[1:], expected, rtol=0, atol=1e-12)


def test_float32_and_a_rounded_cache_stay_near_float64() -> None:
    logits = [
        program.run(**one_sequence(program.program, IDS))["head"].to(torch.float64)
        for program in (tiny_program(), tiny_program(torch.float32, "f32"), tiny_program(torch.float32, "bf16"))
    ]
    assert (logits[1] - logits[0]).abs().max() < 1e-5
    assert 1e-5 < (logits[2] - logits[0]).abs().max() < 0.1


def test_captured_values_come_back_by_name() -> None:
    program = tiny_program(capture=frozenset({"layers.1.q_rope", "layers.0.add_2"}))
    kept = program.run(**one_sequence(program.program, IDS))
    assert {name: tuple(value.shape) for name, value in kept.items()} == {
        "layers.1.q_rope": (20, 96),
        "layers.0.add_2": (20, 96),
        "head": (1, 50),
    }


def test_a_dtype_that_the_cache_cannot_hold_is_an_error() -> None:
    with pytest.raises(UsageError, match="can't hold `q8_0`"):
        tiny_program(kv_dtype="q8_0")
