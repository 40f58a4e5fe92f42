"""Logits of small random models equal the reference library's, from either kind of file and every stored format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from pelton.config import load_settings
from pelton.runner.assembly import prepare
from pelton.runner.capture import forward_logits
from tests.models import tiny
from tests.models.references import Rounding, exact_activations, float16_activations, noise

Array = np.ndarray[Any, Any]

TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, tiny.VOCAB_SIZE, 70)]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
FLOAT_TYPES = ("F32", "F16", "BF16")
LEGACY_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
# Another order of the same float32 sums has up to twice the rounding errors (1.0 to 1.4 times, where it was measured);
# the rounding of activations is the same for all who do it (0.97 to 1.12), up to the luck of the draw. The largest of
# many thousand errors strays more (0.9 to 1.6).
ORDER_OF_SUMS, SAME_NOISE, LARGEST = 2.0, 1.25, 2.0


def check(
    path: Path,
    expected: Array,
    token_ids: list[int] = TOKENS,
    rounding: Rounding | None = None,
    max_model_len: int | None = None,
) -> None:
    """Our logits differ from the expected ones by the noise of computing them, and by nothing else.

    How large that is depends on how the model amplifies what each operation loses, which no formula knows; so it is
    measured: on the ops' references, in float32 against float64. rounding: of what products read, on either side; it
    is then all that counts. An error twice as large as the noise fails: the noise is some 1e-6 of the logits' deviation
    in float32, 1.6e-4 with the 15 bits of exact activations, 8e-4 with float16.
    """
    settings = {"model": str(path), "activations": "exact", "kv_dtype": "f32", "threads": 2}
    prepared = prepare(load_settings({**settings, "max_model_len": max_model_len}))
    program = prepared.load_program()
    error = np.array([list(row) for _, row in forward_logits(program, token_ids)]) - expected
    program.close()
    allowed = noise(prepared, token_ids, rounding)
    assert rms(error) <= (ORDER_OF_SUMS if rounding is None else SAME_NOISE) * rms(allowed)
    assert np.abs(error).max() <= LARGEST * np.abs(allowed).max()


def rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


@pytest.mark.parametrize("name", tiny.NAMES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_float32_safetensors_equal_the_reference(name: str, is_tied: bool, tmp_path: Path) -> None:
    model = tiny.make(name, is_tied=is_tied)
    tiny.save(model, tmp_path, torch.float32)
    expected = tiny.logits(model, TOKENS)
    check(tmp_path, expected)


def test_biases_of_queries_and_their_gates_equal_the_reference(tmp_path: Path) -> None:
    """One tensor has both, head by head. No released model has these biases; the configuration may say so."""
    model = tiny.make("qwen3_5", attention_bias=True)
    tiny.save(model, tmp_path, torch.float32)
    check(tmp_path, tiny.logits(model, TOKENS))


def test_angles_of_short_texts_equal_the_reference_where_only_those_are_served(tmp_path: Path) -> None:
    model = tiny.make("phi3-long")
    tiny.save(model, tmp_path, torch.float32)
    short = TOKENS[: tiny.LONG_TRAINED]
    check(tmp_path, tiny.logits(model, short), short, max_model_len=tiny.LONG_TRAINED)


def test_angles_follow_a_length_that_memory_reduces(tmp_path: Path) -> None:
    tiny.save(tiny.make("phi3-long"), tmp_path, torch.float32)
    path = tmp_path / "config.json"
    longer = {"original_max_position_embeddings": 1 << 15, "max_position_embeddings": 1 << 17, "sliding_window": None}
    path.write_text(json.dumps({**json.loads(path.read_text()), **longer}))
    told = {}
    for kv_cache_bytes in ("1GiB", "4MiB"):
        prepared = prepare(load_settings({"model": str(tmp_path), "kv_cache_bytes": kv_cache_bytes}))
        (rope,) = {node.attributes["inv_freq"] for node in prepared.graph.nodes if node.op.name == "rope"}
        rotary = getattr(prepared.spec.layers[0].mixer, "rotary", None)
        assert rotary is not None
        assert rope == rotary.inv_freq
        told[prepared.plan.decisions["rotary"].value] = rope
    assert told["short"][-1] / told["long"][-1] == pytest.approx(38.0 / 3.8)


@pytest.mark.parametrize("num_tokens", [60, 70])
def test_dynamic_scaling_equals_the_reference_at_the_longest_sequence_served(num_tokens: int, tmp_path: Path) -> None:
    model = tiny.make("qwen2")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 5e4, "factor": 2.0}
    model.config.max_position_embeddings = 60
    model = type(model)(model.config)
    tiny.save(model, tmp_path, torch.float32)
    tokens = TOKENS[:num_tokens]
    check(tmp_path, tiny.logits(model, tokens), tokens, max_model_len=num_tokens)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_width_safetensors_equal_the_reference(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny.make(name)
    tiny.save(model, tmp_path, dtype)
    if name == "gemma3":  # the reference rounds the embedding's scale to the weights' dtype
        scale = torch.tensor(model.config.hidden_size**0.5, dtype=dtype).double()
        model.model.embed_tokens.embed_scale = scale
    expected = tiny.logits(model, TOKENS)
    check(tmp_path, expected)


@pytest.mark.parametrize("kind", [*FLOAT_TYPES, *LEGACY_TYPES])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_gguf_of_every_legacy_type_equals_the_reference(name: str, kind: str, tmp_path: Path) -> None:
    type_ = gguf.GGMLQuantizationType[kind]

    def convert(_: str, values: Array) -> tuple[Any, Any, Array]:
        data = gguf.quants.quantize(values, type_)
        return data, type_, gguf.quants.dequantize(data, type_)

    check_gguf(name, convert, tmp_path, is_float=kind in FLOAT_TYPES)


@pytest.mark.parametrize("kind", K_TYPES)
@pytest.mark.parametrize("name", ["llama-256", "qwen3-256", "gemma3-256"])
def test_gguf_of_every_k_quant_equals_the_reference(name: str, kind: str, tmp_path: Path) -> None:
    """The reference package reads K-quants but does not write them: random blocks stand for weights."""
    type_ = gguf.GGMLQuantizationType[kind]
    generator = np.random.default_rng(3)

    def convert(_: str, values: Array) -> tuple[Any, Any, Array]:
        data = random_blocks(generator, type_, values.shape)
        meant = gguf.quants.dequantize(data, type_)
        return data, type_, meant

    check_gguf(name, convert, tmp_path, is_float=False)


def random_blocks(generator: np.random.Generator, type_: Any, shape: tuple[int, ...]) -> Array:
    """Valid blocks whose values deviate by about 1 / sqrt(columns)."""
    block, nbytes = gguf.GGML_QUANT_SIZES[type_]
    rows, columns = shape
    data = generator.integers(0, 256, (rows, columns // block, nbytes), dtype=np.uint8)
    scale_offsets = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[type_.name]
    for offset in scale_offsets:
        one = np.full(data.shape[:2], 1.0, dtype=np.float16)
        data[:, :, offset : offset + 2] = one.view(np.uint8).reshape(*data.shape[:2], 2)
    deviation = float(gguf.quants.dequantize(data.reshape(rows, -1), type_).std())
    for offset in scale_offsets:
        scale = np.full(data.shape[:2], columns**-0.5 / deviation, dtype=np.float16)
        data[:, :, offset : offset + 2] = scale.view(np.uint8).reshape(*data.shape[:2], 2)
    return data.reshape(rows, -1)


def check_gguf(name: str, convert: Any, tmp_path: Path, *, is_float: bool) -> None:
    model = tiny.make(name)
    path = tmp_path / "model.gguf"
    tiny.write_gguf(model, path, convert)
    expected = tiny.logits(model, TOKENS)
    check(path, expected, rounding=None if is_float else exact_activations)


@pytest.mark.parametrize("name", sorted(path.stem for path in FIXTURES.glob("*.gguf")))
def test_files_of_the_peers_converter_give_the_peers_logits(name: str) -> None:
    """Made by make_llama_cpp_models.py. The peer rounds what float16 products read to float16."""
    described = json.loads((FIXTURES / f"{name}.json").read_text())
    expected = np.fromfile(FIXTURES / f"{name}.logits", dtype="<f4").reshape(len(described["tokens"]), -1)
    path = FIXTURES / f"{name}.gguf"
    check(path, expected, described["tokens"], rounding=float16_activations)
