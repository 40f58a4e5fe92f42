"""Random inputs, weights in any stored format, and a dense cache, for running examples of ops."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from pelton.graph.graph import CacheLayer, Graph, Node, StateLayer, Value
from pelton.graph.op import Example, Op
from pelton.graph.step import StepContext
from pelton.platforms.torch.cache import DTYPES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Blocks:
    """A stored format of blocks. scales: (byte offset of a float16, the largest |factor| that it is multiplied by)."""

    values: int
    nbytes: int
    scales: tuple[tuple[int, float], ...]


BLOCKS = {
    "q4_0": Blocks(32, 18, ((0, 8),)),
    "q4_1": Blocks(32, 20, ((0, 15), (2, 1))),
    "q5_0": Blocks(32, 22, ((0, 16),)),
    "q5_1": Blocks(32, 24, ((0, 31), (2, 1))),
    "q8_0": Blocks(32, 34, ((0, 127),)),
    "q2_k": Blocks(256, 84, ((80, 3 * 15), (82, 15))),
    "q3_k": Blocks(256, 110, ((108, 4 * 32),)),
    "q4_k": Blocks(256, 144, ((0, 15 * 63), (2, 63))),
    "q5_k": Blocks(256, 176, ((0, 31 * 63), (2, 63))),
    "q6_k": Blocks(256, 210, ((208, 32 * 128),)),
}
FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def random_weight(format: str, shape: tuple[int, ...], spread: float, draw: np.random.Generator) -> tuple[bytes, Array]:
    """(the tensor's bytes in its file, its values as the format defines them in float32)."""
    if format in FLOATS:
        values = torch.from_numpy(draw.standard_normal(shape, np.float32) * np.float32(spread)).to(FLOATS[format])
        return values.view(torch.uint8).numpy().tobytes(), values.to(torch.float32).numpy()
    blocks = BLOCKS[format]
    count = int(np.prod(shape)) // blocks.values
    raw = draw.integers(0, 256, (count, blocks.nbytes), np.uint8)
    for offset, factor in blocks.scales:
        scale = draw.uniform(-2 * spread / factor, 2 * spread / factor, count).astype(np.float16)
        raw[:, offset : offset + 2] = scale.view(np.uint8).reshape(count, 2)
    kind = GGMLQuantizationType[format.upper()]
    return raw.tobytes(), dequantize(raw.reshape(shape[0], -1), kind).reshape(shape)


class DenseCache:
    """Keys and values of each layer and sequence by position, rounded to the cache's dtype, as float64."""

    def __init__(self, kv_dtype: str) -> None:
        self._dtype = DTYPES[kv_dtype]
        self.states: dict[tuple[StateLayer, int], Any] = {}
        self.kept: dict[tuple[CacheLayer, int], tuple[Any, Any]] = {}

    def write(self, layer: CacheLayer, sequence: int, context: int, keys: Any, values: Any) -> None:
        empty = torch.zeros(0, layer.num_kv_heads, layer.head_dim, dtype=torch.float64)
        before = self.kept.get((layer, sequence), (empty, empty))
        rounded = (part.to(self._dtype).to(torch.float64) for part in (keys, values))
        keys, values = (torch.cat((old[:context], new)) for old, new in zip(before, rounded, strict=True))
        self.kept[layer, sequence] = keys, values

    def write_state(self, layer: StateLayer, sequence: int, state: Any) -> None:
        self.states[layer, sequence] = state.to(torch.float32).to(torch.float64)

    def read_state(self, layer: StateLayer, sequence: int) -> Any:
        return self.states[layer, sequence]

    def read(self, layer: CacheLayer, sequence: int, num_tokens: int) -> tuple[Any, Any]:
        keys, values = self.kept[layer, sequence]
        return keys[:num_tokens], values[:num_tokens]


@dataclass(frozen=True)
class Case:
    """One example in one weight format, with its numbers.

    inputs: of the graph, by name. weights: (bytes as stored, values). cache: as it stands before the node runs.
    """

    example: Example
    graph: Graph
    node: Node
    formats: Mapping[str, str]
    inputs: Mapping[str, Any]
    weights: Mapping[str, tuple[bytes, Array]]
    cache: DenseCache

    @property
    def step(self) -> StepContext:
        return StepContext.of(self.example.sequences, self.cache)

    @property
    def positions(self) -> list[int]:
        return [context + row for rows, context in self.example.sequences for row in range(rows)]


def make_case(op: Op, example: Example, format: str, kv_dtype: str) -> Case:
    """A graph of one node, and numbers drawn from a seed made of the example's name."""
    draw = np.random.default_rng(zlib.crc32(f"{op.name} {example.name} {format}".encode()))
    graph = Graph()
    num_tokens = sum(rows for rows, _ in example.sequences)
    inputs: dict[str, Any] = {}
    weights: dict[str, tuple[bytes, Array]] = {}
    formats: dict[str, str] = {}
    values: list[Value] = []
    for index, wanted in enumerate(example.inputs):
        name = f"input{index}"
        if wanted.role == "weight":
            formats[name] = format if len(wanted.shape) == 2 else "f32"
            weights[name] = random_weight(formats[name], wanted.shape, wanted.range, draw)
            values.append(graph.parameter(name, wanted.shape))
        elif wanted.role == "values":
            rows = num_tokens if example.dim == "tokens" else len(example.logit_rows)
            numbers = draw.standard_normal((rows, *wanted.shape), np.float32) * np.float32(wanted.range)
            inputs[name] = torch.from_numpy(numbers)
            values.append(graph.input(name, (example.dim, *wanted.shape), "float32"))
        elif wanted.role == "choices":
            rows = [draw.permutation(int(wanted.range))[: wanted.shape[0]] for _ in range(num_tokens)]
            inputs[name] = torch.from_numpy(np.stack(rows).astype(np.int32))
            values.append(graph.input(name, (example.dim, *wanted.shape), "int32"))
        else:
            role = {"row_index": "logit_rows"}.get(wanted.role, wanted.role)
            if role == "token_ids":
                inputs[role] = torch.from_numpy(draw.integers(0, int(wanted.range), num_tokens))
            values.append(graph.input(role, ("rows" if role == "logit_rows" else "tokens",), "int32"))
    cache = DenseCache(kv_dtype)
    if example.state is not None:
        state = graph.state_layer(example.state.num_floats)
        assert state == example.state, f"{example.name} is not the first layer of the first group"
        for sequence, (_, context) in enumerate(example.sequences):
            if context > 0:
                cache.write_state(state, sequence, torch.from_numpy(draw.standard_normal(state.num_floats, np.float32)))
    if example.cache is not None:
        layer = graph.cache_layer(example.cache.num_kv_heads, example.cache.head_dim, example.attributes.get("window"))
        assert layer == example.cache, f"{example.name} is not the first layer of the first group"
        for sequence, (rows, context) in enumerate(example.sequences):
            filled = context + rows if op.name == "attention" else context
            shape = (filled, layer.num_kv_heads, layer.head_dim)
            keys, held = (torch.from_numpy(draw.standard_normal(shape, np.float32) * 1.5) for _ in range(2))
            cache.write(layer, sequence, 0, keys, held)
    node = graph.record(op, "node", tuple(values), example.attributes)
    for index, value in enumerate(node.outputs):
        graph.output(f"out{index}", value)
    case = Case(example, graph, node, formats, inputs, weights, cache)
    inputs["positions"] = torch.tensor(case.positions)
    inputs["logit_rows"] = torch.tensor(example.logit_rows)
    inputs.setdefault("token_ids", torch.zeros(num_tokens, dtype=torch.int64))
    return case
