"""A wheel as an archive that nobody vouches for: members are copied one by one, and nothing in it ever runs."""

from __future__ import annotations

import base64
import csv
import email.parser
import hashlib
import io
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Protocol

from pelton.errors import DownloadError

MAX_TEXT_BYTES = 4 << 20  # of METADATA, RECORD and other texts
READ_BYTES = 1 << 20


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


class Wheel:
    """What RECORD says of a member is checked when it is copied."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Wheel:
        try:
            self._archive = zipfile.ZipFile(self.path)
            self._members = {info.filename: info for info in self._archive.infolist() if not info.is_dir()}
            self.info = next(name.split("/")[0] for name in self._members if name.endswith(".dist-info/METADATA"))
            self._metadata = email.parser.Parser().parsestr(self.text(f"{self.info}/METADATA"), headersonly=True)
            self._digests = self._read_record()
        except (zipfile.BadZipFile, StopIteration, csv.Error) as error:
            raise DownloadError(f"`{self.path.name}` is not a wheel: {error}", hint="fetch it again") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    @property
    def version(self) -> str:
        return str(self._metadata["Version"])

    def requirements(self) -> list[str]:
        return [str(requirement) for requirement in self._metadata.get_all("Requires-Dist", [])]

    def names(self) -> list[str]:
        return list(self._members)

    def nbytes(self, names: Iterable[str]) -> int:
        return sum(self._members[name].file_size for name in names)

    def text(self, name: str) -> str:
        if name not in self._members or self._members[name].file_size > MAX_TEXT_BYTES:
            raise DownloadError(f"`{self.path.name}` has no sound `{name}`")
        return self._archive.read(name).decode("utf-8", "replace")

    def append(self, name: str, file: IO[bytes], digest: Digest) -> int:
        """Copies a member to the end of `file` and through `digest`; gives its bytes."""
        member_digest = hashlib.sha256()
        nbytes = 0
        try:
            with self._archive.open(name) as member:
                while block := member.read(READ_BYTES):
                    file.write(block)
                    digest.update(block)
                    member_digest.update(block)
                    nbytes += len(block)
        except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
            raise DownloadError(f"`{name}` in `{self.path.name}` is damaged: {error}", hint="fetch it again") from error
        recorded = self._digests.get(name)
        if recorded is not None and recorded != member_digest.digest():
            raise DownloadError(f"`{name}` in `{self.path.name}` is not what the wheel records", hint="fetch it again")
        return nbytes

    def _read_record(self) -> dict[str, bytes]:
        """sha256 by member name; RECORD leaves out itself, and may leave out others."""
        digests = {}
        for row in csv.reader(io.StringIO(self.text(f"{self.info}/RECORD"))):
            algorithm, _, encoded = row[1].partition("=") if len(row) > 1 else ("", "", "")
            if algorithm == "sha256":
                try:
                    digests[row[0]] = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
                except ValueError as error:
                    raise DownloadError(f"`{self.path.name}` has a malformed RECORD") from error
        return digests
