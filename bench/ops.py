"""Kernels at the shapes of real models: what each does per second, and its share of what the machine can do.

    python -m bench.ops --output bench/results/ops

One row is a decode: the matrices of a kind are repeated until they are too large for the caches, and the ceiling is the
read bandwidth. With many rows it is the rate of products alone. Writes OUTPUT.json and OUTPUT.md. Instruction counts of
the same kernels, which do not depend on the machine's mood, are in tests/native/counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import random_model
from bench.machine import ceilings, command_of, machine_facts, write_report
from pelton import _native
from pelton.graph import ops
from pelton.graph.formats import FORMATS
from pelton.graph.graph import TOKENS, Graph, Value
from pelton.graph.kernel import CompileSettings
from pelton.measure.node_timer import NodeTimer
from pelton.platforms.cpu import CpuPlatform

COLD_BYTES = 96 << 20  # of weights, so that one row reads them from memory
HEAD_ROWS = 8  # at most in one turn of the head here
CONTEXT = 512


@dataclass(frozen=True)
class Shape:
    """A model's sizes. formats: of its matrices, each timed by itself."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    activation: str
    formats: tuple[str, ...]


QWEN3 = random_model.SHAPES["qwen3-0.6b"]
SHAPES = (
    Shape("SmolLM2-135M", 576, 1536, 9, 3, 64, 49152, "silu", ("q4_1",)),
    Shape("Gemma 3 270M", 640, 2048, 4, 1, 256, 262144, "gelu_tanh", ("q5_0", "q8_0")),
    Shape(
        "Qwen3-0.6B",
        QWEN3.hidden,
        QWEN3.inner,
        QWEN3.heads,
        QWEN3.kv_heads,
        QWEN3.head_dim,
        QWEN3.vocab,
        "silu",
        ("q4_0", "q4_k", "q6_k", "q8_0", "bf16"),
    ),
)


@dataclass(frozen=True)
class Row:
    """work: what the rate counts, "bytes" of weights or "products". share: of the ceiling of that work."""

    model: str
    operation: str
    format: str
    rows: int
    seconds: float
    rate: float
    work: str
    share: float


