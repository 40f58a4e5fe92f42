"""Models in repositories of the Hugging Face hub: which files belong to one, and fetching exactly these at one commit.

The client library is imported when it is first needed. Knows nothing of what is inside the files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

import msgspec

from pelton.errors import DownloadError, ModelNotFoundError
from pelton.sizes import format_bytes
from pelton.weights import progress
from pelton.weights.checkpoint import SIDECAR_NAMES
from pelton.weights.description import CONFIG_NAME
from pelton.weights.gguf import SHARD_NAME
from pelton.weights.reference import HubReference
from pelton.weights.store import Fetched, StoredFile, is_plain_name, require_room, sha256_of

INDEX_NAME = "model.safetensors.index.json"
TIMEOUT_S = 30.0


class RemoteFile(msgspec.Struct, frozen=True):
    """sha256: None for small files, which the hub keeps in git."""

    name: str
    nbytes: int
    sha256: str | None


class Choice(msgspec.Struct, frozen=True):
    """One model among the files of a repository. model: what to open, as in store.Record."""

    label: str
    model: str
    files: tuple[RemoteFile, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


class HubClient(Protocol):
    def files(self, reference: HubReference) -> tuple[str, list[RemoteFile]]:
        """The commit that a revision (or the default branch) is now, and its files."""

    def download(self, repo: str, commit: str, name: str, directory: Path) -> None:
        """Puts one file at its own path below `directory`, going on where a former attempt stopped."""


def fetch_repository(reference: HubReference, directory: Path, client: HubClient) -> Fetched:
    """Puts a repository's model into `directory`. Raises ModelNotFoundError, DownloadError."""
    commit, files = client.files(reference)
    choice = _choose(reference, [file for file in files if is_plain_name(file.name)])
    require_room(directory, choice.nbytes, str(reference))
    stored: dict[str, StoredFile] = {}
    with progress.shown(f"fetching {reference}", directory, choice.nbytes):
        for file in choice.files:
            client.download(reference.repo, commit, file.name, directory)
            stored[file.name] = _checked(file, directory / file.name)
    if choice.model == ".":
        _check_index(reference, directory, stored)
    shutil.rmtree(directory / ".cache", ignore_errors=True)  # the client's own notes for resuming
    return Fetched(commit, choice.model, stored)


def _choose(reference: HubReference, files: Sequence[RemoteFile]) -> Choice:
    choices = _gguf_choices(files)
    if reference.quant is not None:
        named = [choice for choice in choices if _has_quant(choice.model, reference.quant)]
    else:
        named = [whole] if (whole := _safetensors_choice(files)) else choices
    if len(named) == 1:
        return named[0]
    available = named or choices
    if not available:
        raise ModelNotFoundError(
            f"`{reference}` holds no .gguf file" + ("" if reference.quant else " and no config.json with safetensors"),
            hint="pickled weights are not read; look for a GGUF or safetensors version",
        )
    lines = "".join(f"\n  {choice.label}  {format_bytes(choice.nbytes)}" for choice in available)
    wanted = f"`{reference}` is none of" if not named else f"`{reference}` could be any of"
    raise ModelNotFoundError(
        f"{wanted} these:{lines}", hint=f"add the name of one, as in `{reference.repo}:{_quant_of(available[0].model)}`"
    )


def _gguf_choices(files: Iterable[RemoteFile]) -> list[Choice]:
    """Files, with the shards of one model together and the config.json beside them, without vision projectors."""
    groups: dict[str, list[RemoteFile]] = {}
    files = sorted(files, key=lambda file: file.name)
    configs = {PurePosixPath(file.name).parent: file for file in files if PurePosixPath(file.name).name == CONFIG_NAME}
    for file in files:
        path = PurePosixPath(file.name)
        if path.suffix == ".gguf" and not path.name.lower().startswith("mmproj"):
            match = SHARD_NAME.fullmatch(path.name)
            groups.setdefault(str(path.with_name(match["stem"])) if match else file.name, []).append(file)
    found = []
    for group in groups.values():
        path = PurePosixPath(group[0].name)
        beside = [configs[path.parent]] if path.parent in configs else []
        found.append(Choice(path.name, group[0].name, (*group, *beside)))
    return found


