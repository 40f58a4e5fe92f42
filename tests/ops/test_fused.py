"""A fused kernel rounds where its members would: whatever is fused, the same bits come out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from pelton.graph.graph import Graph
from pelton.graph.kernel import FUSIONS, Provider
from pelton.graph.op import OPS
from pelton.graph.program import Program, compile
from pelton.platforms.cpu import CpuPlatform
from tests.graph.tiny_model import VOCABULARY, build_tiny_model, formats_of, settings_for
from tests.ops.data import random_weight
from tests.ops.machines import CpuMachine, cpu_machine

PROVIDERS = [provider for provider in CpuPlatform().providers() if provider.unusable is None]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]
OTHER = [4, 6, 2]


@dataclass(frozen=True)
class Variant:
    """matrices: their format, but `v`'s. Activations and cache as in CompileSettings."""

    matrices: str
    v: str
    activation_mode: str
    kv_dtype: str

    def compile(self, graph: Graph, provider: str, fusions: frozenset[str], **settings: object) -> Program:
        chosen = settings_for(
            graph,
            formats=formats_of(graph, self.matrices, v=self.v),
            activation_mode=self.activation_mode,
            kv_dtype=self.kv_dtype,
            providers=(provider,),
            fusions=fusions,
            **settings,
        )
        return compile(graph, CpuPlatform(), chosen)


VARIANTS = (
    Variant("q4_1", "q8_0", "outlier", "bf16"),
    Variant("q8_0", "bf16", "exact", "f32"),
    Variant("f32", "f16", "outlier", "f16"),
)


def tiny_weights(program: Program) -> dict[str, bytes]:
    """The same for every program of a graph, in whatever order it packs."""
    weights = {}
    for index, (name, value) in enumerate(program.graph.parameters.items()):
        shape = tuple(size for size in value.shape if isinstance(size, int))
        spread = shape[-1] ** -0.5 if len(shape) == 2 else 1.0
        draw = np.random.default_rng(index)
        weights[name], _ = random_weight(program.settings.formats[name], shape, spread, draw)
    return weights


def run_two_steps(machine: CpuMachine) -> bytes:
    """A prompt in two steps beside another sequence; the bits of all logits and of the cache."""
    first, second = PROMPT[:11], PROMPT[11:]
    machine.run([*first, *OTHER], [*range(11), *range(3)], [(11, 0), (3, 0)], [4, 10, 13])
    (head,) = machine.program.graph.outputs.values()
    bits = machine.bits(head, 3)
    machine.run(second, list(range(11, 19)), [(8, 11)], [7])
    return bits + machine.bits(head, 1) + bytes(memoryview(machine.pool))


def bits_of(program: Program) -> bytes:
    with cpu_machine(program) as machine:
        machine.load(tiny_weights(program))
        return run_two_steps(machine)


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.matrices)
def test_fused_is_unfused_bitwise(provider: Provider, variant: Variant) -> None:
    name = provider.name
    graph = build_tiny_model(windows=(6, None))
    expected = bits_of(variant.compile(graph, name, frozenset()))
    assert np.isfinite(np.frombuffer(expected, np.float32, count=4 * VOCABULARY)).all()
    for fusions in (frozenset(FUSIONS), *(frozenset({fusion}) for fusion in FUSIONS)):
        assert bits_of(variant.compile(graph, name, fusions)) == expected, f"differs with {sorted(fusions)}"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.matrices)
def test_captured_values_change_nothing(variant: Variant) -> None:
    graph = build_tiny_model(windows=(6, None))
    expected = bits_of(variant.compile(graph, PROVIDERS[0].name, frozenset(FUSIONS)))
    capture = frozenset({"layers.0.q", "layers.0.gate", "layers.1.k_rope", "layers.1.add_1", "layers.1.attend"})
    captured = variant.compile(graph, PROVIDERS[0].name, frozenset(FUSIONS), capture=capture)
    assert bits_of(captured) == expected


def test_every_fused_kernel_is_reached() -> None:
    for provider in PROVIDERS:
        program = VARIANTS[0].compile(build_tiny_model(), provider.name, frozenset(FUSIONS))
        reached = {group.kind for group in program.groups if len(group.members) > 1}
        assert set(provider.kinds()) - set(OPS) <= reached, f"{provider.name}: {reached}"
