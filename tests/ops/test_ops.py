"""Every kernel of every provider on every example of its op, against the reference in float64.

A kernel is judged on the inputs that it really got: a product of quantised activations on what those stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pelton.graph.ops
from pelton.errors import KernelError
from pelton.graph.graph import Node, Value
from pelton.graph.op import OPS, Example
from pelton.graph.program import Program, compile
from pelton.graph.step import StepContext
from pelton.platforms.cpu import CpuPlatform
from tests.ops.data import Case, DenseCache, make_case
from tests.ops.machines import cpu_machine, platforms, run_on_tensors, settings_for_case

KV_DTYPES = ("bf16", "f16", "f32")


@dataclass(frozen=True)
class Trial:
    """One example in one format on one provider."""

    op: str
    example: Example
    format: str
    provider: str
    kv_dtype: str

    def __str__(self) -> str:
        return "-".join((self.provider, self.op, self.example.name, self.format, self.kv_dtype))


def wanted_trials() -> Iterator[Trial]:
    """Cache dtypes take turns among examples."""
    for platform in platforms():
        usable = [provider.name for provider in platform.providers() if provider.unusable is None]
        for op in OPS.values():
            for index, example in enumerate(op.examples()):
                for format in example.formats:
                    for name in usable:
                        kv_dtypes = KV_DTYPES if example.cache is not None else KV_DTYPES[:1]
                        yield Trial(op.name, example, format, name, kv_dtypes[index % len(kv_dtypes)])


def compile_trial(trial: Trial) -> tuple[Case, Program]:
    (platform,) = (p for p in platforms() if trial.provider in [provider.name for provider in p.providers()])
    case = make_case(OPS[trial.op], trial.example, trial.format, trial.kv_dtype)
    return case, compile(case.graph, platform, settings_for_case(case, trial.provider, trial.kv_dtype))


def is_taken(trial: Trial) -> bool:
    """Whether the kernel does not decline, which it may (with a reason)."""
    try:
        compile_trial(trial)
    except KernelError as error:
        assert trial.provider in error.message  # noqa: PT017  the reason names who declined
        return False
    return True


TRIALS = [trial for trial in wanted_trials() if is_taken(trial)]


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_kernel_agrees_with_the_reference(trial: Trial) -> None:
    case, program = compile_trial(trial)
    before = DenseCache(trial.kv_dtype)
    before.kept, before.states = dict(case.cache.kept), dict(case.cache.states)
    if trial.provider.startswith("cpu/"):
        values = run_on_cpu(case, program)
    else:
        values = {value: widened(x) for value, x in run_on_tensors(program, case).items()}
    for name, (_, weight) in case.weights.items():
        values[case.graph.parameters[name]] = torch.from_numpy(weight).to(torch.float64)
    for group in program.groups:
        for node in group.members:
            check_node(node, values, StepContext.of(case.example.sequences, before))


def check_node(node: Node, values: dict[Value, Any], step: StepContext) -> None:
    inputs = [values[value] for value in node.inputs]
    expected = node.op.reference(torch, step, *inputs, **node.attributes)
    allowed = node.op.tolerance(torch, step, *inputs, **node.attributes)
    for value, reference, bound in zip(node.outputs, expected, allowed, strict=True):
        error = (values[value] - reference).abs()
        assert values[value].shape == reference.shape
        worst = (error - bound).argmax()
        assert (error <= bound).all(), (
            f"{value.name}: {error.flatten()[worst]:.3g} off where {bound.flatten()[worst]:.3g} is allowed "
            f"(element {int(worst)} of {tuple(reference.shape)})"
        )


def widened(x: Any) -> Any:
    return x.to(torch.float64) if x.is_floating_point() else x


def run_on_cpu(case: Case, program: Program) -> dict[Value, Any]:
    """Runs the program and reads its values. Writes to the cache are compared bitwise at once."""
    graph = case.graph
    with cpu_machine(program) as machine:
        machine.load({name: raw for name, (raw, _) in case.weights.items()})
        for value in program.places:
            if value.name in graph.inputs:
                machine.write(value, case.inputs[value.name])
        machine.fill_cache(case.cache)
        integers = {name: case.inputs[name].tolist() for name in ("token_ids", "positions", "logit_rows")}
        machine.run(**integers, lengths=list(case.example.sequences))
        values = {graph.inputs[name]: widened(case.inputs[name]) for name in graph.inputs}
        for value in program.places:
            num_rows = case.step.num_tokens if value.shape[0] == "tokens" else len(case.example.logit_rows)
            values[value] = machine.read(value, num_rows)
        if case.node.op.name == "cache_write":
            case.node.op.reference(torch, case.step, *(values[x] for x in case.node.inputs), **case.node.attributes)
        for (layer, sequence), (keys, held) in case.cache.kept.items():
            got = machine.read_cache(layer, sequence, len(keys))
            assert torch.equal(got[0], keys)
            assert torch.equal(got[1], held)
    return values


def test_every_kernel_is_reached_by_an_example() -> None:
    """Fused kernels are reached by tests/ops/test_fused.py, which holds them to the same condition."""
    reached = {(trial.provider, trial.op) for trial in TRIALS}
    for platform in platforms():
        for provider in platform.providers():
            if provider.unusable is None:
                missing = [kind for kind in provider.kinds() if kind in OPS and (provider.name, kind) not in reached]
                assert not missing, f"{provider.name}: no example reaches {', '.join(missing)}"


def test_every_usable_level_runs_every_op() -> None:
    (cpu,) = (platform for platform in platforms() if isinstance(platform, CpuPlatform))
    for provider in cpu.providers():
        assert set(OPS) <= set(provider.kinds())


def test_every_weight_format_runs_on_every_level() -> None:
    for provider in CpuPlatform().providers():
        if provider.unusable is None:
            run = {trial.format for trial in TRIALS if trial.provider == provider.name and trial.op == "linear"}
            assert run == set(pelton.graph.formats.FORMATS)