def _safetensors_choice(files: Iterable[RemoteFile]) -> Choice | None:
    """config.json, the weights that a loader would take, and what the tokenizer needs; at the top level only."""
    top = {file.name: file for file in files if "/" not in file.name}
    weights = [name for name in top if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors", name)]
    if CONFIG_NAME not in top or not weights:
        return None
    if INDEX_NAME in top:
        weights = [INDEX_NAME, *(name for name in weights if name != "model.safetensors")]
    elif "model.safetensors" in weights:
        weights = ["model.safetensors"]
    names = [CONFIG_NAME, *(name for name in SIDECAR_NAMES if name in top), *weights]
    return Choice("safetensors", ".", tuple(top[name] for name in names))


def _has_quant(name: str, quant: str) -> bool:
    """Whether QUANT stands in a file's path as a word of its own, whatever its case.

    So Q4_K is not in Q4_K_M; and UD-Q4_K_M ("dynamic") is a word of its own beside Q4_K_M.
    """
    return re.search(rf"(?:^|(?<!UD)-|[./]){re.escape(quant)}(?:[-./]|$)", name, re.IGNORECASE) is not None


def _quant_of(name: str) -> str:
    """The last word of a file's name: `model-Q4_K_M.gguf` -> `Q4_K_M`."""
    stem = PurePosixPath(name).name.removesuffix(".gguf")
    shard = SHARD_NAME.fullmatch(PurePosixPath(name).name)
    return re.split(r"(?<!UD)-|\.", shard["stem"] if shard else stem)[-1]


def _checked(file: RemoteFile, path: Path) -> StoredFile:
    nbytes, sha256 = path.stat().st_size, sha256_of(path)
    if nbytes != file.nbytes or (file.sha256 is not None and file.sha256 != sha256):
        path.unlink()
        raise DownloadError(f"`{file.name}` arrived damaged: {nbytes} bytes, sha256 {sha256}", hint="try again")
    return StoredFile(nbytes, sha256)


def _check_index(reference: HubReference, directory: Path, stored: Iterable[str]) -> None:
    """All files that the index names are there. Whether they hold what it says is for the reader."""
    index = directory / INDEX_NAME
    if not index.is_file():
        return
    try:
        named = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, RecursionError, TypeError) as error:
        raise DownloadError(f"the index of `{reference}` can't be read: {error}") from error
    missing = sorted(str(name) for name in named - set(stored))
    if missing:
        raise DownloadError(f"the index of `{reference}` names `{missing[0]}`, which the repository does not hold")


class HuggingFaceClient:
    """The hub through the huggingface_hub library, with the user's own token and endpoint."""

    def files(self, reference: HubReference) -> tuple[str, list[RemoteFile]]:
        from huggingface_hub import HfApi

        with _HubErrors(reference.repo):
            info = HfApi().model_info(
                reference.repo, revision=reference.revision, files_metadata=True, timeout=TIMEOUT_S
            )
        files = [
            RemoteFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
            for file in info.siblings or []
        ]
        if info.sha is None:
            raise DownloadError(f"the hub gives no commit for `{reference}`")
        return info.sha, files

    def download(self, repo: str, commit: str, name: str, directory: Path) -> None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()  # ours covers all files
        with _HubErrors(repo):
            hf_hub_download(repo, name, revision=commit, local_dir=directory)


class _HubErrors:
    """Turns the client library's errors into ours."""

    def __init__(self, repo: str) -> None:
        self.repo = repo

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        from huggingface_hub import errors

        if error is None:
            return
        if isinstance(error, errors.GatedRepoError):
            raise DownloadError(
                f"`{self.repo}` asks for its licence to be accepted",
                hint="accept it on the hub, then run `hf auth login`",
            ) from error
        if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.HFValidationError):
            raise ModelNotFoundError(
                f"the hub has no `{self.repo}` at this revision: {_first_line(error)}",
                hint="check the name; a private repository needs `hf auth login`",
            ) from error
        # Its own error derives from OSError and from that of the HTTP library, which depends on its version.
        if isinstance(error, (OSError, *errors.HfHubHTTPError.__bases__)):
            raise DownloadError(
                f"`{self.repo}` can't be fetched: {_first_line(error)}",
                hint="check the network, then try again: it resumes; or the path, if a local file was meant",
            ) from error


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
