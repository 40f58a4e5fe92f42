"""Recording: names, shared weights, cache groups, and inputs that don't fit."""

from __future__ import annotations

import pytest

from pelton.graph import ops
from pelton.graph.graph import TOKENS, CacheLayer, Graph
from tests.graph.tiny_model import build_tiny_model


def test_names_carry_their_scopes() -> None:
    names = [node.name for node in build_tiny_model(num_layers=1).nodes]
    assert names[:3] == ["embed_tokens", "layers.0.norm_1", "layers.0.q"]
    assert "layers.0.attend.cache_write" in names
    assert len(set(names)) == len(names)


def test_a_tied_weight_is_one_parameter() -> None:
    graph = build_tiny_model()
    (embedding,) = (node for node in graph.nodes if node.op.name == "embedding")
    assert graph.nodes[-1].inputs[1] is embedding.inputs[1]


def test_layers_that_forget_alike_share_a_cache_group() -> None:
    graph = build_tiny_model(num_layers=5, windows=(8, 8, None))
    assert [(group.window, len(group.layers)) for group in graph.cache_groups] == [(8, 4), (None, 1)]
    assert graph.cache_groups[0].layers[3] == CacheLayer(0, 3, 2, 16)


def test_a_name_can_be_used_once() -> None:
    graph = Graph()
    x = graph.input("x", (TOKENS, 4), "float32")
    ops.add(x, x, name="sum")
    with pytest.raises(AssertionError, match="two nodes are called sum"):
        ops.add(x, x, name="sum")


def test_values_of_another_graph_are_refused() -> None:
    x, y = (Graph().input("x", (TOKENS, 4), "float32") for _ in range(2))
    with pytest.raises(AssertionError, match="another graph"):
        ops.add(x, y, name="sum")


def test_a_product_needs_matching_columns() -> None:
    graph = Graph()
    x = graph.input("x", (TOKENS, 4), "float32")
    with pytest.raises(AssertionError, match="x has 4 columns, weight 5"):
        ops.linear(x, graph.parameter("weight", (3, 5)), name="product")


def test_a_window_is_its_groups() -> None:
    graph = Graph()
    q = graph.input("q", (TOKENS, 32), "float32")
    cache = graph.cache_layer(num_kv_heads=1, head_dim=32, window=8)
    with pytest.raises(AssertionError, match="not its group's"):
        ops.attention(q, q, q, cache=cache, num_heads=1, scale=1.0, window=None, name="attend")
