"""What a step must take on this machine: bytes to read, multiplications to do, at rates measured just now.

Of each group of nodes the longer of the two counts: weights are read once per step, products are made per row. It
knows the graph's costs and a machine's rates, and times nothing itself (measure/rates.py does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pelton.cache.groups import BLOCK_TOKENS
from pelton.graph.graph import TOKENS, Node, Parameter, Value
from pelton.graph.kernel import Group
from pelton.graph.program import Program, dimension

DECODE_CONTEXT = 64  # tokens


class ProductRate(msgspec.Struct, frozen=True):
    """Seconds per multiplication of one row with weights in the cache, at some numbers of rows at once.

    rows:  rising. seconds: as many. Between them it changes linearly, beyond them not at all.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: float) -> float:
        for low, high, first, last in zip(self.rows, self.rows[1:], self.seconds, self.seconds[1:], strict=False):
            if rows < high:
                share = max(0.0, (rows - low) / (high - low))
                return first + (last - first) * share
        return self.seconds[-1]


class Rates(msgspec.Struct, frozen=True):
    """What a machine does, measured with the kernels that the program uses.

    read_bytes_per_s:  from memory, by all threads together.
    node_s:            of a node that has next to nothing to do: its start and its barrier.
    norm_s:            per value that is normed; turning and adding count as much.
    quantise_s:        per value that is quantised.
    activation_s:      per value of a gated activation, by its name.
    products:          by weight format. attention: by (heads, KV heads, head_dim), per position of the context.
    """

    read_bytes_per_s: float
    node_s: float
    norm_s: float
    quantise_s: float
    activation_s: Mapping[str, float]
    products: Mapping[str, ProductRate]
    attention: Mapping[tuple[int, int, int], ProductRate]

    def value_seconds(self, node: Node) -> float:
        """Per value of a node that multiplies with nothing."""
        if node.op.name == "quantise":
            return self.quantise_s
        return self.activation_s.get(node.attributes.get("activation", ""), self.norm_s)


class StepShape(msgspec.Struct, frozen=True):
    """Rows of a step: `sequences` of them at once, each with `rows_each` new tokens behind `context` others.

    logit_rows: rows that reach the head.
    """

    sequences: int
    rows_each: int
    context: int

    @property
    def rows(self) -> int:
        return self.sequences * self.rows_each

    @property
    def logit_rows(self) -> int:
        return self.sequences

    @property
    def mean_position(self) -> float:
        """Positions that a row sees on average, its own included."""
        return self.context + (self.rows_each + 1) / 2


class GroupTime(msgspec.Struct, frozen=True):
    """What a group of nodes must take. bound: "memory" or "arithmetic", whichever is longer."""

    group: Group
    seconds: float
    bound: str


def predict(program: Program, rates: Rates, step: StepShape) -> list[GroupTime]:
    """One per group, in order of execution."""
    nbytes = {packing.parameter: packing.nbytes for packing in program.packings}
    return [_group_time(group, program, nbytes, rates, step) for group in program.groups]


def _group_time(group: Group, program: Program, nbytes: Mapping[str, int], rates: Rates, step: StepShape) -> GroupTime:
    rows = step.rows if dimension(group) == TOKENS else step.logit_rows
    memory, arithmetic = 0.0, 0.0
    for node in group.members:
        inputs, attributes = node.inputs, node.attributes
        products = node.op.products(*inputs, **attributes)
        if products:
            weights = [value.name for value in inputs if isinstance(value, Parameter)]
            share = node.op.read_share(rows, *inputs, **attributes)
            memory += share * sum(nbytes[name] for name in weights) / rates.read_bytes_per_s
            arithmetic += rows * products * rates.products[program.settings.formats[weights[0]]].at(rows)
            continue
        each = node.op.position_products(*inputs, **attributes)
        if each:
            window = attributes["window"] or step.mean_position
            positions = min(step.mean_position, window)
            cache = attributes["cache"]
            keys, values = program.cache_layout[cache.group].offsets[cache.layer]
            read = step.sequences * positions * 2 * (values - keys) / BLOCK_TOKENS
            memory += read / rates.read_bytes_per_s
            rate = rates.attention[(attributes["num_heads"], cache.num_kv_heads, cache.head_dim)]
            arithmetic += rows * positions * each * rate.at(step.rows_each)
        else:
            arithmetic += rows * _row_values(node.outputs or list(inputs)) * rates.value_seconds(node)
    bound = "memory" if memory > arithmetic else "arithmetic"
    return GroupTime(group, max(memory, arithmetic) + rates.node_s, bound)


def _row_values(values: Sequence[Value]) -> int:
    """Values of a row."""
    sizes = [value.shape[1] if len(value.shape) > 1 else 1 for value in values]
    return sum(size for size in sizes if isinstance(size, int))


class SpeedRow(msgspec.Struct, frozen=True):
    """A rate that a user would see. bound: what takes most of the time."""

    name: str
    tokens_per_s: float
    bound: str


def predict_speed(
    program: Program, rates: Rates, prompt_lengths: Sequence[int], streams: Sequence[int]
) -> list[SpeedRow]:
    """Of prompts alone, and of decodes at a short context with so many streams at once."""
    rows = []
    for length in prompt_lengths:
        steps = prefill_steps(program, length)
        rows.append(_speed_row(f"prefill {length}", length, [predict(program, rates, step) for step in steps]))
    for count in streams:
        name = "decode, 1 stream" if count == 1 else f"decode, {count} streams"
        rows.append(_speed_row(name, count, [predict(program, rates, StepShape(count, 1, DECODE_CONTEXT))]))
    return rows


def prefill_steps(program: Program, num_tokens: int) -> list[StepShape]:
    """A prompt alone, in steps as large as the program takes."""
    most = program.settings.max_tokens
    return [StepShape(1, min(most, num_tokens - start), start) for start in range(0, num_tokens, most)]


def _speed_row(name: str, num_tokens: int, steps: Sequence[Sequence[GroupTime]]) -> SpeedRow:
    times = [time for step in steps for time in step]
    total = sum(time.seconds for time in times)
    memory = sum(time.seconds for time in times if time.bound == "memory")
    return SpeedRow(name, num_tokens / total, "memory" if memory > total / 2 else "arithmetic")
