"""The cache directory of fetched models: what is there, whole or not at all, and whether it is still what was fetched.

    <cache_dir>/models/<entry>/model.json, files     complete models; model.json is the last thing written
    <cache_dir>/incoming/<entry>/                     unfinished downloads, which the next attempt resumes or replaces
    <cache_dir>/locks/<entry>.lock                    held by the process that downloads

Knows nothing of where models come from (packages, hub) and of what is in them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import msgspec

from pelton.config import StoreSettings
from pelton.errors import DownloadError
from pelton.sizes import format_bytes

logger = logging.getLogger(__name__)

RECORD_NAME = "model.json"
LOCK_WAIT_S = 3600.0  # for another process that downloads the same model
LOCK_POLL_S = 0.2


class StoredFile(msgspec.Struct, frozen=True):
    nbytes: int
    sha256: str


class Record(msgspec.Struct, frozen=True):
    """What model.json says.

    reference: the name that fetched it. revision: the package's version or the repository's commit.
    model:     what to open, relative to the entry: a file, or "." for the directory.
    created_s: seconds since the epoch.
    """

    reference: str
    revision: str
    model: str
    files: dict[str, StoredFile]
    created_s: float


class StoredModel(msgspec.Struct, frozen=True):
    """One complete model. path: for open_checkpoint. last_used_s: seconds since the epoch."""

    record: Record
    directory: Path
    last_used_s: float

    @property
    def reference(self) -> str:
        return self.record.reference

    @property
    def path(self) -> Path:
        return self.directory / self.record.model

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.record.files.values())


class Fetched(msgspec.Struct, frozen=True):
    """What a download put into the directory that it was given. revision, model: as in Record."""

    revision: str
    model: str
    files: dict[str, StoredFile]


class Store:
    def __init__(self, settings: StoreSettings) -> None:
        self.root = settings.cache_dir.expanduser()

    def models(self) -> list[StoredModel]:
        """Complete models, the most recently used first. An entry that can't be read is named in a warning."""
        found = [self._read(directory) for directory in sorted(self.root.glob("models/*")) if directory.is_dir()]
        return sorted((model for model in found if model is not None), key=lambda model: -model.last_used_s)

    def find(self, reference: str) -> StoredModel | None:
        """The latest that was fetched under this name."""
        models = [model for model in self.models() if model.reference == reference]
        return max(models, key=lambda model: model.record.created_s, default=None)

    def add(self, reference: str, fetch: Callable[[Path], Fetched], *, replace: bool = False) -> StoredModel:
        """What `find` gives; if that is nothing (or to be replaced), what `fetch` puts into the directory it is given.

        At most one process fetches a reference, others wait and take what it got. A fetch that fails leaves complete
        models as they are. Raises DownloadError if the directory can't be written, and what `fetch` raises.
        """
        name = entry_name(reference)
        try:
            with self._lock(name):
                known = self.find(reference)
                if known is not None and not replace:
                    return known
                incoming = self.root / "incoming" / name
                incoming.mkdir(parents=True, exist_ok=True)
                fetched = fetch(incoming)
                record = Record(reference, fetched.revision, fetched.model, fetched.files, time.time())
                return self._complete(incoming, record, known)
        except OSError as error:
            raise DownloadError(
                f"the model cache `{self.root}` can't be written: {error.strerror or error}",
                hint="set PELTON_CACHE_DIR to a directory with room",
            ) from error

    def touch(self, model: StoredModel) -> None:
        """Remembers that the model was used now. Not worth an error on a read-only cache."""
        try:
            os.utime(model.directory / RECORD_NAME)
        except OSError as error:
            logger.debug("can't note the use of `%s`: %s", model.reference, error)

    def remove(self, model: StoredModel) -> None:
        """Deletes a model's files, the record first, so that an interruption leaves no half model that looks whole."""
        with self._lock(entry_name(model.reference)):
            (model.directory / RECORD_NAME).unlink(missing_ok=True)
            _remove(model.directory)

    def verify(self, model: StoredModel) -> list[str]:
        """Reads all files and compares with what was recorded; gives what is wrong, one line per file."""
        problems = []
        for name, file in model.record.files.items():
            path = model.directory / name
            try:
                nbytes = path.stat().st_size
                sha256 = sha256_of(path) if nbytes == file.nbytes else None
            except OSError as error:
                problems.append(f"`{path}` can't be read: {error.strerror}")
                continue
            if nbytes != file.nbytes:
                problems.append(f"`{path}` has {nbytes} bytes, not {file.nbytes}")
            elif sha256 != file.sha256:
                problems.append(f"`{path}` has sha256 {sha256}, not {file.sha256}")
        return problems

    def _read(self, directory: Path) -> StoredModel | None:
        path = directory / RECORD_NAME
        try:
            record = msgspec.json.decode(path.read_bytes(), type=Record)
            last_used_s = path.stat().st_mtime
        except FileNotFoundError:
            return None  # being removed, or by hand
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("`%s` is left out of the model cache: %s", path, error)
            return None
        if not all(is_plain_name(name) for name in record.files) or not (
            record.model == "." or record.model in record.files
        ):
            logger.warning("`%s` is left out of the model cache: it names files outside its directory", path)
            return None
        return StoredModel(record, directory, last_used_s)

    def _complete(self, incoming: Path, record: Record, known: StoredModel | None) -> StoredModel:
        """Makes a finished download visible in one step, then drops the one that it replaces."""
        directory = self.root / "models" / f"{entry_name(record.reference)}--{entry_name(record.revision)[:40]}"
        write_whole(incoming / RECORD_NAME, msgspec.json.format(msgspec.json.encode(record)))
        directory.parent.mkdir(parents=True, exist_ok=True)
        if directory.exists():
            _remove(directory)
        incoming.rename(directory)
        if known is not None and known.directory != directory:
            _remove(known.directory)
        return StoredModel(record, directory, record.created_s)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Held until the block ends or the process dies, whatever comes first."""
        path = self.root / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            self._wait_for(file.fileno(), name)
            yield

    def _wait_for(self, fd: int, name: str) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        is_told = False
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            if not is_told:
                logger.warning("waiting for another process that downloads `%s`", name)
                is_told = True
            if time.monotonic() > deadline:
                raise DownloadError(f"another process has been downloading `{name}` for {LOCK_WAIT_S:.0f} s")
            time.sleep(LOCK_POLL_S)


def entry_name(text: str) -> str:
    """A reference or revision as the name of a file: letters, digits, `.`, `_`, `-`; different texts stay different."""
    safe = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in text)
    import hashlib

    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return safe if safe == text and not safe.startswith(".") else f"{safe.strip('.-')}-{digest}"


def is_plain_name(name: str) -> bool:
    """Whether a name from outside stays within the directory that it is put into."""
    path = PurePosixPath(name)
    is_relative = bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name
    return is_relative and "\0" not in name and path.as_posix() == name and name != "."


def sha256_of(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(directory: Path) -> None:
    import shutil

    shutil.rmtree(directory)


def write_whole(path: Path, data: bytes) -> None:
    """The file has its old contents or the new ones, never a part."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    partial.replace(path)


def require_room(directory: Path, nbytes: int, reference: str) -> None:
    """Raises DownloadError if the file system has less than that left."""
    system = os.statvfs(directory)
    free = system.f_bavail * system.f_frsize
    if nbytes > free:
        raise DownloadError(
            f"`{reference}` needs {format_bytes(nbytes)}, and `{directory}` has {format_bytes(free)} left",
            hint="remove models with `pelton models rm`, or set PELTON_CACHE_DIR to a directory with room",
        )
