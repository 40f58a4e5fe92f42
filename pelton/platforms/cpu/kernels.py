"""The native kernels as the compiler sees them: what each takes, and which arguments its nodes get.

What every pointer, size and value means is written above the kernel in csrc/kernels; this file follows it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from pelton import _native
from pelton.graph.formats import FORMATS
from pelton.graph.graph import CacheLayer, Node, Parameter, Value, columns, rows_of
from pelton.graph.kernel import CompileSettings, Group, Kernel

if TYPE_CHECKING:
    from pelton.platforms.cpu.program import Emitter

MAX_SEGMENTS = 4  # of a linear node
STRIP = 32  # of two panels, which kernels work on together
MAX_ROW_FLOATS = 2**18  # of a row that a kernel holds in its scratch memory, kScratchBytes
MAX_HEAD_DIM = 256  # csrc/kernels/attention_tile.h
PANELS = "panels"  # 16 output channels side by side, K running sequentially: csrc/pack.h
VECTOR = "vector"  # float32
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "sigmoid": 2}


class CpuKernel(Kernel):
    """native: the kernels of csrc that its nodes use."""

    native: ClassVar[tuple[str, ...]]

    def __init__(self, level: str, available: frozenset[str]) -> None:
        super().__init__(f"cpu/{level}")
        self.level = level
        self._absent = sorted(set(self.native) - available)

    def declines(self, group: Group, settings: CompileSettings) -> str | None:
        if self._absent:
            return f"this build has no {self.level}/{', '.join(self._absent)}"
        return self.refuses(group, settings)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        """Why the native kernel can't do this group, or None."""
        return None

    @abstractmethod
    def emit(self, group: Group, emitter: Emitter) -> None:
        """Adds the group's native nodes to the program."""

    def layouts(self, group: Group) -> Iterator[tuple[Value, str]]:
        for value in group.inputs:
            if isinstance(value, Parameter):
                yield value, PANELS if len(value.shape) == 2 else VECTOR


def _is_step_input(value: Value, name: str) -> str | None:
    """Native kernels take ids, positions and rows from the step itself."""
    return None if value.graph.inputs.get(name) is value else f"it reads `{name}` of the step, not `{value.name}`"


def _row_refusal(value: Value) -> str | None:
    if columns(value) > MAX_ROW_FLOATS:
        return f"a row has {columns(value)} values, more than {MAX_ROW_FLOATS}"
    return None


def _rows_and_blocks(group: Group, op_name: str) -> tuple[Value, Value | None]:
    """The rows that an operation of the group makes, and their quantised blocks if those belong to the group too."""
    (node,) = group.of(op_name)
    quantised = group.of("quantise")
    return node.output, quantised[0].output if quantised else None


