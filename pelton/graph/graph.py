"""A model as a list of operations over symbolic sizes: recorded once by calling a Python function.

Knows no devices, no weights' bytes and no kernels. Read `ops/` for what each operation means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pelton.graph.op import Op

# A dimension is a fixed size or one of the symbolic ones: "tokens" (every token of a step) or "rows" (those that
# need logits; computed in tiles of at most 32).
Dim = int | str
TOKENS = "tokens"
ROWS = "rows"
Shape = tuple[Dim, ...]


class Value(msgspec.Struct, frozen=True, eq=False):
    """One edge of the graph. dtype fixes where a rounding happens: "float32" everywhere but ids and positions."""

    graph: Graph
    name: str
    shape: Shape
    dtype: str
    producer: Node | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.dtype} {list(self.shape)})"  # not the graph, which has it too


def is_matrix(value: Value) -> bool:
    """[tokens or rows, columns] of float32, or the same quantised."""
    return len(value.shape) == 2 and isinstance(value.shape[0], str)


def columns(value: Value) -> int:
    size = value.shape[-1]
    assert isinstance(size, int), f"{value.name} has no fixed number of columns"
    return size


class Parameter(Value, frozen=True, eq=False):
    """A weight, filled by the loader. Its stored format is known only when a program is compiled.

    logical shape [out, in] for matrices, [n] for vectors.
    """


class CacheLayer(msgspec.Struct, frozen=True):
    """Where one attention layer keeps its keys and values: a layer of a cache group.

    group: index into Graph.cache_groups. layer: index among the group's layers.
    """

    group: int
    layer: int
    num_kv_heads: int
    head_dim: int


class StateLayer(msgspec.Struct, frozen=True):
    """Where one recurrent layer keeps its state: one block per sequence, however long that is.

    group: index into Graph.cache_groups. layer: index among the group's layers. num_floats: float32 values of a state.
    """

    group: int
    layer: int
    num_floats: int


class CacheGroup(msgspec.Struct):
    """Layers that share block tables because they forget alike.

    window: tokens that attention layers see; None forgets nothing.
    state_floats: None for attention; else these are recurrent layers, with states of this size: all they remember.
    """

    window: int | None
    layers: list[CacheLayer] = msgspec.field(default_factory=list)
    state_floats: int | None = None
    state_layers: list[StateLayer] = msgspec.field(default_factory=list)


class Node(msgspec.Struct, frozen=True, eq=False):
    """One operation. name: "layers.3.mlp.down", unique; a program captures outputs by it."""

    name: str
    op: Op
    inputs: tuple[Value, ...]
    attributes: Mapping[str, Any]
    outputs: list[Value] = msgspec.field(default_factory=list)

    @property
    def output(self) -> Value:
        assert len(self.outputs) == 1, f"{self.name} has {len(self.outputs)} outputs"
        return self.outputs[0]


class Graph:
    """Nodes in the order of recording, which is an order of execution."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: dict[str, Value] = {}
        self.parameters: dict[str, Parameter] = {}
        self.outputs: dict[str, Value] = {}
        self.cache_groups: list[CacheGroup] = []
        self._scope: list[str] = []
        self._names: set[str] = set()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names recorded inside are prefixed with `name.`."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def qualified(self, name: str) -> str:
        return ".".join((*self._scope, name))

    def input(self, name: str, shape: Shape, dtype: str) -> Value:
        """A step's input; asking twice gives the same value."""
        if name not in self.inputs:
            self.inputs[name] = Value(self, name, shape, dtype)
        return self.inputs[name]

    def parameter(self, name: str, shape: tuple[int, ...]) -> Parameter:
        """A weight by its name within the present scope; a name used twice is the same weight (tied)."""
        full = self.qualified(name)
        known = self.parameters.get(full)
        if known is None:
            known = self.parameters[full] = Parameter(self, full, shape, "float32")
        assert known.shape == shape, f"{full} is {known.shape} and {shape}"
        return known

    def shared_parameter(self, full_name: str) -> Parameter:
        return self.parameters[full_name]

    def cache_layer(self, num_kv_heads: int, head_dim: int, window: int | None) -> CacheLayer:
        """Reserves this layer's place in the group of its window."""
        index = self._cache_group(window, None)
        layers = self.cache_groups[index].layers
        layer = CacheLayer(index, len(layers), num_kv_heads, head_dim)
        layers.append(layer)
        return layer

    def state_layer(self, num_floats: int) -> StateLayer:
        """Reserves this layer's place in the group of states of its size."""
        index = self._cache_group(None, num_floats)
        layers = self.cache_groups[index].state_layers
        layer = StateLayer(index, len(layers), num_floats)
        layers.append(layer)
        return layer

    def _cache_group(self, window: int | None, state_floats: int | None) -> int:
        kinds = [(group.window, group.state_floats) for group in self.cache_groups]
        if (window, state_floats) not in kinds:
            kinds.append((window, state_floats))
            self.cache_groups.append(CacheGroup(window, state_floats=state_floats))
        return kinds.index((window, state_floats))

    def output(self, name: str, value: Value) -> None:
        """Keeps `value` for whoever runs the program: "logits", say."""
        assert value.graph is self, f"output {name} belongs to another graph"
        self.outputs[name] = value

    def record(self, op: Op, name: str, inputs: tuple[Value, ...], attributes: Mapping[str, Any]) -> Node:
        """Called by ops only. Infers the outputs' shapes, which fails on inputs that don't fit."""
        full = self.qualified(name)
        assert full not in self._names, f"two nodes are called {full}"
        assert all(value.graph is self for value in inputs), f"{full} reads a value of another graph"
        self._names.add(full)
        node = Node(full, op, inputs, attributes)
        for index, (shape, dtype) in enumerate(op.infer(*inputs, **attributes)):
            suffix = "" if index == 0 else f".{index}"
            node.outputs.append(Value(self, full + suffix, shape, dtype, node))
        self.nodes.append(node)
        return node
