"""A machine's rates for one program, measured with the program's own kernels on small matrices: a tenth of a second.

What they mean is said in measure/roofline.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pelton import _native
from pelton.graph import ops
from pelton.graph.graph import TOKENS, Graph, Parameter, columns
from pelton.graph.kernel import CompileSettings
from pelton.measure.node_timer import NodeTimer
from pelton.measure.roofline import ProductRate, Rates, SpeedRow, predict_speed

if TYPE_CHECKING:
    from pelton.graph.program import Program
    from pelton.platforms.cpu import CpuPlatform
    from pelton.runner.assembly import PreparedModel

ROWS = (1, 8, 128)  # of the products that are timed
CONTEXT = 512
ROW_VALUES = 1024  # of rows whose values are worked on one by one
BANDWIDTH_BYTES = 128 << 20
MATRIX_PRODUCTS = 1 << 20  # of a row: enough to outweigh the start of a node, few enough to stay in the cache


class Prediction(msgspec.Struct, frozen=True):
    """read_bytes_per_s: what the memory gave."""

    read_bytes_per_s: float
    rows: list[SpeedRow]


def measure_rates(program: Program, platform: CpuPlatform, team: _native.Team) -> Rates:
    bench = _Bench(program.settings, platform, team)
    return Rates(
        read_bytes_per_s=_native.read_bandwidth(team, BANDWIDTH_BYTES),
        node_s=bench.node_seconds(),
        norm_s=bench.norm_seconds(),
        quantise_s=bench.quantise_seconds(),
        activation_s={name: bench.activation_seconds(name) for name in _activations(program)},
        products={
            program.settings.formats[weight.name]: bench.products(weight, program.settings.formats[weight.name])
            for weight in _largest_weights(program)
        },
        attention={shape: bench.attention(*shape) for shape in _attention_shapes(program)},
    )


def _largest_weights(program: Program) -> Iterator[Parameter]:
    """Of each format the matrix with which most is multiplied."""
    largest: dict[str, Parameter] = {}
    for node in program.graph.nodes:
        if node.op.products(*node.inputs, **node.attributes) == 0:
            continue
        for weight in node.inputs:
            if isinstance(weight, Parameter) and len(weight.shape) > 1:
                format = program.settings.formats[weight.name]
                if format not in largest or columns(weight) > columns(largest[format]):
                    largest[format] = weight
    yield from largest.values()


def _attention_shapes(program: Program) -> set[tuple[int, int, int]]:
    shapes = set()
    for node in program.graph.nodes:
        if node.op.position_products(*node.inputs, **node.attributes):
            cache = node.attributes["cache"]
            shapes.add((node.attributes["num_heads"], cache.num_kv_heads, cache.head_dim))
    return shapes


def _activations(program: Program) -> set[str]:
    return {node.attributes["activation"] for node in program.graph.nodes if "activation" in node.attributes}


def predicted_speed(model: PreparedModel, prompt_lengths: Sequence[int], streams: Sequence[int]) -> Prediction:
    """What this machine should give, by a roofline at rates measured now; sizes that the plan does not allow are left
    out. Takes the cores for a fifth of a second or so."""
    limits = model.plan.limits
    team = _native.Team(model.plan.threads)
    try:
        rates = measure_rates(model.program, model.platform, team)
    finally:
        team.close()
    lengths = [length for length in prompt_lengths if length <= limits.max_model_len]
    counts = [count for count in streams if count <= limits.max_num_seqs]
    return Prediction(rates.read_bytes_per_s, predict_speed(model.program, rates, lengths, counts))


class _Bench:
    """Times single nodes, compiled as the program is."""

    def __init__(self, settings: CompileSettings, platform: CpuPlatform, team: _native.Team) -> None:
        settings = replace(settings, max_tokens=max(ROWS), max_context=CONTEXT, capture=frozenset())
        self._timer = NodeTimer(settings, platform, team)

    def products(self, weight: Parameter, format: str) -> ProductRate:
        k = columns(weight)
        n = max(16, MATRIX_PRODUCTS // k // 16 * 16)
        graph = Graph()
        x = graph.input("x", (TOKENS, k), "float32")
        graph.output("y", ops.linear(x, graph.parameter("w", (n, k)), name="product"))
        seconds = self._timer.row_seconds(graph, {"w": format}, "linear", ROWS)
        return ProductRate(ROWS, tuple(each / (n * k) for each in seconds))

    def attention(self, heads: int, kv_heads: int, head_dim: int) -> ProductRate:
        graph = Graph()
        q, k, v = (
            graph.input(name, (TOKENS, count * head_dim), "float32")
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        cache = graph.cache_layer(kv_heads, head_dim, None)
        mixed = ops.attention(q, k, v, cache=cache, num_heads=heads, scale=1.0, window=None, name="attend")
        graph.output("y", mixed)
        context = CONTEXT - max(ROWS)
        products = 2 * heads * head_dim
        seconds = self._timer.row_seconds(graph, {}, "attention", ROWS, context)
        positions = (context + (rows + 1) / 2 for rows in ROWS)
        return ProductRate(ROWS, tuple(each / (products * seen) for each, seen in zip(seconds, positions, strict=True)))

    def quantise_seconds(self) -> float:
        graph = Graph()
        x = graph.input("x", (TOKENS, ROW_VALUES), "float32")
        graph.output("y", ops.linear(x, graph.parameter("w", (16, ROW_VALUES)), name="product"))
        return self._timer.row_seconds(graph, {"w": "q8_0"}, "quantise", ROWS)[-1] / ROW_VALUES

    def norm_seconds(self) -> float:
        graph = Graph()
        x = graph.input("x", (TOKENS, ROW_VALUES), "float32")
        graph.output("y", ops.rms_norm(x, graph.parameter("w", (ROW_VALUES,)), eps=1e-6, name="norm"))
        return self._timer.row_seconds(graph, {"w": "f32"}, "rms_norm", ROWS)[-1] / ROW_VALUES

    def activation_seconds(self, name: str) -> float:
        graph = Graph()
        x = graph.input("x", (TOKENS, ROW_VALUES), "float32")
        graph.output("y", ops.gated_activation(x, x, activation=name, name="activation"))
        return self._timer.row_seconds(graph, {}, "gated_activation", ROWS)[-1] / ROW_VALUES

    def node_seconds(self) -> float:
        graph = Graph()
        x = graph.input("x", (TOKENS, 16), "float32")
        graph.output("y", ops.add(x, x, name="sum"))
        return self._timer.row_seconds(graph, {}, "add", ROWS)[0]
