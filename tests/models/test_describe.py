"""A config.json that is asked for comes before one beside the file, and that before the header of a GGUF."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from pelton.config import load_settings
from pelton.errors import CheckpointError, ModelNotFoundError, PeltonError, UnsupportedModelError
from pelton.models import rotary
from pelton.models.describe import describe
from pelton.models.registry import ARCHITECTURES
from pelton.runner.assembly import PreparedModel, prepare
from pelton.runner.capture import forward_logits
from pelton.weights.checkpoint import open_checkpoint
from tests.models.fake_checkpoint import FakeCheckpoint
from tests.models.test_spec import LLAMA_CONFIG, LLAMA_GGUF, TABLE

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.gguf"))


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())["config"]
    return config


def write(directory: Path, config: Any, name: str = "config.json") -> Path:
    path = directory / name
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return Path(shutil.copy(FIXTURES / "llama.gguf", tmp_path))


def prepared(model: Path, config: Path | None = None) -> PreparedModel:
    return prepare(load_settings({"model": str(model), "model_config": config, "threads": 1}))


def logits(model: PreparedModel) -> list[bytes]:
    program = model.load_program()
    try:
        return [bytes(row) for _, row in forward_logits(program, list(range(4, 24)))]
    finally:
        program.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_is_the_same_model_by_its_header_and_by_its_config(name: str, tmp_path: Path) -> None:
    path = FIXTURES / f"{name}.gguf"
    by_header = describe(open_checkpoint(path)).spec
    checkpoint = open_checkpoint(path, write(tmp_path, config_of(name)))
    by_config = describe(checkpoint, checkpoint.config).spec
    assert by_config.norm_eps == pytest.approx(by_header.norm_eps, rel=1e-6)
    assert by_config.last_norm_factor == pytest.approx(by_header.last_norm_factor, rel=1e-6)
    assert by_config.max_position == by_header.max_position
    for length in (1, by_header.max_position):
        pairs = zip(rotary.at_length(by_config, length).layers, rotary.at_length(by_header, length).layers, strict=True)
        for ours, theirs in pairs:
            assert ours.feed_forward == theirs.feed_forward
            turned, expected = (getattr(layer.mixer, "rotary", None) for layer in (ours, theirs))
            assert (turned is None) == (expected is None)
            if turned is not None and expected is not None:
                assert turned.inv_freq == pytest.approx(expected.inv_freq, rel=1e-6)
                assert turned.attention_factor == pytest.approx(expected.attention_factor, rel=1e-6)


@pytest.mark.parametrize("name", ["granite", "qwen3_5", "gemma3"])
def test_logits_of_a_gguf_by_its_config_are_those_by_its_header(name: str, tmp_path: Path) -> None:
    """To the rounding of header fields to float32."""
    import numpy as np

    path = FIXTURES / f"{name}.gguf"
    by_header, by_config = (
        np.frombuffer(b"".join(logits(prepared(path, config))), np.float32)
        for config in (None, write(tmp_path, config_of(name)))
    )
    assert np.abs(by_config - by_header).max() <= 1e-3 * np.abs(by_header).max()


def test_asked_for_comes_before_beside_and_beside_before_header(llama: Path) -> None:
    assert prepared(llama).spec.max_position == 256
    assert prepared(llama).described.config is None
    beside = write(llama.parent, {**config_of("llama"), "max_position_embeddings": 128})
    assert prepared(llama).spec.max_position == 128
    assert prepared(llama).described.config == beside
    assert prepared(llama.parent).spec.max_position == 128  # the directory is the same model
    asked = llama.parent / "asked"
    asked.mkdir()
    path = write(asked, {**config_of("llama"), "max_position_embeddings": 64})
    assert prepared(llama, path).spec.max_position == 64
    assert prepared(llama, asked).spec.max_position == 64


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, r"another family, Qwen3 \(`Qwen3ForCausalLM`\)"),
        ({"architectures": ["OwlForCausalLM"]}, "`OwlForCausalLM`, which Pelton does not know"),
        ({"hidden_size": 128}, r"disagree on hidden_size: `128` and `96`"),
        ({"num_hidden_layers": 4}, r"disagree on layers: `4` and `3`"),
        ({"num_key_value_heads": 2}, r"disagree on layer 0: mixer: num_kv_heads: `2` and `3`"),
        ({"intermediate_size": 8}, r"disagree on layer 0: feed_forward: intermediate_size: `8` and `160`"),
        ({"embedding_multiplier": 12.0}, r"`embedding_multiplier` = `12\.0`"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ],
)
def test_a_config_that_does_not_fit_is_an_error_if_asked_for_and_else_told(
    change: dict[str, Any], named: str, llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    header = prepared(llama).spec
    beside = write(llama.parent, {**config_of("llama"), **change})
    with pytest.raises((CheckpointError, UnsupportedModelError), match=named):
        prepared(llama, beside)
    with caplog.at_level(logging.WARNING, logger="pelton.models.describe"):
        assert prepared(llama).spec == header
    (told,) = [record.getMessage() for record in caplog.records if record.name == "pelton.models.describe"]
    assert told.startswith(f"`{beside}` beside the model is not used: ")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1, "a": 2}', "\udcff"])
def test_a_config_that_cannot_be_read_stops_nothing_unless_it_is_asked_for(
    text: str, llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beside = llama.parent / "config.json"
    beside.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"config\.json` is malformed"):
        prepared(llama, beside)
    assert prepared(llama).spec.max_position == 256
    assert any("config.json" in record.getMessage() for record in caplog.records)


def test_a_config_that_is_not_there_is_an_error(llama: Path) -> None:
    for path in (llama.parent / "none.json", llama.parent):
        with pytest.raises(ModelNotFoundError, match=r"there is no"):
            prepared(llama, path)


def test_a_mistral_config_describes_a_llama_file(llama: Path, tmp_path: Path) -> None:
    """GGUF knows Mistral as Llama, and nothing of its window."""
    config = {**config_of("llama"), "architectures": ["MistralForCausalLM"], "sliding_window": 7}
    spec = prepared(llama, write(tmp_path, config)).spec
    assert {getattr(layer.mixer, "window", None) for layer in spec.layers} == {7}


def test_safetensors_are_described_by_what_is_asked_for(tmp_path: Path) -> None:
    import torch

    from tests.models import tiny

    tiny.save(tiny.make("qwen3"), tmp_path, torch.float32)
    own = tmp_path / "config.json"
    config = json.loads(own.read_text())
    expected = logits(prepared(tmp_path))
    path = write(tmp_path, {**config, "max_position_embeddings": 100}, "other.json")
    assert prepared(tmp_path, path).spec.max_position == 100
    other = write(tmp_path, {**config, "architectures": ["LlamaForCausalLM"]}, "llama.json")
    with pytest.raises(CheckpointError, match=r"llama\.json` describes a model of another family, Llama"):
        prepared(tmp_path, other)
    moved = own.rename(tmp_path / "moved.json")
    assert logits(prepared(tmp_path, moved)) == expected
    with pytest.raises(ModelNotFoundError):
        prepared(tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
@pytest.mark.parametrize("key", ["clip_qkv", "scale_emb", "attn_logit_softcapping"])
def test_unknown_key_of_a_config_that_changes_answers_is_named(architecture: Any, key: str) -> None:
    config = {**LLAMA_CONFIG, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    config |= {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 32}
    config["architectures"] = [architecture.config_names[0]]
    describe(FakeCheckpoint("safetensors", {**config, key: None}))
    with pytest.raises(UnsupportedModelError, match=f"`{key}`"):
        describe(FakeCheckpoint("safetensors", {**config, key: 30.0}))


@pytest.mark.parametrize(
    "key", ["attention.scale", "logit_scale", "final_logit_softcapping", "rope.scaling.attn_factor"]
)
def test_unknown_key_of_a_header_that_changes_answers_is_named(key: str) -> None:
    neutral = 1.0 if key.endswith("factor") else 0.0
    describe(FakeCheckpoint("gguf", {**LLAMA_GGUF, f"llama.{key}": neutral}, TABLE))
    tensors = {**TABLE, "rope_freqs.weight": TABLE["token_embd.weight"]}
    checkpoint = FakeCheckpoint("gguf", {**LLAMA_GGUF, f"llama.{key}": 1.5}, tensors, {"rope_freqs.weight": [1.0] * 32})
    with pytest.raises(UnsupportedModelError, match=f"`llama.{key}` = `1.5`"):
        describe(checkpoint)


def test_old_and_new_spellings_of_a_config_are_one_model() -> None:
    """Of transformers 4 and 5; dtypes are the tensors' own business."""
    old = {**LLAMA_CONFIG, "torch_dtype": "bfloat16", "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {key: value for key, value in LLAMA_CONFIG.items() if key != "rope_theta"}
    new |= {"dtype": "bfloat16", "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e5}}
    specs = [describe(FakeCheckpoint("safetensors", config)).spec for config in (old, new)]
    assert specs[0] == specs[1]


def test_every_error_is_one_of_peltons(tmp_path: Path) -> None:
    """Whatever a config.json has in place of a value."""
    config = config_of("phi3_long")
    for key in config:
        for value in ([], {}, "x", -1, 1e308, True, None, [{}], {"rope_type": []}):
            header = FakeCheckpoint("safetensors", {**config, key: value})
            try:
                describe(header)
            except PeltonError:
                continue
