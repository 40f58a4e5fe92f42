"""Broken files, impossible requests, no network: each ends with its own exit code, in a message, and loses nothing."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from msgspec.structs import replace

from pelton.platforms.cpu import CpuPlatform
from pelton.runner.assembly import PreparedModel
from pelton.weights import load as loading
from tests.cli.conftest import Pelton
from tests.gguf_copies import LLAMA, copy_gguf
from tests.weights.files import GgufBytes, entry, safetensors_bytes

DATA_START = gguf.GGUFReader(LLAMA).data_offset


def _refused(pelton: Pelton, code: int, *arguments: object, piped: bytes = b"") -> str:
    """Both ways of telling it: a message, and a document under --json."""
    outcome = pelton(*arguments, piped=piped)
    assert (outcome.code, outcome.out) == (code, ""), outcome.err
    message = outcome.err.split("error: ", 1)[1]
    assert "Traceback" not in outcome.err
    document = pelton(*arguments, "--json", piped=piped).document
    assert message.startswith(document["error"]["message"].partition(": ")[0])
    return message


@pytest.mark.parametrize(
    "size",
    [0, 3, 4, 7, 8, 23, 24, 100, 5_000, DATA_START - 1, DATA_START, DATA_START + 1, LLAMA.stat().st_size - 1],
)
def test_a_truncated_file(pelton: Pelton, tmp_path: Path, size: int) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(LLAMA.read_bytes()[:size])
    message = _refused(pelton, 3, "generate", "abc", "--model", path)
    assert str(path) in message
    assert "hint: download or convert it again" in message


def test_another_kind_of_file(pelton: Pelton, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + LLAMA.read_bytes()[4:])
    assert "is not a sound GGUF file" in _refused(pelton, 3, "explain", path)


@pytest.mark.parametrize("counts", [(1 << 62, 3), (3, 1 << 62), (2**32 - 1, 2**32 - 1)])
def test_absurd_counts(pelton: Pelton, tmp_path: Path, counts: tuple[int, int]) -> None:
    broken = GgufBytes()
    broken.counts = counts
    assert "is not a sound GGUF file" in _refused(pelton, 3, "explain", broken.write(tmp_path / "model.gguf"))


def test_a_directory_without_a_model(pelton: Pelton, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in _refused(pelton, 3, "generate", "abc", "--model", tmp_path / "empty")


def test_a_path_that_is_not_there_names_the_nearest(pelton: Pelton) -> None:
    message = _refused(pelton, 3, "generate", "abc", "--model", LLAMA.with_name("lama.gguf"))
    assert f"did you mean `{LLAMA}`" in message


def test_an_unknown_architecture_lists_those_that_are_known(pelton: Pelton, tmp_path: Path) -> None:
    path = copy_gguf(LLAMA, tmp_path / "model.gguf", {"general.architecture": "gemma4"})
    message = _refused(pelton, 3, "explain", path)
    assert "architecture is `gemma4`" in message
    assert "supported are gemma3, llama, qwen3; the nearest is `gemma3`" in message


def test_an_unknown_tensor_type(pelton: Pelton, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    data = bytearray(LLAMA.read_bytes())
    name = b"blk.0.attn_q.weight"
    at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4 + 2 * 8
    data[at : at + 4] = struct.pack("<I", 77)
    path.write_bytes(data)
    message = _refused(pelton, 3, "explain", path)
    assert "blk.0.attn_q.weight" in message
    assert "77" in message


def test_a_renamed_tensor_is_named_with_what_stands_in_its_place(pelton: Pelton, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(LLAMA.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    message = _refused(pelton, 3, "generate", "abc", "--model", path)
    assert "lacks 1 tensor (`blk.0.attn_q.weight`) and has 1 tensor (`blk.0.attn_x.weight`)" in message


def test_a_vocabulary_that_is_larger_than_the_embedding(pelton: Pelton, tmp_path: Path) -> None:
    fields = gguf.GGUFReader(LLAMA).fields
    changes: dict[str, Any] = {
        f"tokenizer.ggml.{key}": [*fields[f"tokenizer.ggml.{key}"].contents(), more]
        for key, more in (("tokens", "zzzz"), ("scores", -1.0), ("token_type", 1))
        if f"tokenizer.ggml.{key}" in fields
    }
    path = copy_gguf(LLAMA, tmp_path / "model.gguf", changes)
    message = _refused(pelton, 3, "generate", "abc", "--model", path)
    count = len(fields["tokenizer.ggml.tokens"].contents())
    assert f"`{count + 1}`" in message
    assert f"`{count}`" in message


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ raise_exception('only in Latin') }}", "refuses this conversation: only in Latin"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}", "did not come to an end"),
        ("{{ messages[0].content.nothing.at_all }}", "the chat template failed"),
        ("{% for m in messages %}", "does not compile"),
    ],
)
def test_a_template_that_goes_wrong(pelton: Pelton, tmp_path: Path, template: str, expected: str) -> None:
    path = copy_gguf(LLAMA, tmp_path / "model.gguf", {"tokenizer.chat_template": template})
    assert expected in _refused(pelton, 3, "run", path, "abc")


def test_a_prompt_longer_than_the_context_is_told_and_not_cut(pelton: Pelton) -> None:
    message = _refused(pelton, 1, "generate", "--model", LLAMA, "--max-model-len", "64", piped=b"abc " * 500)
    assert "the context holds `64`" in message
    assert "shorten the prompt to at most 63 tokens" in message


def test_an_answer_that_meets_the_end_of_the_context_says_so(pelton: Pelton, chat_model: Path) -> None:
    outcome = pelton("run", chat_model, "abc", "--max-model-len", "16", "--temperature", "0")
    assert outcome.code == 0
    assert "the context of 16 tokens is full" in outcome.err


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """small_memory(nbytes): what the machine is said to have."""
    facts = CpuPlatform.plan_facts

    def limit(nbytes: int) -> None:
        limited = lambda self: replace(facts(self), usable_bytes=nbytes, usable_reason="said to be free")  # noqa: E731
        monkeypatch.setattr(CpuPlatform, "plan_facts", limited)

    return limit


def test_a_model_larger_than_memory_says_what_would_fit(pelton: Pelton, small_memory: Callable[[int], None]) -> None:
    small_memory(128 << 20)
    message = _refused(pelton, 4, "generate", "abc", "--model", LLAMA)
    assert "128.0 MiB are said to be free" in message
    assert "hint: free" in message
    assert "of weights" in message


def test_a_size_that_does_not_fit_is_an_error_under_strict(pelton: Pelton, small_memory: Callable[[int], None]) -> None:
    small_memory(132 << 20)
    arguments = ("generate", "abc", "--model", LLAMA, "--max-num-batched-tokens", "100000", "--max-tokens", "2")
    assert "`max_num_batched_tokens` is `100000`" in _refused(pelton, 4, *arguments, "--strict")
    reduced = pelton("explain", LLAMA, "--max-num-batched-tokens", "100000")
    assert reduced.code == 0
    assert "REDUCED\n  max_num_batched_tokens 100000 ->" in reduced.out


@pytest.mark.parametrize("when", ["before the weights are read", "while they are read"])
def test_a_file_that_shrinks(pelton: Pelton, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str) -> None:
    path = tmp_path / "model.gguf"

    def shrink() -> None:
        with path.open("r+b") as file:
            file.truncate(DATA_START + 1000)

    if when == "while they are read":
        add = loading._add

        def add_after(*arguments: Any) -> None:
            shrink()
            add(*arguments)

        monkeypatch.setattr(loading, "_add", add_after)
    else:
        load = PreparedModel.load

        def load_after(self: PreparedModel) -> Any:
            shrink()
            return load(self)

        monkeypatch.setattr(PreparedModel, "load", load_after)
    for flags in ((), ("--json",)):
        path.write_bytes(LLAMA.read_bytes())
        outcome = pelton("generate", "abc", "--model", path, *flags)
        assert outcome.code == 3
        assert str(path) in outcome.out + outcome.err
        assert "wait until it is written completely" in outcome.out + outcome.err


@pytest.mark.parametrize("name", ["pypi:some-model", "some-org/some-model", "some-org/some-model:Q4_K_M"])
def test_offline_without_the_model(pelton: Pelton, name: str) -> None:
    message = _refused(pelton, 5, "generate", "abc", "--model", name)
    assert f"{name}` is not in the model cache, and Pelton is offline" in message


def test_broken_safetensors(pelton: Pelton, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(safetensors_bytes({"a": entry("F32", [4], 0, 16)}, bytes(8)))
    assert str(weights) in _refused(pelton, 3, "generate", "abc", "--model", tmp_path)
    weights.write_bytes(safetensors_bytes({"a": entry("F32", [4], 0, 16)}, bytes(16)))
    assert "config.json" in _refused(pelton, 3, "generate", "abc", "--model", tmp_path)


def test_a_cache_with_a_spoilt_record_still_serves_the_rest(pelton: Pelton, tmp_path: Path) -> None:
    spoilt = tmp_path / "cache" / "models" / "spoilt"
    spoilt.mkdir(parents=True)
    (spoilt / "model.json").write_text("{")
    assert pelton("models").code == 0
    assert pelton("generate", "abc", "--model", LLAMA, "--max-tokens", "2").code == 0
