"""A decoder of a few small layers, written in ops, and a target without a device to compile it for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from pelton.graph import ops
from pelton.graph.formats import FORMATS
from pelton.graph.graph import ROWS, TOKENS, Graph, Node, Parameter, Value, columns
from pelton.graph.kernel import CacheGroupLayout, CompileSettings, Group, Kernel, Provider

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY = 96, 6, 2, 16, 160, 50


@dataclass(frozen=True)
class Rotary:
    dim: int = HEAD_DIM
    inv_freq: tuple[float, ...] = tuple(10000.0 ** (-2 * index / HEAD_DIM) for index in range(HEAD_DIM // 2))
    attention_factor: float = 1.0


def build_tiny_model(num_layers: int = 2, has_qk_norm: bool = True, windows: Sequence[int | None] = (None,)) -> Graph:
    """windows: of the layers in turn. The last layer's output is named `hidden`, the head is tied."""
    graph = Graph()
    positions = graph.input("positions", (TOKENS,), "int32")
    table = graph.parameter("embed_tokens.weight", (VOCABULARY, HIDDEN))
    x = ops.embedding(graph.input("token_ids", (TOKENS,), "int32"), table)
    for index in range(num_layers):
        with graph.scope(f"layers.{index}"):
            x = ops.add(x, _attention(graph, x, positions, has_qk_norm, windows[index % len(windows)]), name="add_1")
            x = ops.add(x, _mlp(graph, x), name="add_2")
    rows = ops.gather_rows(x, graph.input("logit_rows", (ROWS,), "int32"), name="gather")
    rows = ops.rms_norm(rows, graph.parameter("norm.weight", (HIDDEN,)), eps=1e-5, name="norm")
    graph.output("logits", ops.linear(rows, table, name="head"))
    return graph


def _attention(graph: Graph, x: Value, positions: Value, has_qk_norm: bool, window: int | None) -> Value:
    x = ops.rms_norm(x, graph.parameter("norm_1.weight", (HIDDEN,)), eps=1e-5, name="norm_1")
    parts = []
    for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        weight = graph.parameter(f"{name}.weight", (heads * HEAD_DIM, HIDDEN))
        part = ops.linear(x, weight, graph.parameter(f"{name}.bias", (heads * HEAD_DIM,)), name=name)
        if has_qk_norm and name != "v":
            weight = graph.parameter(f"{name}_norm.weight", (HEAD_DIM,))
            part = ops.rms_norm(part, weight, eps=1e-5, vectors=heads, name=f"{name}_norm")
        if name != "v":
            part = ops.rope(part, positions, heads=heads, head_dim=HEAD_DIM, rotary=Rotary(), name=f"{name}_rope")
        parts.append(part)
    cache = graph.cache_layer(KV_HEADS, HEAD_DIM, window)
    q, k, v = parts
    mixed = ops.attention(q, k, v, cache=cache, num_heads=HEADS, scale=HEAD_DIM**-0.5, window=window, name="attend")
    return ops.linear(mixed, graph.parameter("o.weight", (HIDDEN, HEADS * HEAD_DIM)), name="o")


def _mlp(graph: Graph, x: Value) -> Value:
    x = ops.rms_norm(x, graph.parameter("norm_2.weight", (HIDDEN,)), eps=1e-5, name="norm_2")
    gate = ops.linear(x, graph.parameter("gate.weight", (INNER, HIDDEN)), name="gate")
    up = ops.linear(x, graph.parameter("up.weight", (INNER, HIDDEN)), name="up")
    inner = ops.gated_activation(gate, up, activation="silu", name="activation")
    return ops.linear(inner, graph.parameter("down.weight", (HIDDEN, INNER)), name="down")


def formats_of(graph: Graph, matrices: str, **exceptions: str) -> dict[str, str]:
    """Every matrix in one format, but those whose name ends like an exception (`q` means `….q.weight`)."""
    formats = {name: matrices if len(value.shape) == 2 else "f32" for name, value in graph.parameters.items()}
    for short, format in exceptions.items():
        matching = [name for name in formats if name.endswith(f".{short}.weight")]
        assert matching, f"no parameter {short}"
        formats.update(dict.fromkeys(matching, format))
    return formats


def settings_for(graph: Graph, matrices: str = "q8_0", **settings: object) -> CompileSettings:
    base = CompileSettings(formats=formats_of(graph, matrices), max_tokens=24, max_context=128)
    return replace(base, **settings)


ALL_KINDS = (
    *("embedding", "gather_rows", "quantise", "rms_norm", "add", "linear", "gated_activation", "rope"),
    *("cache_write", "attention", "linear_gated", "attention_prepare"),
)


class FakeKernel(Kernel):
    """Takes everything but what it was told to decline."""

    def __init__(self, provider: str, kind: str, reason: str | None) -> None:
        self.kind = kind  # type: ignore[misc]
        super().__init__(provider)
        self._reason = reason

    def declines(self, group: Group, settings: CompileSettings) -> str | None:
        if len(group.of("linear")) > 4:
            return "more than 4 products"
        return self._reason

    def quantised_inputs(self, node: Node, settings: CompileSettings) -> Sequence[Value]:
        is_product = self.kind == "linear" and FORMATS[settings.formats[node.inputs[1].name]].is_integer
        return node.inputs[:1] if is_product else ()

    def layouts(self, group: Group) -> Iterator[tuple[Value, str]]:
        for value in group.inputs:
            if isinstance(value, Parameter):
                yield value, "panels" if len(value.shape) == 2 else "vector"


class FakeProvider(Provider):
    def __init__(self, name: str, kinds: Sequence[str] = ALL_KINDS, reasons: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.unusable: str | None = None
        self._kernels = {kind: FakeKernel(name, kind, (reasons or {}).get(kind)) for kind in kinds}

    def kernel(self, kind: str) -> Kernel | None:
        return self._kernels.get(kind)

    def kinds(self) -> Sequence[str]:
        return tuple(self._kernels)


@dataclass
class FakeTarget:
    own: list[FakeProvider] = field(default_factory=lambda: [FakeProvider("fake/best"), FakeProvider("fake/plain")])
    name: str = "fake"

    def providers(self) -> Sequence[Provider]:
        return self.own

    def provider(self, name: str) -> Provider:
        return next(provider for provider in self.own if provider.name == name)

    def row_bytes(self, value: Value) -> int:
        return -(-columns(value) * 4 // 64) * 64

    def packed_bytes(self, format: str, layout: str, shape: tuple[int, ...]) -> int:
        return 64

    def cache_layout(self, graph: Graph, kv_dtype: str) -> list[CacheGroupLayout]:
        return [CacheGroupLayout(64, tuple((0, 32) for _ in group.layers)) for group in graph.cache_groups]
