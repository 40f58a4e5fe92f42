"""From a repository the files of one model are fetched, at one commit, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from pelton.errors import DownloadError, ModelNotFoundError, PeltonError
from pelton.weights.hub import HuggingFaceClient, RemoteFile, fetch_repository
from pelton.weights.reference import HubReference
from tests.weights.fake_hub import COMMIT, QUANTS, FakeClient

# The base of the errors of the HTTP library that this version of the client uses.
HTTP_ERROR: type[Exception] = errors.HfHubHTTPError.__bases__[0]


def reference(quant: str | None = None) -> HubReference:
    return HubReference("org/repo", None, quant)


@pytest.mark.parametrize(
    ("quant", "names"),
    [
        ("Q4_K_M", ["model-Q4_K_M.gguf"]),
        ("q4_k_m", ["model-Q4_K_M.gguf"]),
        ("UD-Q4_K_M", ["model-UD-Q4_K_M.gguf"]),
        ("Q8_0", ["model.Q8_0.gguf"]),
        ("BF16", ["BF16/model-BF16-00001-of-00002.gguf", "BF16/model-BF16-00002-of-00002.gguf"]),
        ("model-Q4_K_S", ["model-Q4_K_S.gguf"]),
    ],
)
def test_quant_chooses_files(quant: str, names: list[str], tmp_path: Path) -> None:
    client = FakeClient(QUANTS)
    fetched = fetch_repository(reference(quant), tmp_path, client)
    assert client.downloads == names == list(fetched.files)
    assert (fetched.model, fetched.revision) == (names[0], COMMIT)
    assert all((tmp_path / name).read_bytes() == QUANTS[name] for name in names)


def test_the_config_beside_a_gguf_comes_with_it(tmp_path: Path) -> None:
    files = {**QUANTS, "config.json": b"{}"}
    fetched = fetch_repository(reference("Q4_K_M"), tmp_path, FakeClient(files))
    assert list(fetched.files) == ["model-Q4_K_M.gguf", "config.json"]
    assert fetched.model == "model-Q4_K_M.gguf"
    assert "config.json" not in fetch_repository(reference("BF16"), tmp_path, FakeClient(files)).files


@pytest.mark.parametrize("quant", [None, "Q4", "IQ1_S"])
def test_choice_that_is_not_clear_lists_names_and_sizes(quant: str | None, tmp_path: Path) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"(?s)model-Q4_K_M\.gguf  [0-9.]+ K?i?B.*model\.Q8_0\.gguf.*org/repo:"
    ) as told:
        fetch_repository(reference(quant), tmp_path, FakeClient(QUANTS))
    assert "mmproj" not in str(told.value)


def test_only_model_needs_no_quant(tmp_path: Path) -> None:
    assert fetch_repository(reference(), tmp_path, FakeClient({"a.gguf": b"x"})).model == "a.gguf"


def whole(*extra: str) -> dict[str, bytes]:
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    names = ["config.json", "tokenizer.json", *weight_map.values(), *extra]
    return {
        **{name: name.encode() for name in names},
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
    }


def test_safetensors_come_with_what_they_need_and_nothing_else(tmp_path: Path) -> None:
    extra = ("consolidated.safetensors", "original/model.safetensors", "pytorch_model.bin", "README.md", "x.gguf")
    fetched = fetch_repository(reference(), tmp_path, FakeClient(whole(*extra)))
    assert fetched.model == "."
    assert sorted(fetched.files) == sorted(whole())


def test_file_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    contents = whole()
    del contents["model-00002-of-00002.safetensors"]
    with pytest.raises(DownloadError, match=r"names `model-00002-of-00002\.safetensors`"):
        fetch_repository(reference(), tmp_path, FakeClient(contents))


def test_repository_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf file and no config\.json"):
        fetch_repository(reference(), tmp_path, FakeClient({"pytorch_model.bin": b""}))


def test_names_that_lead_elsewhere_are_not_fetched(tmp_path: Path) -> None:
    client = FakeClient({"../evil.gguf": b"x", "/evil.gguf": b"x"})
    with pytest.raises(ModelNotFoundError):
        fetch_repository(reference(), tmp_path, client)
    assert client.downloads == []


@pytest.mark.parametrize("arrived", [b"fuor", b"fou"])
def test_file_that_arrives_changed_is_refused_and_dropped(arrived: bytes, tmp_path: Path) -> None:
    client = FakeClient({"a.gguf": b"four"})
    files = client.files(reference())
    client.contents["a.gguf"] = arrived
    client.files = lambda reference: files  # type: ignore[method-assign]
    with pytest.raises(DownloadError, match=r"`a\.gguf` arrived damaged"):
        fetch_repository(reference(), tmp_path, client)
    assert not (tmp_path / "a.gguf").exists()


def test_clients_notes_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    fetch_repository(reference(), tmp_path, FakeClient({"a.gguf": b"x"}))
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_client_asks_the_library_for_commit_and_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def model_info(self: object, repo: str, **options: Any) -> SimpleNamespace:
        asked.update(options, repo=repo)
        lfs = SimpleNamespace(sha256="ab", size=4)
        siblings = [
            SimpleNamespace(rfilename="a.gguf", size=4, lfs=lfs),
            SimpleNamespace(rfilename="config.json", size=2, lfs=None),
        ]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    commit, files = HuggingFaceClient().files(HubReference("org/repo", "v1", None))
    assert commit == COMMIT
    assert files == [RemoteFile("a.gguf", 4, "ab"), RemoteFile("config.json", 2, None)]
    assert (asked["repo"], asked["revision"], asked["files_metadata"]) == ("org/repo", "v1", True)


def test_client_downloads_one_file_at_the_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        huggingface_hub,
        "hf_hub_download",
        lambda repo, name, revision, local_dir: calls.append((repo, name, revision, local_dir)),
    )
    HuggingFaceClient().download("org/repo", COMMIT, "a.gguf", tmp_path)
    assert calls == [("org/repo", "a.gguf", COMMIT, tmp_path)]


@pytest.mark.parametrize(
    ("cause", "expected", "message"),
    [
        (lambda: OSError("disk or network"), DownloadError, "disk or network"),
        (lambda: HTTP_ERROR("refused"), DownloadError, "refused"),
        (lambda: errors.OfflineModeIsEnabled("offline"), DownloadError, "offline"),
        (lambda: errors.HFValidationError("bad name"), ModelNotFoundError, "bad name"),
        (lambda: hub_error(errors.RepositoryNotFoundError), ModelNotFoundError, "the hub has no `org/repo`"),
        (lambda: hub_error(errors.RevisionNotFoundError), ModelNotFoundError, "the hub has no `org/repo`"),
        (lambda: hub_error(errors.GatedRepoError), DownloadError, "licence"),
    ],
    ids=["system", "http", "offline", "name", "repository", "revision", "gated"],
)
def test_errors_of_the_library_become_ours(
    cause: Callable[[], Exception],
    expected: type[PeltonError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def model_info(self: object, repo: str, **options: Any) -> None:
        raise cause()

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(expected, match=message):
        HuggingFaceClient().files(reference())


def hub_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    error = kind.__new__(kind)  # the constructor wants the response of an HTTP library, which differs by version
    error.args = ("404",)
    return error
