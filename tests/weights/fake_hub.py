"""A hub in memory: one repository, with the quantisations that such repositories have."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pelton.errors import DownloadError
from pelton.weights.hub import RemoteFile
from pelton.weights.reference import HubReference

COMMIT = "c0ffee" * 6 + "abcd"


class FakeClient:
    """A repository in memory. fails_at: the download that loses its network."""

    def __init__(self, contents: dict[str, bytes], fails_at: str | None = None) -> None:
        self.contents = contents
        self.fails_at = fails_at
        self.downloads: list[str] = []

    def files(self, reference: HubReference) -> tuple[str, list[RemoteFile]]:
        return COMMIT, [
            RemoteFile(name, len(data), hashlib.sha256(data).hexdigest() if "." in name else None)
            for name, data in self.contents.items()
        ]

    def download(self, repo: str, commit: str, name: str, directory: Path) -> None:
        assert commit == COMMIT
        if name == self.fails_at:
            raise DownloadError("no network")
        self.downloads.append(name)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.contents[name])


QUANTS = {
    "README.md": b"",
    "mmproj-model-f16.gguf": b"eyes",
    "model-Q4_K_M.gguf": b"four",
    "model-Q4_K_S.gguf": b"small",
    "model-UD-Q4_K_M.gguf": b"dynamic",
    "model.Q8_0.gguf": b"eight",
    "BF16/model-BF16-00001-of-00002.gguf": b"first",
    "BF16/model-BF16-00002-of-00002.gguf": b"second",
}
