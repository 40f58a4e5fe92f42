"""Recurrent layers among attention: a token's logits are the same bits in any chunks, beside anybody, in any file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pelton import _native
from pelton.cache.groups import OFFSET_UNIT
from pelton.config import load_settings
from pelton.errors import CheckpointError
from pelton.platforms.cpu.program import CpuProgram
from pelton.runner.assembly import prepare
from pelton.runner.capture import block_tables, num_states
from tests.models import tiny

LENGTH = 70
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, tiny.VOCAB_SIZE, 2 * LENGTH)]
SEQUENCES = (TOKENS[:LENGTH], TOKENS[LENGTH : LENGTH + 40], TOKENS[-LENGTH:])
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module", params=tiny.HYBRID_NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    tiny.save(tiny.make(request.param), path, torch.bfloat16)
    return path


@contextmanager
def loaded(path: Path, num_threads: int = 2) -> Iterator[CpuProgram]:
    program = prepare(load_settings({"model": str(path), "threads": num_threads})).load_program()
    try:
        yield program
    finally:
        program.close()


def run(program: CpuProgram, schedule: Sequence[Sequence[tuple[int, int]]]) -> list[bytes]:
    """Logits of every token of each sequence. schedule: per step, (sequence, rows), at most 32 of them."""
    compiled = program.program
    own_tables, nbytes = block_tables(compiled, LENGTH)
    pool = _native.Buffer(nbytes * len(SEQUENCES), "states")
    logits: list[list[bytes]] = [[] for _ in SEQUENCES]
    name = compiled.graph.outputs["logits"].name
    for step in schedule:
        tokens: list[int] = []
        positions: list[int] = []
        sequences = []
        for index, rows in step:
            context = len(logits[index])
            start = index * nbytes // OFFSET_UNIT
            tables = [[start + block for block in table] for table in own_tables]
            sequences.append((len(tokens), rows, context, tables))
            tokens += SEQUENCES[index][context : context + rows]
            positions += range(context, context + rows)
        all_rows = list(range(len(tokens)))
        program.native.run(_native.StepInput(tokens, positions, sequences, all_rows, pool, num_states(compiled)))
        owners = [index for index, rows in step for _ in range(rows)]
        for row, index in enumerate(owners):
            logits[index].append(bytes(program.row(name, row)[: 4 * tiny.VOCAB_SIZE]))
    pool.close()
    return [b"".join(rows) for rows in logits]


def cut(index: int, size: int) -> list[list[tuple[int, int]]]:
    length = len(SEQUENCES[index])
    return [[(index, min(size, length - start))] for start in range(0, length, size)]


def test_chunks_batches_and_threads_change_no_bit(checkpoint: Path) -> None:
    with loaded(checkpoint) as program:
        alone = [run(program, cut(index, 32))[index] for index in range(len(SEQUENCES))]
        assert np.isfinite(np.frombuffer(b"".join(alone), np.float32)).all()
        for size in (1, 3):
            assert run(program, cut(0, size))[0] == alone[0], f"chunks of {size}"
        ragged = [[(0, 17), (1, 1)], [(2, 20), (0, 3), (1, 9)], [(1, 30), (2, 1)]]
        ragged += [[(0, 25), (2, 2)], [(0, 25), (2, 7)], [(2, 32)], [(2, 8)]]
        assert run(program, ragged) == alone
    with loaded(checkpoint, num_threads=1) as program:
        assert run(program, ragged) == alone


def _wrapped(tensors: Tensors) -> Tensors:
    """As a model that sees stores them, with a tower and a layer that predicts a further token."""
    renamed = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in tensors.items()
    }
    extra = ("model.visual.blocks.0.attn.proj.bias", "mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.mlp.up.weight")
    return {**renamed, **{name: torch.ones(3) for name in extra}}


def _with_joint_experts(tensors: Tensors) -> Tensors:
    """All experts of a layer in two tensors."""
    joint = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    layers = sorted({name.split(".experts.")[0] for name in tensors if ".experts." in name})
    for layer in layers:
        parts: dict[str, list[torch.Tensor]] = {"gate_proj": [], "up_proj": [], "down_proj": []}
        for part, found in parts.items():
            while (name := f"{layer}.experts.{len(found)}.{part}.weight") in tensors:
                found.append(tensors[name])
        pairs = [torch.cat(pair) for pair in zip(parts["gate_proj"], parts["up_proj"], strict=True)]
        joint[f"{layer}.experts.gate_up_proj"] = torch.stack(pairs)
        joint[f"{layer}.experts.down_proj"] = torch.stack(parts["down_proj"])
    return joint


# family, what is done to its tensors, and the architecture that the configuration then names
OTHER_FORMS: list[tuple[str, Callable[[Tensors], Tensors], str]] = [
    ("qwen3_5", _wrapped, "Qwen3_5ForConditionalGeneration"),
    ("qwen3_5_moe", _wrapped, "Qwen3_5MoeForConditionalGeneration"),
    ("qwen3_5_moe", _with_joint_experts, "Qwen3_5MoeForCausalLM"),
    ("qwen3_5_moe", lambda x: _wrapped(_with_joint_experts(x)), "Qwen3_5MoeForConditionalGeneration"),
]


@pytest.mark.parametrize(("family", "rewrite", "architecture"), OTHER_FORMS)
def test_other_forms_of_a_checkpoint_give_the_same_bits(
    family: str, rewrite: Callable[[Tensors], Tensors], architecture: str, tmp_path: Path
) -> None:
    tiny.save(tiny.make(family), tmp_path / "plain", torch.bfloat16)
    other = tmp_path / "other"
    other.mkdir()
    save_file(rewrite(load_file(tmp_path / "plain" / "model.safetensors")), other / "model.safetensors")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    if "Conditional" in architecture:
        config = {"text_config": config, "vision_config": {"depth": 1}, "tie_word_embeddings": True}
    (other / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    with loaded(tmp_path / "plain") as program:
        expected = run(program, cut(1, 32))
    with loaded(other) as program:
        assert run(program, cut(1, 32)) == expected


def _drop(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def _reshape(name: str, *shape: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].reshape(*shape)

    return change


def _narrow(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return change


def _add(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = torch.ones(3)

    return change


CONVOLUTION = "model.layers.0.linear_attn.conv1d.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_drop("model.layers.0.linear_attn.A_log"), r"linear_attn\.A_log"),
        (_drop("model.layers.3.self_attn.q_proj.weight"), r"self_attn\.q_proj"),
        (_narrow("model.layers.3.self_attn.q_proj.weight"), r"self_attn\.q_proj"),
        (_narrow("model.layers.2.linear_attn.in_proj_qkv.weight"), r"linear_attn\.in_proj_qkv"),
        (_narrow("model.layers.1.linear_attn.dt_bias"), r"linear_attn\.dt_bias"),
        (_reshape(CONVOLUTION, 3, 1, -1), "convolution of layer `0`"),
        (_narrow(CONVOLUTION), "convolution of layer `0`"),
        (_add("model.layers.4.linear_attn.A_log"), r"layers\.4\.linear_attn\.A_log"),
        (_add("model.visual.norm.weight"), r"model\.visual"),
        (_add("mtp.other"), r"mtp\.other"),
    ],
)
def test_tensors_that_are_not_the_models_are_named(
    change: Callable[[Tensors], None], named: str, tmp_path: Path
) -> None:
    tiny.save(tiny.make("qwen3_5"), tmp_path, torch.bfloat16)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=named):
        prepare(load_settings({"model": str(tmp_path)}))
