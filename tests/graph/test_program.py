"""Compiling: which kernel and why, what is packed, what is quantised, and where values live."""

from __future__ import annotations

from itertools import combinations

import pytest

from pelton.errors import KernelError, UsageError
from pelton.graph.graph import ROWS, TOKENS, Value
from pelton.graph.kernel import PassedOver
from pelton.graph.program import Program, compile, dimension
from tests.graph.tiny_model import FakeProvider, FakeTarget, build_tiny_model, formats_of, settings_for


def kernels(program: Program) -> dict[str, str]:
    return {node.name: group.kernel.name for group in program.groups for node in group.members}


def test_the_first_provider_that_takes_a_node_is_used() -> None:
    target = FakeTarget([FakeProvider("fake/best", reasons={"rope": "no tables"}), FakeProvider("fake/plain")])
    graph = build_tiny_model(num_layers=1)
    program = compile(graph, target, settings_for(graph, fusions=frozenset()))
    used = kernels(program)
    assert used["layers.0.q_rope"] == "fake/plain/rope"
    assert used["layers.0.q_norm"] == "fake/best/rms_norm"
    (row,) = (row for row in program.describe() if row.node == "layers.0.q_rope")
    assert row.reasons == ("fake/best/rope: no tables",)


def test_a_disabled_kernel_leads_to_the_next_provider() -> None:
    graph = build_tiny_model(num_layers=1)
    disabled = frozenset({"fake/best/linear"})
    program = compile(graph, FakeTarget(), settings_for(graph, disabled=disabled, fusions=frozenset()))
    assert kernels(program)["layers.0.q"] == "fake/plain/linear"
    group = next(group for group in program.groups if group.name == "layers.0.q")
    assert group.passed_over == (PassedOver("fake/best/linear", "fake/best/linear is disabled"),)


def test_a_disabled_fused_kernel_leaves_its_members_where_they_are() -> None:
    graph = build_tiny_model(num_layers=1)
    disabled = frozenset({"fake/best/linear_gated"})
    program = compile(graph, FakeTarget(), settings_for(graph, disabled=disabled))
    row = next(row for row in program.describe() if "layers.0.gate" in row.node)
    assert row.kernel == "fake/best/linear"
    assert row.reasons == ("not fused to linear_gated: fake/best/linear_gated is disabled",)


def test_without_any_kernel_the_error_lists_every_reason() -> None:
    best, plain = FakeProvider("fake/best", kinds=("embedding",)), FakeProvider("fake/plain")
    broken = FakeProvider("fake/broken")
    broken.unusable = "this machine lacks something"
    graph = build_tiny_model(num_layers=1)
    with pytest.raises(KernelError) as caught:
        compile(graph, FakeTarget([broken, best, plain]), settings_for(graph, disabled=frozenset({"fake/plain/rope"})))
    assert str(caught.value).splitlines()[0] == (
        "`layers.0.q_rope` has no kernel (fake/broken: this machine lacks something; "
        "fake/best/rope: fake/best has no rope; fake/plain/rope: fake/plain/rope is disabled)"
    )


def test_an_unusable_provider_is_told_once() -> None:
    target = FakeTarget()
    target.own[0].unusable = "it is too old"
    graph = build_tiny_model(num_layers=1)
    program = compile(graph, target, settings_for(graph))
    assert program.unusable == (PassedOver("fake/best", "it is too old"),)
    assert {group.kernel.name.rpartition("/")[0] for group in program.groups} == {"fake/plain"}


def test_the_order_of_providers_is_a_setting() -> None:
    graph = build_tiny_model(num_layers=1)
    program = compile(graph, FakeTarget(), settings_for(graph, providers=("fake/plain",)))
    assert {group.kernel.name.rpartition("/")[0] for group in program.groups} == {"fake/plain"}


def test_unknown_names_are_errors() -> None:
    graph = build_tiny_model(num_layers=1)
    with pytest.raises(UsageError, match="no kernel `fake/best/liner`"):
        compile(graph, FakeTarget(), settings_for(graph, disabled=frozenset({"fake/best/liner"})))
    with pytest.raises(UsageError, match=r"no value `layers\.9\.q`"):
        compile(graph, FakeTarget(), settings_for(graph, capture=frozenset({"layers.9.q"})))
    program = compile(graph, FakeTarget(), settings_for(graph))
    with pytest.raises(UsageError, match="not a value of this program"):
        program.value("layers.0.gate")