class Bench:
    def __init__(self, threads: int, counts: Sequence[int], repeats: int) -> None:
        self.limits = ceilings(threads)
        self._team = _native.Team(threads)
        settings = CompileSettings(formats={}, max_tokens=max(counts), max_context=CONTEXT + max(counts))
        self._timer = NodeTimer(settings, CpuPlatform(), self._team)
        self._counts = counts
        self._repeats = repeats

    def close(self) -> None:
        self._team.close()

    def rows(self, shape: Shape) -> Iterator[Row]:
        mixed = shape.heads * shape.head_dim
        keys = shape.kv_heads * shape.head_dim
        counts = self._counts
        for format in shape.formats:
            for operation, n, k in (
                ("query", mixed, shape.hidden),
                ("key", keys, shape.hidden),
                ("attention out", shape.hidden, mixed),
                ("down", shape.hidden, shape.inner),
            ):
                yield from self._products(shape, operation, format, n, k, "linear", counts)
            yield from self._products(
                shape, "gate and up", format, shape.inner, shape.hidden, "linear_gated", self._counts
            )
            few = [count for count in counts if count <= HEAD_ROWS]
            yield from self._products(shape, "head", format, shape.vocab, shape.hidden, "linear", few)
        yield from self._attention(shape)
        yield from self._norm(shape)

    def _products(
        self, shape: Shape, operation: str, format: str, n: int, k: int, kernel: str, counts: Sequence[int]
    ) -> Iterator[Row]:
        """Products of rows with one matrix, or with two of one shape where the kernel is the gated one."""
        if k % FORMATS[format].group:
            return
        pair = kernel == "linear_gated"
        nbytes = _native.packed_bytes(format, n, k) * (2 if pair else 1)
        products = n * k * (2 if pair else 1)
        for count in counts:
            copies = -(-COLD_BYTES // nbytes) if count == 1 else 1
            graph = Graph()
            x = graph.input("x", (TOKENS, k), "float32")
            formats = {}
            for index in range(copies):
                names = [f"{part}{index}" for part in ("gate", "up")[: 2 if pair else 1]]
                formats |= dict.fromkeys(names, format)
                each = [ops.linear(x, graph.parameter(name, (n, k)), name=f"{name}.product") for name in names]
                out: Value = each[0]
                if pair:
                    out = ops.gated_activation(*each, activation=shape.activation, name=f"mixed{index}")
                graph.output(f"y{index}", out)
            (per_row,) = self._timer.row_seconds(graph, formats, kernel, [count], repeats=self._repeats)
            seconds = per_row * count / copies
            if count == 1:
                yield self._row(shape, operation, format, count, seconds, nbytes, "bytes", "read_bytes_per_s")
            else:
                ceiling = "integer_products_per_s" if FORMATS[format].is_integer else "float_products_per_s"
                yield self._row(shape, operation, format, count, seconds, products * count, "products", ceiling)

    def _attention(self, shape: Shape) -> Iterator[Row]:
        graph = Graph()
        q, k, v = (
            graph.input(name, (TOKENS, heads * shape.head_dim), "float32")
            for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
        )
        cache = graph.cache_layer(shape.kv_heads, shape.head_dim, None)
        mixed = ops.attention(q, k, v, cache=cache, num_heads=shape.heads, scale=1.0, window=None, name="attend")
        graph.output("y", mixed)
        found = self._timer.row_seconds(graph, {}, "attention", self._counts, CONTEXT, self._repeats)
        for count, per_row in zip(self._counts, found, strict=True):
            products = 2 * shape.heads * shape.head_dim * (CONTEXT + (count + 1) / 2) * count
            name = f"attention at {CONTEXT}"
            yield self._row(shape, name, "bf16", count, per_row * count, products, "products", "float_products_per_s")

    def _norm(self, shape: Shape) -> Iterator[Row]:
        """Norm and quantisation: values read, as bytes."""
        graph = Graph()
        x = graph.input("x", (TOKENS, shape.hidden), "float32")
        normed = ops.rms_norm(x, graph.parameter("norm", (shape.hidden,)), eps=1e-6, name="norm")
        graph.output("y", ops.linear(normed, graph.parameter("w", (16, shape.hidden)), name="product"))
        formats = {"norm": "f32", "w": "q8_0"}
        found = self._timer.row_seconds(graph, formats, "rms_norm", self._counts, repeats=self._repeats)
        for count, per_row in zip(self._counts, found, strict=True):
            nbytes = 4 * shape.hidden * count
            yield self._row(shape, "norm, quantise", "f32", count, per_row * count, nbytes, "bytes", "read_bytes_per_s")

    def _row(
        self, shape: Shape, operation: str, format: str, rows: int, seconds: float, amount: float, work: str, limit: str
    ) -> Row:
        rate = amount / seconds
        return Row(shape.name, operation, format, rows, seconds, rate, work, rate / self.limits[limit])


def table(rows: Sequence[Row], about: dict[str, Any], limits: dict[str, float]) -> str:
    lines = [
        "# Kernels at the shapes of real models",
        "",
        f"{about['cpu']}, {about['threads']} threads, level {about['level']}, commit {about['commit'][:12]}. The "
        f"quickest of {about['repeats']} runs. Ceilings measured in the same run: "
        f"{limits['read_bytes_per_s'] / 1e9:.1f} GB/s read, {limits['integer_products_per_s'] / 1e9:.0f} G integer and "
        f"{limits['float_products_per_s'] / 1e9:.0f} G float products per second.",
        "",
        "| model | operation | format | rows | µs | rate | share of the ceiling |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        unit = "GB/s" if row.work == "bytes" else "G products/s"
        lines.append(
            f"| {row.model} | {row.operation} | {row.format} | {row.rows} | {row.seconds * 1e6:.1f} "
            f"| {row.rate / 1e9:.1f} {unit} | {row.share:.0%} |"
        )
    return "\n".join([*lines, "", f"Command: `{about['command']}`", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 128])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=[shape.name for shape in SHAPES])
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    arguments = parser.parse_args()
    bench = Bench(arguments.threads, sorted(arguments.rows), arguments.repeats)
    rows = [row for shape in SHAPES if shape.name in arguments.models for row in bench.rows(shape)]
    bench.close()
    about = {
        **machine_facts(),
        "level": [name for name, is_usable, _ in _native.levels() if is_usable][-1],
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "command": command_of("bench.ops", arguments, []),
    }
    document = {"about": about, "ceilings": bench.limits, "rows": [asdict(row) for row in rows]}
    text = table(rows, about, bench.limits)
    write_report(arguments.output, document, text)


if __name__ == "__main__":
    main()
