"""Where a step's time goes: each kind of node, as a roofline predicts it and as measured on the loaded weights."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from pelton import _native
from pelton.cache.groups import OFFSET_UNIT
from pelton.graph.program import HEAD_ROWS
from pelton.measure.rates import measure_rates
from pelton.measure.roofline import DECODE_CONTEXT, Rates, StepShape, predict, prefill_steps
from pelton.runner.assembly import prepare
from pelton.runner.capture import block_tables

if TYPE_CHECKING:
    from pelton.config import Settings
    from pelton.graph.kernel import Group
    from pelton.platforms.cpu.program import CpuProgram


class ProfileRow(msgspec.Struct, frozen=True):
    """All nodes that one kernel computes on weights of the same formats. Seconds of a step."""

    kernel: str
    formats: str
    nodes: int
    bound: str
    predicted_s: float
    measured_s: float


def profile_model(settings: Settings, prompt_lengths: Sequence[int], repeat: int) -> list[dict[str, Any]]:
    """A decode of one stream and of as many as eight, and the last step of each prompt: name and rows of each."""
    prepared = prepare(settings)
    program = prepared.load_program()
    try:
        rates = measure_rates(prepared.program, prepared.platform, program.team)
        counts = [count for count in (1, 8) if count <= prepared.plan.limits.max_num_seqs]
        steps = [(f"decode, {count} at once", StepShape(count, 1, DECODE_CONTEXT)) for count in counts]
        steps += [(f"prefill {length}", prefill_steps(prepared.program, length)[-1]) for length in prompt_lengths]
        return [
            {"name": name, "rows": [asdict(row) for row in profile(program, rates, step, repeat)]}
            for name, step in steps
        ]
    finally:
        program.close()


def profile(program: CpuProgram, rates: Rates, step: StepShape, repeat: int) -> list[ProfileRow]:
    """One row per kind, the longest first. Nodes run one after the other, each with a start of its own."""
    measured = measure_groups(program, step, repeat)
    rows: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for time in predict(program.program, rates, step):
        key = (time.group.kernel.name, _formats(program, time.group), time.bound)
        rows.setdefault(key, []).append((time.seconds, measured[time.group]))
    found = [
        ProfileRow(*key[:2], len(each), key[2], sum(first for first, _ in each), sum(second for _, second in each))
        for key, each in rows.items()
    ]
    return sorted(found, key=lambda row: -row.measured_s)


def measure_groups(program: CpuProgram, step: StepShape, repeat: int) -> dict[Group, float]:
    """Seconds of each group, medians over `repeat` steps after one that touches everything."""
    length = step.context + step.rows_each
    tables, nbytes = block_tables(program.program, length)
    pool = _native.Buffer(step.sequences * nbytes, "profile")
    sequences: list[tuple[int, int, int, list[list[int]]]] = []
    positions: list[int] = []
    for index in range(step.sequences):
        start = index * nbytes // OFFSET_UNIT
        own = [[start + block for block in table] for table in tables]
        sequences.append((index * step.rows_each, step.rows_each, step.context, own))
        positions += range(step.context, length)
    last_rows = [(index + 1) * step.rows_each - 1 for index in range(step.sequences)]
    try:
        native = _native.StepInput([1] * step.rows, positions, sequences, last_rows[:HEAD_ROWS], pool)
        runs = [program.native.profile(native) for _ in range(repeat + 1)][1:]
    finally:
        pool.close()
    totals: dict[Group, float] = {}
    for index, group in enumerate(program.native_groups):
        totals[group] = totals.get(group, 0.0) + median(run[index][1] for run in runs)
    return totals


def _formats(program: CpuProgram, group: Group) -> str:
    formats = program.program.settings.formats
    names = {formats[value.name] for value in group.inputs if value.name in formats}
    return ", ".join(sorted(names - {"f32"}))
