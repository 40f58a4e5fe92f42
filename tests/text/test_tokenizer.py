from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.errors import ContextLengthError, RequestError, TokenizerError
from pelton.text.tokenizer import byte_of_character, load_tokenizer
from tests.text.vocabularies import NORMAL, byte_level, sentencepiece, wordpiece

BYTE_LEVEL = load_tokenizer(byte_level())
SENTENCEPIECE = load_tokenizer(sentencepiece())
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_control_tokens_in_text_stay_text_unless_the_caller_asks() -> None:
    assert BYTE_LEVEL.bos_token_id not in BYTE_LEVEL.encode("<s>hello</s>")
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode("<s>hello</s>")) == "<s>hello</s>"
    parsed = BYTE_LEVEL.encode("<s>hello</s>", parse_special=True)
    assert (parsed[0], parsed[-1]) == (BYTE_LEVEL.bos_token_id, BYTE_LEVEL.eos_token_id)


def test_user_defined_tokens_are_always_one_token_and_always_shown() -> None:
    (token_id,) = BYTE_LEVEL.encode("<think>")
    assert BYTE_LEVEL.decode([token_id]) == "<think>"
    assert not BYTE_LEVEL.is_control(token_id)


def test_decoding_leaves_control_tokens_out_unless_asked() -> None:
    ids = BYTE_LEVEL.encode("<s>hello</s>", parse_special=True)
    assert BYTE_LEVEL.decode(ids) == "hello"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == "<s>hello</s>"


@given(TEXT)
def test_any_text_survives_byte_level(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text


@given(TEXT)
def test_any_text_survives_sentencepiece(text: str) -> None:
    spaced = text.replace("\u2581", "")  # the mark of a space can't be told from a space
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(spaced)) == spaced


def test_the_rest_of_a_text_keeps_its_first_space() -> None:
    ids = SENTENCEPIECE.encode("hello", add_special=False)
    assert SENTENCEPIECE.decode(ids) == "hello"
    assert SENTENCEPIECE.decode(ids, at_start=False) == " hello"


def test_broken_bytes_become_replacement_characters() -> None:
    first_byte, _ = SENTENCEPIECE.encode("é", add_special=False)[1:]
    assert SENTENCEPIECE.decode([first_byte]) == "\ufffd"


def test_text_longer_than_the_cap_is_refused_before_any_work() -> None:
    assert BYTE_LEVEL.encode("é" * 10, max_bytes=20)
    with pytest.raises(ContextLengthError, match="`22` bytes, more than the `20`"):
        BYTE_LEVEL.encode("é" * 11, max_bytes=20)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(RequestError, match="character `2` is the lone surrogate"):
        BYTE_LEVEL.encode("ab\ud800")


def test_ids_outside_the_vocabulary() -> None:
    for token_id in (-1, BYTE_LEVEL.vocab_size):
        assert BYTE_LEVEL.token_bytes(token_id) == b""
        with pytest.raises(TokenizerError, match="not in the vocabulary"):
            BYTE_LEVEL.token_text(token_id)


def test_a_vocabulary_larger_than_the_embedding_is_refused() -> None:
    BYTE_LEVEL.check_vocab_size(BYTE_LEVEL.vocab_size + 64)
    with pytest.raises(TokenizerError, match="belong to another model"):
        BYTE_LEVEL.check_vocab_size(BYTE_LEVEL.vocab_size - 1)


def test_no_token_stands_for_more_bytes_than_said() -> None:
    assert BYTE_LEVEL.max_token_bytes == len("<think>")
    assert SENTENCEPIECE.max_token_bytes == len(" hello")
    with pytest.raises(TokenizerError):
        _ = load_tokenizer(wordpiece()).max_token_bytes


def test_bytes_that_no_token_spells_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    metadata = byte_level()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    character = next(character for character, byte in byte_of_character().items() if byte == 7)
    tokens[tokens.index(character)] = "other"
    metadata["tokenizer.ggml.token_type"] = [NORMAL] * len(tokens)
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert not caplog.records
    assert tokenizer.decode(tokenizer.encode("a\x07b")) == "ab"
    tokenizer.encode("\x07")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "07" in caplog.text


def test_threads_may_share_a_tokenizer() -> None:
    tokenizer = load_tokenizer(byte_level())

    def encode(index: int) -> tuple[list[int], list[int]]:
        text = f"<s>hello {index}</s>"
        return tokenizer.encode(text), tokenizer.encode(text, parse_special=True)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(encode, range(200)))
    assert found == [encode(index) for index in range(200)]
