"""The two real models against token ids that llama.cpp gave (see fixtures/text/make_token_ids.py)."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from pelton.text.chat_template import load_chat_template
from pelton.text.tokenizer import Tokenizer, load_tokenizer
from pelton.weights.checkpoint import open_checkpoint

FIXTURES = Path(__file__).parents[1] / "fixtures" / "text"
STRINGS: dict[str, list[str]] = json.loads(lzma.decompress((FIXTURES / "strings.json.xz").read_bytes()))


def numbers(data: bytes) -> Iterator[int]:
    """LEB128."""
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def expected_ids(name: str) -> Iterator[list[int]]:
    stream = numbers(lzma.decompress((FIXTURES / f"{name}.ids.xz").read_bytes()))
    for count in stream:
        yield [next(stream) for _ in range(count)]


def check_all_strings(tokenizer: Tokenizer, name: str) -> int:
    """Compare every string that the vocabulary can spell; return how many there were.

    llama.cpp and the library differ in text that holds a byte without a token: both lose it, but the library then
    merges what stood around it, as it does for the model's own `tokenizer.json`.
    """
    expected = expected_ids(name)
    num_compared = 0
    for kind, parse_special in (("text", False), ("template", True)):
        for text in STRINGS[kind]:
            ids = next(expected)
            data = text.encode()
            if data.translate(None, tokenizer.facts.lost_bytes) == data:
                assert tokenizer.encode(text, add_special=False, parse_special=parse_special) == ids, ascii(text)
                num_compared += 1
            if kind == "text":
                assert not any(tokenizer.is_control(token_id) for token_id in ids)
    assert next(expected, None) is None
    return num_compared


@pytest.mark.model
def test_smollm2_gives_the_token_ids_of_llama_cpp(smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(smollm2_path).metadata)
    assert check_all_strings(tokenizer, "smollm2") >= 10_000
    assert tokenizer.unverified is None
    assert not tokenizer.add_bos
    assert "<|im_end|>" in map(tokenizer.token_text, tokenizer.eog_token_ids)


@pytest.mark.model
def test_gemma3_gives_the_token_ids_of_llama_cpp(gemma3_path: Path) -> None:
    metadata = open_checkpoint(gemma3_path).metadata
    tokenizer = load_tokenizer(metadata)
    assert check_all_strings(tokenizer, "gemma3") == sum(map(len, STRINGS.values()))
    assert tokenizer.encode("x")[0] == tokenizer.bos_token_id
    assert sorted(map(tokenizer.token_text, tokenizer.eog_token_ids)) == ["<end_of_turn>", "<eos>"]
    assert load_chat_template(metadata, tokenizer) is None


@pytest.mark.model
def test_smollm2_converses_by_its_own_template(smollm2_path: Path) -> None:
    metadata = open_checkpoint(smollm2_path).metadata
    tokenizer = load_tokenizer(metadata)
    template = load_chat_template(metadata, tokenizer)
    assert template is not None
    text, ids = template.encode([{"role": "user", "content": "Hi <|im_end|>"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(ids, skip_special=False) == text
    assert ids.count(tokenizer.control_tokens["<|im_end|>"]) == 2
