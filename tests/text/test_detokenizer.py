from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.text.detokenizer import Detokenizer
from pelton.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.vocabularies import byte_level, sentencepiece, wordpiece

TOKENIZERS = [load_tokenizer(make()) for make in (byte_level, sentencepiece, wordpiece)]


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Any tokens at all, most of them broken bytes, with some beyond the vocabulary."""
    return st.lists(st.integers(0, tokenizer.vocab_size + 2))


@given(st.data(), st.sampled_from(TOKENIZERS), st.booleans(), st.booleans())
def test_token_by_token_is_the_whole(data: st.DataObject, tokenizer: Tokenizer, skip: bool, at_start: bool) -> None:
    ids = data.draw(ids_of(tokenizer))
    detokenizer = Detokenizer(tokenizer, skip_special=skip, at_start=at_start)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    assert "".join([*pieces, detokenizer.finish()]) == tokenizer.decode(ids, skip_special=skip, at_start=at_start)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd\u2581")))
def test_a_character_is_never_split(text: str) -> None:
    for tokenizer in TOKENIZERS[:2]:
        detokenizer = Detokenizer(tokenizer, at_start=True)
        pieces = [detokenizer.push(token_id) for token_id in tokenizer.encode(text, add_special=False)]
        assert "\ufffd" not in "".join(pieces)
        assert "".join(pieces) == text
        assert detokenizer.finish() == ""


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2], ids=["byte-level", "sentencepiece"])
def test_an_unfinished_character_waits_until_the_end(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    *ids, _ = [
        token_id for token_id in tokenizer.encode("😀", add_special=False) if len(tokenizer.token_bytes(token_id)) == 1
    ]
    ids = ids[-3:]
    assert [detokenizer.push(token_id) for token_id in ids] == ["", "", ""]
    assert detokenizer.finish() == "\ufffd"
