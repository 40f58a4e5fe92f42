"""Fusions: what becomes one kernel, and what prevents it."""

from __future__ import annotations

import pytest

from pelton.graph import ops
from pelton.graph.graph import TOKENS, Graph, Value
from pelton.graph.kernel import FUSIONS, Group
from pelton.graph.program import Program, compile
from tests.graph.tiny_model import FakeProvider, FakeTarget, build_tiny_model, formats_of, settings_for


def compile_tiny(**settings: object) -> Program:
    graph = build_tiny_model(num_layers=2)
    return compile(graph, FakeTarget(), settings_for(graph, **settings))


def group_of(program: Program, name: str) -> Group:
    (group,) = (group for group in program.groups if name in [node.name for node in group.members])
    return group


def members(program: Program, name: str) -> list[str]:
    return [node.name.removeprefix("layers.0.") for node in group_of(program, name).members]


def test_a_layer_is_seven_groups() -> None:
    program = compile_tiny()
    layer = [[node.name for node in group.members] for group in program.groups if group.name.startswith("layers.0.")]
    assert [[name.removeprefix("layers.0.") for name in names] for names in layer] == [
        ["norm_1", "norm_1.quantise"],
        ["q", "k", "v"],
        ["q_norm", "q_rope", "k_norm", "k_rope", "attend.cache_write"],
        ["attend", "attend.quantise"],
        ["o", "add_1"],
        ["norm_2", "norm_2.quantise"],
        ["gate", "up", "activation", "activation.quantise"],
        ["down", "add_2"],
    ]
    kinds = [group.kind for group in program.groups if group.name.startswith("layers.0.")]
    assert kinds == [
        *("rms_norm", "linear", "attention_prepare", "attention", "linear", "rms_norm", "linear_gated", "linear")
    ]


def test_nothing_is_fused_if_fusions_are_off() -> None:
    program = compile_tiny(fusions=frozenset())
    assert all(len(group.members) == 1 and not group.in_place for group in program.groups)


@pytest.mark.parametrize("name", FUSIONS)
def test_each_fusion_can_be_switched_off_alone(name: str) -> None:
    sizes = {
        "linear_gated": ("layers.0.activation", 2),  # activation + its quantisation
        "segments": ("layers.0.q", 1),
        "attention_prepare": ("layers.0.q_rope", 1),
        "quantise": ("layers.0.norm_1", 1),
        "residual": ("layers.0.add_1", 1),
    }
    value, size = sizes[name]
    program = compile_tiny(fusions=frozenset(FUSIONS) - {name})
    assert len(group_of(program, value).members) == size
    assert len(group_of(compile_tiny(), value).members) > size


def test_the_quantised_value_alone_is_written_if_nobody_reads_the_rows() -> None:
    group = group_of(compile_tiny(), "layers.0.norm_1")
    assert [value.name for value in group.outputs] == ["layers.0.norm_1.quantise"]


def test_rows_and_blocks_are_both_written_if_both_are_read() -> None:
    graph = build_tiny_model(num_layers=1)
    formats = formats_of(graph, "q8_0", v="f16")
    program = compile(graph, FakeTarget(), settings_for(graph, formats=formats))
    group = group_of(program, "layers.0.norm_1")
    assert [value.name for value in group.outputs] == ["layers.0.norm_1", "layers.0.norm_1.quantise"]
    assert [node.name for node in group_of(program, "layers.0.v").members] == ["layers.0.v"]
    assert members(program, "layers.0.q") == ["q", "k"]


@pytest.mark.parametrize(
    ("captured", "expected"),
    [
        ("layers.0.gate", ["gate", "up"]),
        ("layers.0.activation", ["gate", "up", "activation", "activation.quantise"]),
        ("layers.0.q", ["q", "k", "v"]),
        ("layers.0.q_norm", ["q_norm"]),
        ("layers.0.k_rope", ["k_rope"]),
        ("layers.0.q_rope", ["q_norm", "q_rope", "k_norm", "k_rope", "attend.cache_write"]),
        ("layers.0.o", ["o"]),
        ("layers.0.add_1", ["o", "add_1"]),
        ("layers.0.norm_1", ["norm_1", "norm_1.quantise"]),
    ],
)
def test_a_captured_value_is_never_fused_away(captured: str, expected: list[str]) -> None:
    program = compile_tiny(capture=frozenset({captured}))
    group = group_of(program, captured)
    assert captured in [value.name for value in group.outputs]
    assert members(program, captured) == expected


def test_a_captured_residual_is_not_overwritten() -> None:
    program = compile_tiny(capture=frozenset({"layers.0.add_1"}))
    assert members(program, "layers.0.add_2") == ["add_2"]
    assert members(program, "layers.0.add_1") == ["o", "add_1"]


def test_a_captured_query_is_not_turned_in_place() -> None:
    program = compile_tiny(capture=frozenset({"layers.0.q"}))
    assert members(program, "layers.0.q_rope") == ["q_rope"]


def residual_graph(read_again: bool) -> tuple[Graph, Value]:
    """embed + product(norm(embed)), and perhaps another reader of embed afterwards."""
    graph = Graph()
    token_ids = graph.input("token_ids", (TOKENS,), "int32")
    x = ops.embedding(token_ids, graph.parameter("table", (8, 32)))
    normed = ops.rms_norm(x, graph.parameter("norm", (32,)), eps=1e-5, name="norm")
    product = ops.linear(normed, graph.parameter("weight", (32, 32)), name="product")
    total = ops.add(product, x, name="total")
    graph.output("out", ops.add(total, x, name="again") if read_again else total)
    return graph, x


def test_a_product_is_accumulated_onto_a_residual_that_nobody_reads_again() -> None:
    graph, x = residual_graph(read_again=False)
    program = compile(graph, FakeTarget(), settings_for(graph))
    group = group_of(program, "total")
    assert [node.name for node in group.members] == ["product", "total"]
    assert group.in_place == {graph.outputs["out"]: x}
    assert program.places[graph.outputs["out"]] == program.places[x]


def test_a_residual_that_is_read_again_stays() -> None:
    graph, _ = residual_graph(read_again=True)
    program = compile(graph, FakeTarget(), settings_for(graph))
    assert [node.name for node in group_of(program, "total").members] == ["total"]


def test_more_products_than_a_kernel_takes_are_several_groups() -> None:
    graph = Graph()
    x = ops.embedding(graph.input("token_ids", (TOKENS,), "int32"), graph.parameter("table", (8, 32)))
    for index in range(6):
        out = ops.linear(x, graph.parameter(f"weight{index}", (16, 32)), name=f"product{index}")
        graph.output(f"out{index}", out)
    program = compile(graph, FakeTarget(), settings_for(graph))
    assert [len(group.members) for group in program.groups if group.kind == "linear"] == [4, 2]
    first = group_of(program, "product0")
    assert first.notes == ("not fused to linear: more than 4 products",) * 2


def test_members_on_different_providers_are_not_fused_and_the_reason_is_told() -> None:
    target = FakeTarget([FakeProvider("fake/best", reasons={"gated_activation": "not here"}), FakeProvider("fake/b")])
    graph = build_tiny_model(num_layers=1)
    program = compile(graph, target, settings_for(graph))
    row = next(row for row in program.describe() if "layers.0.gate" in row.node)
    assert row.reasons == ("not fused to linear_gated: its members run on fake/b and fake/best",)
