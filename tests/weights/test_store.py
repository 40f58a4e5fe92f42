"""The model cache holds whole models or nothing, and notices what happened to them since."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pelton.config import StoreSettings
from pelton.errors import DownloadError
from pelton.weights.store import (
    RECORD_NAME,
    Fetched,
    Store,
    StoredFile,
    StoredModel,
    entry_name,
    is_plain_name,
    require_room,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSettings(tmp_path / "cache"))


def fetch_of(data: bytes, revision: str = "1") -> Callable[[Path], Fetched]:
    def fetch(directory: Path) -> Fetched:
        (directory / "a.gguf").write_bytes(data)
        return Fetched(revision, "a.gguf", {"a.gguf": StoredFile(len(data), hashlib.sha256(data).hexdigest())})

    return fetch


def never(directory: Path) -> Fetched:
    raise AssertionError("nothing should be fetched")


def test_added_model_is_found_listed_and_sound(store: Store) -> None:
    added = store.add("pypi:tiny", fetch_of(b"weights"))
    assert added.path.read_bytes() == b"weights"
    assert store.find("pypi:tiny") == store.models()[0]
    assert store.models()[0].record == added.record
    assert (added.nbytes, added.record.revision) == (7, "1")
    assert store.verify(added) == []
    assert store.find("pypi:other") is None


def test_known_model_is_not_fetched_again(store: Store) -> None:
    added = store.add("pypi:tiny", fetch_of(b"weights"))
    assert store.add("pypi:tiny", never).path == added.path


def test_replacing_drops_the_former_version(store: Store) -> None:
    old = store.add("pypi:tiny", fetch_of(b"old", "1"))
    new = store.add("pypi:tiny", fetch_of(b"new", "2"), replace=True)
    same = store.add("pypi:tiny", fetch_of(b"newer", "2"), replace=True)
    assert not old.directory.exists()
    assert new.directory == same.directory
    assert [model.path.read_bytes() for model in store.models()] == [b"newer"]


def test_failed_fetch_leaves_the_cache_as_it_was(store: Store) -> None:
    kept = store.add("pypi:tiny", fetch_of(b"old"))

    def interrupted(directory: Path) -> Fetched:
        (directory / "a.gguf").write_bytes(b"ha")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add("pypi:tiny", interrupted, replace=True)
    with pytest.raises(KeyboardInterrupt):
        store.add("pypi:other", interrupted)
    assert [model.reference for model in store.models()] == ["pypi:tiny"]
    assert store.verify(kept) == []
    assert store.add("pypi:other", fetch_of(b"whole")).path.read_bytes() == b"whole"


def test_unfinished_files_are_there_for_the_next_attempt(store: Store) -> None:
    def interrupted(directory: Path) -> Fetched:
        (directory / "half").write_bytes(b"ha")
        raise DownloadError("no network")

    def resumed(directory: Path) -> Fetched:
        assert (directory / "half").read_bytes() == b"ha"
        return fetch_of(b"whole")(directory)

    with pytest.raises(DownloadError):
        store.add("hf://a/b", interrupted)
    store.add("hf://a/b", resumed)


def test_two_processes_fetch_once(store: Store) -> None:
    """flock excludes descriptors, so two threads stand for two processes."""
    is_fetching, may_finish = threading.Event(), threading.Event()
    calls: list[str] = []

    def slow(directory: Path) -> Fetched:
        calls.append("fetch")
        is_fetching.set()
        assert may_finish.wait(30)
        return fetch_of(b"weights")(directory)

    found: list[StoredModel] = []
    first = threading.Thread(target=lambda: found.append(store.add("pypi:tiny", slow)))
    second = threading.Thread(target=lambda: found.append(store.add("pypi:tiny", slow)))
    first.start()
    assert is_fetching.wait(30)
    second.start()
    may_finish.set()
    first.join(30)
    second.join(30)
    assert calls == ["fetch"]
    assert found[0].path == found[1].path


def test_verify_names_what_is_wrong(store: Store) -> None:
    model = store.add("pypi:tiny", fetch_of(b"weights"))
    model.path.write_bytes(b"weightz")
    (problem,) = store.verify(model)
    assert "has sha256" in problem
    model.path.write_bytes(b"weight")
    (problem,) = store.verify(model)
    assert "has 6 bytes, not 7" in problem
    model.path.unlink()
    (problem,) = store.verify(model)
    assert "can't be read" in problem


def test_removed_model_is_gone(store: Store) -> None:
    model = store.add("pypi:tiny", fetch_of(b"weights"))
    store.remove(model)
    assert store.models() == []
    assert not model.directory.exists()


def test_models_are_listed_by_last_use(store: Store) -> None:
    for name, used_s in (("pypi:a", 100), ("pypi:b", 300), ("pypi:c", 200)):
        model = store.add(name, fetch_of(b"x"))
        os.utime(model.directory / RECORD_NAME, (used_s, used_s))
    assert [model.reference for model in store.models()] == ["pypi:b", "pypi:c", "pypi:a"]
    store.touch(store.models()[2])
    assert store.models()[0].reference == "pypi:a"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"reference":"x","revision":"1","model":"a","files":{},"created_s":0}',
        '{"reference":"x","revision":"1","model":"../a","files":{"../a":{"nbytes":1,"sha256":""}},"created_s":0}',
        '{"reference":"x","revision":"1","model":"/a","files":{"/a":{"nbytes":1,"sha256":""}},"created_s":0}',
    ],
)
def test_broken_record_is_left_out_with_a_warning(store: Store, text: str, caplog: pytest.LogCaptureFixture) -> None:
    directory = store.root / "models" / "x"
    directory.mkdir(parents=True)
    (directory / RECORD_NAME).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert store.models() == []
    assert str(directory) in caplog.text


def test_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(StoreSettings(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match=r"model cache `.*cache` can't be written"):
        store.add("pypi:tiny", never)


def test_lack_of_room_is_told_before_downloading(tmp_path: Path) -> None:
    require_room(tmp_path, 1, "pypi:tiny")
    with pytest.raises(DownloadError, match=r"`pypi:tiny` needs 931322\.57 GiB, and"):
        require_room(tmp_path, 10**15, "pypi:tiny")


def test_names_of_entries_are_safe_and_distinct() -> None:
    names = ["hf://a/b", "hf://a-b", "hf://a/b:Q4", "pypi:a", "..", ".", "a/../../b", "ż", "plain-name_1.0"]
    entries = [entry_name(name) for name in names]
    assert len(set(entries)) == len(names)
    assert all(is_plain_name(entry) and "/" not in entry and not entry.startswith(".") for entry in entries)
    assert entry_name("plain-name_1.0") == "plain-name_1.0"


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "../a", "a/../b", "a//b", "./a", "a\\b", "a\0b", "a/"])
def test_names_that_lead_elsewhere_are_recognised(name: str) -> None:
    assert not is_plain_name(name)


def test_plain_names_may_have_directories() -> None:
    assert is_plain_name("a.gguf")
    assert is_plain_name("Q4_K_M/a-00001-of-00002.gguf")
