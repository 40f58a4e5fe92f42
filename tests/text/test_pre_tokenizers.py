from __future__ import annotations

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from pelton.text.pre_tokenizers import PRE_TOKENIZERS, VERIFIED_NAMES, pre_tokenizer_status, verification


def cut(name: str, text: str) -> list[str]:
    steps = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_type_cuts_without_losing_anything(name: str) -> None:
    text = "Hello  world's 12345 naïve—ÀÉ日本語 かな 한국 ไทย\r\n\n\t x=[1,2];\u00a0😀  <sentinel:3>  "
    assert "".join(cut(name, text)) == text


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "it's 12345  ok", ["it", "'s", " 12345", " ", " ok"]),
        ("gpt-2", "IT'S", ["IT", "'", "S"]),
        ("smollm", "a 123", ["a", " ", "1", "2", "3"]),
        ("llama-bpe", "IT'S 12345!\n\n x", ["IT", "'S", " ", "123", "45", "!\n\n", " x"]),
        ("qwen2", "a 123", ["a", " ", "1", "2", "3"]),
        ("deepseek-v3", "漢字かなabc1234", ["漢字かな", "abc", "123", "4"]),
        ("tekken", "camelCase USA", ["camel", "Case", " USA"]),
        ("gpt-4o", "camelCase's/x", ["camel", "Case's", "/x"]),
        ("tiny_aya", "1234567 12", ["1", "234", "567", " ", "12"]),
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("superbpe", "n 1234567", ["n ", "1", "234", "567"]),
        ("kimi-k2", "漢字abc", ["漢字", "abc"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
        ("bloom", "a b, c", ["a", " b", ",", " c"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
        ("ufakzeka", "Ankara'ya", ["Ankara", "'ya"]),
        ("chameleon", "a  1!?", ["a", "  ", "1", "!", "?"]),
        ("deepseek-llm", "abc 漢字!", ["abc", " ", "漢字", "!"]),
    ],
)
def test_cuts_by_example(name: str, text: str, pieces: list[str]) -> None:
    assert cut(name, text) == pieces


def test_every_type_has_a_status() -> None:
    status = dict(pre_tokenizer_status())
    assert status.keys() == PRE_TOKENIZERS.keys()
    assert {name for name, value in status.items() if value == "verified"} == VERIFIED_NAMES
    assert status["megrez"] == "same rule as `qwen2`"
    assert status["viking"] == verification("viking") == "unverified"
    assert verification("of-tomorrow") == "unverified"