def test_a_value_is_quantised_once_for_all_integer_products() -> None:
    graph = build_tiny_model(num_layers=1)
    formats = formats_of(graph, "q8_0", v="bf16")
    program = compile(graph, FakeTarget(), settings_for(graph, formats=formats, fusions=frozenset()))
    read = {group.name: group.inputs[0].name for group in program.groups if group.kind == "linear"}
    assert read["layers.0.q"] == read["layers.0.k"] == "layers.0.norm_1.quantise"
    assert read["layers.0.v"] == "layers.0.norm_1"
    assert sum(group.name == "layers.0.norm_1.quantise" for group in program.groups) == 1


def test_each_weight_is_packed_once_per_layout() -> None:
    graph = build_tiny_model()
    program = compile(graph, FakeTarget(), settings_for(graph))
    packed = [(packing.parameter, packing.layout) for packing in program.packings]
    assert len(packed) == len(set(packed)) == len(graph.parameters)
    assert ("embed_tokens.weight", "panels") in packed
    assert ("layers.1.q.bias", "vector") in packed


def test_the_head_runs_after_the_body() -> None:
    graph = build_tiny_model()
    dims = [dimension(group) for group in compile(graph, FakeTarget(), settings_for(graph)).groups]
    assert dims == [TOKENS] * dims.count(TOKENS) + [ROWS] * dims.count(ROWS)
    assert dims.count(ROWS) == 3


@pytest.mark.parametrize("fusions", [frozenset(), None], ids=["unfused", "fused"])
@pytest.mark.parametrize("capture", [frozenset(), frozenset({"layers.0.gate", "layers.1.add_1"})], ids=["", "capture"])
def test_values_that_live_at_the_same_time_have_places_of_their_own(
    fusions: frozenset[str] | None, capture: frozenset[str]
) -> None:
    graph = build_tiny_model()
    chosen = settings_for(graph, capture=capture, **({} if fusions is None else {"fusions": fusions}))
    program = compile(graph, FakeTarget(), chosen)
    kept = {value for value in program.places if value.name in {*capture, "head"}}
    assert len(kept) == len(capture) + 1
    life = lifetimes(program, kept)
    for a, b in combinations(program.places, 2):
        is_same_memory = share_owner(program, a, b)
        overlap = max(life[a][0], life[b][0]) <= min(life[a][1], life[b][1])
        if overlap and not is_same_memory:
            (start_a, end_a), (start_b, end_b) = span(program, a), span(program, b)
            assert end_a <= start_b or end_b <= start_a, f"{a.name} and {b.name}"
    assert program.arena_bytes == max(span(program, value)[1] for value in program.places)


def test_memory_is_used_again() -> None:
    small, large = build_tiny_model(num_layers=2), build_tiny_model(num_layers=12)
    needed = [compile(graph, FakeTarget(), settings_for(graph)).arena_bytes for graph in (small, large)]
    assert needed[0] == needed[1]


def span(program: Program, value: Value) -> tuple[int, int]:
    place = program.places[value]
    assert place.offset % 64 == 0
    return place.offset, place.offset + place.nbytes


def share_owner(program: Program, a: Value, b: Value) -> bool:
    return owner(program, a) is owner(program, b)


def owner(program: Program, value: Value) -> Value:
    taken_over = {out: old for group in program.groups for out, old in group.in_place.items()}
    while value in taken_over:
        value = taken_over[value]
    return value


def lifetimes(program: Program, kept: set[Value]) -> dict[Value, tuple[int, int]]:
    """From the groups alone: first writer to last reader, to the end if kept or read by the repeated head."""
    life: dict[Value, tuple[int, int]] = {}
    for index, group in enumerate(program.groups):
        for value in group.outputs:
            life[value] = (index, len(program.groups) if value in kept else index)
        for value in group.inputs:
            if value in life:
                is_repeated = dimension(group) == ROWS and value.shape[0] == TOKENS
                life[value] = (life[value][0], max(life[value][1], len(program.groups) if is_repeated else index))
    return life
