"""What the `tokenizers` library does is said, and native tokenizers do without it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from pelton.text.tokenizer import load_tokenizer
from tests.text.vocabularies import byte_level, sentencepiece, wordpiece


def test_use_of_the_library_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    load_tokenizer(byte_level())
    load_tokenizer(sentencepiece())
    assert "library" not in caplog.text
    load_tokenizer(wordpiece())
    assert caplog.text.count("the `tokenizers` library makes the token ids") == 1


def test_native_tokenizers_do_not_import_the_library() -> None:
    script = (
        "import sys; from pelton.text.tokenizer import load_tokenizer; from tests.text.vocabularies import byte_level; "
        "load_tokenizer(byte_level()).encode('hello'); print('tokenizers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