class EmbeddingKernel(CpuKernel):
    kind = "embedding"
    native = ("embedding",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        token_ids, table = group.members[0].inputs
        if settings.formats[table.name] not in FORMATS:
            return f"no weight format {settings.formats[table.name]}"
        return _is_step_input(token_ids, "token_ids")

    def emit(self, group: Group, emitter: Emitter) -> None:
        node = group.members[0]
        table = node.inputs[1]
        vocabulary, _ = table.shape
        emitter.add(
            "embedding",
            [emitter.weight(table), emitter.address(node.output)],
            [emitter.format(table), vocabulary, columns(table), emitter.stride(node.output)],
            [node.attributes["scale"]],
        )


class GatherRowsKernel(CpuKernel):
    kind = "gather_rows"
    native = ("gather_rows",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        return _is_step_input(group.members[0].inputs[1], "logit_rows")

    def emit(self, group: Group, emitter: Emitter) -> None:
        node = group.members[0]
        x, out = node.inputs[0], node.output
        emitter.add(
            "gather_rows",
            [emitter.address(x), emitter.address(out)],
            [columns(x), emitter.stride(x), emitter.stride(out)],
        )


class QuantiseKernel(CpuKernel):
    kind = "quantise"
    native = ("quantise",)

    def emit(self, group: Group, emitter: Emitter) -> None:
        node = group.members[0]
        x = node.inputs[0]
        emitter.add(
            "quantise",
            [emitter.address(x), emitter.address(node.output)],
            [columns(x), emitter.stride(x), emitter.mode(node.output)],
        )


class RmsNormKernel(CpuKernel):
    kind = "rms_norm"
    native = ("rms_norm",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        return _row_refusal(group.members[0].inputs[0])

    def emit(self, group: Group, emitter: Emitter) -> None:
        (node,) = group.of("rms_norm")
        x, weight = node.inputs
        out, blocks = _rows_and_blocks(group, "rms_norm")
        emitter.add(
            "rms_norm",
            [emitter.address(x), emitter.weight(weight), emitter.written(group, out), emitter.written(group, blocks)],
            [columns(weight), emitter.stride(x), emitter.stride(out), emitter.mode(blocks), node.attributes["vectors"]],
            [node.attributes["eps"]],
        )


class AddKernel(CpuKernel):
    kind = "add"
    native = ("add",)

    def emit(self, group: Group, emitter: Emitter) -> None:
        node = group.members[0]
        values = (*node.inputs, node.output)
        emitter.add(
            "add",
            [emitter.address(value) for value in values],
            [columns(node.output), *(emitter.stride(value) for value in values)],
        )


class _Product(CpuKernel):
    """What products with weights share: integer formats read quantised activations."""

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        formats = {settings.formats[node.inputs[1].name] for node in group.of("linear")}
        unknown = sorted(formats - FORMATS.keys())
        if unknown:
            return f"no weight format {', '.join(unknown)}"
        if len({FORMATS[name].is_integer for name in formats}) > 1:
            return "integer and float weight formats in one group"
        return None

    def quantised_inputs(self, node: Node, settings: CompileSettings) -> Sequence[Value]:
        x, weight, *_ = node.inputs
        return (x,) if FORMATS[settings.formats[weight.name]].is_integer else ()


class LinearKernel(_Product):
    """Up to four products of one input; alone, it may be added to the residual in place."""

    kind = "linear"
    native = ("linear",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        if len(group.of("linear")) > MAX_SEGMENTS:
            return f"more than {MAX_SEGMENTS} products in one node"
        return super().refuses(group, settings)

    def emit(self, group: Group, emitter: Emitter) -> None:
        products = group.of("linear")
        x = products[0].inputs[0]
        pointers = [emitter.address(x)]
        sizes = [columns(x), len(products), emitter.mode(x), emitter.stride(x)]
        is_added = bool(group.of("add"))
        for node in products:
            weight = node.inputs[1]
            bias = node.inputs[2] if len(node.inputs) == 3 else None
            out = group.members[-1].output if is_added else node.output
            pointers += [emitter.weight(weight), emitter.address(out), emitter.weight(bias)]
            sizes += [emitter.format(weight), columns(out), emitter.stride(out), int(is_added)]
        emitter.add("linear", pointers, sizes)


class LinearGatedKernel(_Product):
    kind = "linear_gated"
    native = ("linear_gated",)

    def emit(self, group: Group, emitter: Emitter) -> None:
        (gated,) = group.of("gated_activation")
        producers = {node.output: node for node in group.of("linear")}
        gate, up = (producers[value] for value in gated.inputs)
        biases = [node.inputs[2] if len(node.inputs) == 3 else None for node in (gate, up)]
        x = gate.inputs[0]
        out, blocks = _rows_and_blocks(group, "gated_activation")
        emitter.add(
            "linear_gated",
            [
                emitter.address(x),
                emitter.weight(gate.inputs[1]),
                emitter.weight(up.inputs[1]),
                emitter.written(group, out),
                *(emitter.weight(bias) for bias in biases),
                emitter.written(group, blocks),
            ],
            [
                columns(x),
                columns(out),
                *(emitter.format(node.inputs[1]) for node in (gate, up)),
                ACTIVATIONS[gated.attributes["activation"]],
                emitter.mode(x),
                emitter.stride(out),
                emitter.stride(x),
                emitter.mode(blocks),
            ],
        )


class GatedActivationKernel(CpuKernel):
    kind = "gated_activation"
    native = ("gated_activation",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        return _row_refusal(group.members[0].output)

    def emit(self, group: Group, emitter: Emitter) -> None:
        (node,) = group.of("gated_activation")
        out, blocks = _rows_and_blocks(group, "gated_activation")
        values = (*node.inputs, out)
        emitter.add(
            "gated_activation",
            [*(emitter.address(value) for value in node.inputs), *(emitter.written(group, v) for v in (out, blocks))],
            [
                columns(out),
                *(emitter.stride(value) for value in values),
                emitter.mode(blocks),
                ACTIVATIONS[node.attributes["activation"]],
                columns(node.inputs[0]),
            ],
        )


class RopeKernel(CpuKernel):
    kind = "rope"
    native = ("rope", "rope_table")

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        return _is_step_input(group.members[0].inputs[1], "positions")

    def emit(self, group: Group, emitter: Emitter) -> None:
        node = group.members[0]
        x, out = node.inputs[0], node.output
        emitter.add(
            "rope",
            [emitter.address(x), emitter.address(out), emitter.rope_table(node)],
            [
                node.attributes["heads"],
                node.attributes["head_dim"],
                2 * len(node.attributes["inv_freq"]),
                emitter.stride(x),
                emitter.stride(out),
            ],
        )


def _head_refusal(cache: CacheLayer) -> str | None:
    return f"head_dim is {cache.head_dim}, above {MAX_HEAD_DIM}" if cache.head_dim > MAX_HEAD_DIM else None


class CacheWriteKernel(CpuKernel):
    """attention_prepare with nothing to prepare."""

    kind = "cache_write"
    native = ("attention_prepare",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        return _head_refusal(group.of("cache_write")[0].attributes["cache"])

    def emit(self, group: Group, emitter: Emitter) -> None:
        _emit_prepare(group, emitter, q=None)


class AttentionPrepareKernel(CpuKernel):
    """Per-head norms and rope of q (in place) and k, and the write of k and v."""

    kind = "attention_prepare"
    native = ("attention_prepare", "rope_table")

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        turns, norms = group.of("rope"), group.of("rms_norm")
        if len(turns) == 1:
            return "only one of q and k is turned"
        if len({(node.attributes["inv_freq"], node.attributes["attention_factor"]) for node in turns}) > 1:
            return "q and k are turned by different angles"
        if len({node.attributes["eps"] for node in norms}) > 1:
            return "q and k are normalised with different eps"
        for node in turns:
            reason = _is_step_input(node.inputs[1], "positions")
            if reason is not None:
                return reason
        return _head_refusal(group.of("cache_write")[0].attributes["cache"])

    def emit(self, group: Group, emitter: Emitter) -> None:
        ((q, _),) = group.in_place.items()
        _emit_prepare(group, emitter, q)


def _emit_prepare(group: Group, emitter: Emitter, q: Value | None) -> None:
    """q: the query after its preparation, None if it needs none."""
    (write,) = group.of("cache_write")
    cache: CacheLayer = write.attributes["cache"]
    inner = {node.output: node for node in group.members if node is not write}
    k, v = write.inputs
    norms: list[Value | None] = []
    for value in (q, k):
        norm = None
        while value in inner:
            if inner[value].op.name == "rms_norm":
                norm = inner[value].inputs[1]
            value = inner[value].inputs[0]
        norms.append(norm)
        k_start = value
    assert k_start is not None
    turn = next(iter(group.of("rope")), None)
    eps = next((node.attributes["eps"] for node in group.of("rms_norm")), 0.0)
    emitter.add(
        "attention_prepare",
        [
            0 if q is None else emitter.address(q),
            emitter.address(k_start),
            emitter.address(v),
            *(emitter.weight(norm) for norm in norms),
            0 if turn is None else emitter.rope_table(turn),
        ],
        [
            0 if q is None else columns(q) // cache.head_dim,
            cache.num_kv_heads,
            cache.head_dim,
            0 if turn is None else 2 * len(turn.attributes["inv_freq"]),
            0 if q is None else emitter.stride(q),
            emitter.stride(k_start),
            emitter.stride(v),
            *emitter.cache_place(cache),
        ],
        [eps],
    )


class AttentionKernel(CpuKernel):
    kind = "attention"
    native = ("attention", "attention_plan")

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        (node,) = group.of("attention")
        cache: CacheLayer = node.attributes["cache"]
        if node.attributes["num_heads"] // cache.num_kv_heads > 128:
            return "more than 128 query heads per KV head"
        return _head_refusal(cache)

    def always_writes(self, group: Group) -> Sequence[Value]:
        """A row is quantised from float32 once all of its heads stand there."""
        return (group.of("attention")[0].output,)

    def emit(self, group: Group, emitter: Emitter) -> None:
        (node,) = group.of("attention")
        cache: CacheLayer = node.attributes["cache"]
        out, blocks = _rows_and_blocks(group, "attention")
        (q,) = node.inputs
        group_index, key_offset, value_offset, kv_dtype = emitter.cache_place(cache)
        emitter.add(
            "attention",
            [
                emitter.address(q),
                emitter.address(out),
                emitter.written(group, blocks),
                emitter.attention_plan(node),
            ],
            [
                node.attributes["num_heads"],
                cache.num_kv_heads,
                cache.head_dim,
                emitter.stride(q),
                emitter.stride(out),
                group_index,
                key_offset,
                value_offset,
                node.attributes["window"] or 0,
                kv_dtype,
                emitter.mode(blocks),
            ],
            [node.attributes["scale"]],
        )


class RouteKernel(CpuKernel):
    kind = "route"
    native = ("route",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        return _row_refusal(group.members[0].inputs[0])

    def always_writes(self, group: Group) -> Sequence[Value]:
        return group.members[0].outputs

    def emit(self, group: Group, emitter: Emitter) -> None:
        node = group.members[0]
        (logits,) = node.inputs
        choices, weights = node.outputs
        emitter.add(
            "route",
            [emitter.address(value) for value in (logits, choices, weights)],
            [
                columns(logits),
                columns(choices),
                int(node.attributes["is_normalised"]),
                *(emitter.stride(value) for value in (logits, choices, weights)),
            ],
        )


class _ExpertKernel(CpuKernel):
    """What the products with experts share. An expert's matrix starts with a panel of its own."""

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        node = group.members[0]
        weights = [value for value in node.inputs if isinstance(value, Parameter)]
        formats = {settings.formats[weight.name] for weight in weights}
        unknown = sorted(formats - FORMATS.keys())
        if unknown:
            return f"no weight format {', '.join(unknown)}"
        if len({FORMATS[name].is_integer for name in formats}) > 1:
            return "integer and float weight formats in one group"
        rows = rows_of(weights[0]) // node.attributes["num_experts"]
        if rows % _native.PANEL_ROWS:
            return f"an expert's matrix has {rows} rows, not a multiple of {_native.PANEL_ROWS}"
        return _row_refusal(node.inputs[0])

    def quantised_inputs(self, node: Node, settings: CompileSettings) -> Sequence[Value]:
        x, weight, *_ = node.inputs
        return (x,) if FORMATS[settings.formats[weight.name]].is_integer else ()


class ExpertsGatedKernel(_ExpertKernel):
    kind = "experts_gated"
    native = ("experts_gated", "experts_plan")

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        node = group.of("experts_gated")[0]
        inner = rows_of(node.inputs[1]) // node.attributes["num_experts"]
        if group.of("quantise") and inner % STRIP:
            return f"an expert's inner row has {inner} values, which are quantised {STRIP} at a time"
        return super().refuses(group, settings)

    def emit(self, group: Group, emitter: Emitter) -> None:
        (node,) = group.of("experts_gated")
        x, gate, up, choices = node.inputs
        out, blocks = _rows_and_blocks(group, "experts_gated")
        experts = node.attributes["num_experts"]
        plan = emitter.experts_plan(choices, experts)
        emitter.add(
            "experts_gated",
            [
                emitter.address(x),
                emitter.weight(gate),
                emitter.weight(up),
                emitter.written(group, out),
                emitter.written(group, blocks),
                plan,
            ],
            [
                columns(x),
                rows_of(gate) // experts,
                *(emitter.format(weight) for weight in (gate, up)),
                ACTIVATIONS[node.attributes["activation"]],
                emitter.mode(x),
                emitter.stride(x),
                emitter.mode(blocks),
                experts,
                columns(choices),
            ],
        )


class ExpertsDownKernel(_ExpertKernel):
    kind = "experts_down"
    native = ("experts_down", "experts_plan")

    def emit(self, group: Group, emitter: Emitter) -> None:
        (node,) = group.members
        inner, down, choices, weights = node.inputs
        experts = node.attributes["num_experts"]
        plan = emitter.experts_plan(choices, experts)
        emitter.add(
            "experts_down",
            [
                emitter.address(inner),
                emitter.weight(down),
                emitter.address(node.output),
                emitter.address(weights),
                plan,
            ],
            [
                columns(down),
                columns(node.output),
                emitter.format(down),
                emitter.mode(inner),
                emitter.stride(node.output),
                emitter.stride(weights),
                experts,
                columns(choices),
            ],
        )


KERNELS: tuple[type[CpuKernel], ...] = (
    EmbeddingKernel,
    GatherRowsKernel,
    QuantiseKernel,
    RmsNormKernel,
    AddKernel,
    LinearKernel,
    LinearGatedKernel,
    GatedActivationKernel,
    RopeKernel,
    CacheWriteKernel,
    AttentionPrepareKernel,
    AttentionKernel,
    RouteKernel,
    ExpertsGatedKernel,
    ExpertsDownKernel,
)
