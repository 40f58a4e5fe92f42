"""A small random model in memory, as a platform hands it to the runner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pelton import _native
from pelton.graph.program import compile
from pelton.platforms.cpu.platform import CpuPlatform
from pelton.platforms.cpu.program import CpuProgram
from tests.graph.tiny_model import build_tiny_model, settings_for
from tests.ops.machines import load_weight
from tests.platforms.steps import random_parameters

MAX_TOKENS, MAX_CONTEXT = 24, 128


def open_tiny_program(*, num_threads: int = 2, capture: frozenset[str] = frozenset()) -> CpuProgram:
    """Two layers, one of them with a window of 20 tokens."""
    graph = build_tiny_model(windows=(20, None))
    settings = settings_for(graph, "f32", max_tokens=MAX_TOKENS, max_context=MAX_CONTEXT, capture=capture)
    team = _native.Team(num_threads)
    program = CpuProgram(compile(graph, CpuPlatform(), settings), team)
    parameters = random_parameters(graph, torch.float32)
    for place in program.weight_places:
        load_weight(place, parameters[place.packing.parameter].numpy().tobytes(), team)
    return program


@contextmanager
def tiny_program(*, capture: frozenset[str] = frozenset()) -> Iterator[CpuProgram]:
    program = open_tiny_program(capture=capture)
    try:
        yield program
    finally:
        program.close()
