"""A whole model on native kernels: near float64 on tensors, and the same bits whatever surrounds a row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pelton import _native
from pelton.graph.formats import FORMATS
from pelton.graph.program import Program, compile
from pelton.platforms.cpu import CpuPlatform
from pelton.platforms.cpu.platform import ALL_KERNELS
from pelton.platforms.cpu.program import FORMAT_IDS, workspace_bytes
from pelton.platforms.torch import TorchPlatform
from pelton.platforms.torch.program import TorchProgram
from tests.graph.tiny_model import build_tiny_model, settings_for
from tests.ops.machines import CpuMachine, cpu_machine
from tests.platforms.steps import one_sequence, random_parameters

PROVIDERS = [provider.name for provider in CpuPlatform().providers() if provider.unusable is None]
CSRC = Path(__file__).resolve().parents[3] / "csrc"
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


def tiny_program(matrices: str = "f32", **settings: object) -> Program:
    graph = build_tiny_model(windows=(6, None))
    return compile(graph, CpuPlatform(), settings_for(graph, matrices, **settings))


def load(machine: CpuMachine) -> None:
    """The parameters of tests/platforms/steps.py, rounded to bf16 where a matrix is stored so."""
    formats = machine.program.settings.formats
    parameters = random_parameters(machine.program.graph, torch.float32)
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    machine.load(
        {name: x.to(dtypes[formats[name]]).view(torch.uint8).numpy().tobytes() for name, x in parameters.items()}
    )


def logits(machine: CpuMachine, num_rows: int = 1) -> torch.Tensor:
    return machine.read(machine.program.value("head"), num_rows)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_logits_agree_with_float64_on_tensors(provider: str) -> None:
    program = tiny_program(kv_dtype="f32", providers=(provider,))
    graph = program.graph
    reference = compile(graph, TorchPlatform(torch.float64), settings_for(graph, "f32", kv_dtype="f64"))
    tensors = TorchProgram(reference, random_parameters(graph, torch.float64), pool_bytes=1 << 20)
    expected = tensors.run(**one_sequence(reference, IDS))["head"]
    with cpu_machine(program) as machine:
        load(machine)
        machine.run(IDS, list(range(20)), [(20, 0)], [19])
        # Two layers of some 15 roundings deep sums of about 100 terms, on logits of about one.
        assert (logits(machine) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("matrices", ["f32", "bf16"])
def test_a_row_has_the_same_bits_alone_batched_and_chunked(provider: str, matrices: str) -> None:
    program = tiny_program(matrices, providers=(provider,))
    head = program.value("head")
    seen = set()
    for chunks, others in (((20,), []), ((7, 9, 4), []), ((1,) * 20, []), ((18, 2), [2, 4])):
        for num_threads in (1, 3):
            with cpu_machine(program, num_threads) as machine:
                load(machine)
                start = 0
                for size in chunks:
                    ids, positions = IDS[start : start + size], range(start, start + size)
                    lengths = [(size, start), *([(len(others), 0)] if others else [])]
                    machine.run([*ids, *others], [*positions, *range(len(others))], lengths, [size - 1])
                    start += size
                seen.add(machine.bits(head, 1))
    assert len(seen) == 1


def test_levels_may_be_mixed_within_a_program() -> None:
    best, generic = PROVIDERS[0], PROVIDERS[-1]
    program = tiny_program(disabled=frozenset({f"{best}/linear", f"{best}/rms_norm"}), providers=(best, generic))
    used = {group.kind: group.kernel.name for group in program.groups}
    assert used["linear"] == f"{generic}/linear"
    assert used["attention"] == f"{best}/attention"
    with cpu_machine(program) as machine:
        load(machine)
        machine.run(IDS, list(range(20)), [(20, 0)], [19])
        assert torch.isfinite(logits(machine)).all()


def test_nothing_is_allocated_before_it_is_asked_for() -> None:
    before = _native.memory_ledger()
    program = tiny_program()
    program.describe()
    needed = program.arena_bytes + sum(packing.nbytes for packing in program.packings)
    assert needed + workspace_bytes(program, 2) > 0
    assert _native.memory_ledger() == before


def test_the_planned_workspace_is_what_is_taken() -> None:
    program = tiny_program()
    before = _native.memory_ledger().get("workspace", 0)
    with cpu_machine(program, num_threads=2):
        taken = _native.memory_ledger()["workspace"] - before
    assert taken == workspace_bytes(program, 2)
    assert _native.memory_ledger().get("workspace", 0) == before


def test_formats_are_numbered_as_the_native_library_does() -> None:
    assert list(FORMAT_IDS) == list(FORMATS)
    header = (CSRC / "formats.h").read_text()
    names = header.split("kFormatNames[kNumFormats] = {")[1].split("}")[0]
    assert [name.strip().strip('"') for name in names.split(",")] == list(FORMAT_IDS)


def test_every_native_kernel_is_used_by_some_kernel() -> None:
    """But those of the runner, and those that only measure."""
    used = {name for kernel in ALL_KERNELS for name in kernel.native}
    for level, is_usable, _ in _native.levels():
        if is_usable:
            native = {name for name in _native.kernels(level) if not name.startswith(("logits.", "peak."))}
            assert native == used


def test_importing_the_platform_is_quick_and_brings_no_array_library() -> None:
    script = "import sys, pelton.platforms.cpu, pelton.graph.program; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "importlib.metadata", "asyncio"} & set(modules)
