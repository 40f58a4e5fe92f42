from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from pelton.errors import ModelError, TokenizerError, UnsupportedModelError
from pelton.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.vocabularies import CONTROL, NORMAL, USER_DEFINED, byte_level, sentencepiece, wordpiece


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in ids]


def test_byte_level_merges_in_the_order_of_the_file() -> None:
    tokenizer = load_tokenizer(byte_level())
    assert texts(tokenizer, tokenizer.encode("hello w\n")) == ["hello", "Ġw", "Ċ"]
    assert tokenizer.decode(tokenizer.encode("héllo wörld 😀")) == "héllo wörld 😀"


def test_sentencepiece_joins_the_best_scored_pair_first() -> None:
    tokenizer = load_tokenizer(sentencepiece())
    assert texts(tokenizer, tokenizer.encode("hello world", add_special=False)) == ["▁hello", "▁wor", "l", "d"]


def test_sentencepiece_spells_unknown_characters_in_bytes() -> None:
    tokenizer = load_tokenizer(sentencepiece())
    ids = tokenizer.encode("é", add_special=False)
    assert texts(tokenizer, ids) == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "é"


def test_sentencepiece_prefixes_a_space_unless_told_not_to() -> None:
    assert load_tokenizer(sentencepiece()).decode(load_tokenizer(sentencepiece()).encode("hello")) == "hello"
    bare = load_tokenizer(sentencepiece(add_space_prefix=False))
    assert texts(bare, bare.encode("hello", add_special=False)) == ["hello"]
    assert bare.decode(bare.encode(" hello")) == " hello"


def test_sentencepiece_never_makes_a_control_or_byte_token_of_text() -> None:
    metadata = sentencepiece(add_space_prefix=False)
    tokens, types, scores = (metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "scores"))
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    assert isinstance(scores, list)
    for piece in ("<", "s", ">", "<s", "x", "0", "A", "<0", "<0x", "<0x0", "<0x0A"):  # all that merges would need
        tokens.append(piece)
        types.append(NORMAL)
        scores.append(-50.0)
    tokenizer = load_tokenizer(metadata)
    assert texts(tokenizer, tokenizer.encode("<s>", add_special=False)) == ["<s", ">"]
    assert texts(tokenizer, tokenizer.encode("<0x0A>", add_special=False)) == ["<0x0A", ">"]


def test_wordpiece_frames_a_text_and_bounds_a_word() -> None:
    tokenizer = load_tokenizer(wordpiece())
    assert texts(tokenizer, tokenizer.encode("Hello WORLD!")) == ["[CLS]", "hello", "wor", "##ld", "!", "[SEP]"]
    assert texts(tokenizer, tokenizer.encode("hello" * 30, add_special=False)) == ["[UNK]"]
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_bos_and_eos_follow_the_file_then_the_kind() -> None:
    assert not load_tokenizer(byte_level()).add_bos
    assert load_tokenizer(byte_level(pre="llama-bpe")).add_bos
    assert load_tokenizer(sentencepiece()).add_bos
    told = load_tokenizer(byte_level(add_bos_token=True, add_eos_token=True))
    ids = told.encode("hello")
    assert (ids[0], ids[-1]) == (told.bos_token_id, told.eos_token_id)
    assert told.encode("hello", add_special=False) == ids[1:-1]


def test_a_whole_word_token_stays_whole_where_the_type_ignores_merges() -> None:
    metadata = byte_level(merges="h e")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokens.append("hey")
    types.append(NORMAL)
    assert len(load_tokenizer(metadata).encode("hey")) == 2
    metadata["tokenizer.ggml.pre"] = "llama-bpe"
    assert len(load_tokenizer(metadata).encode("hey", add_special=False)) == 1


@pytest.mark.parametrize(
    ("extra", "ends"),
    [
        ({"<|im_end|>": NORMAL, "<|eot_id|>": CONTROL}, {"</s>", "<|im_end|>", "<|eot_id|>"}),
        ({"<|end|>": CONTROL}, {"</s>", "<|end|>"}),
        ({"<|end|>": CONTROL, "<|return|>": CONTROL, "<|call|>": CONTROL}, {"</s>", "<|return|>", "<|call|>"}),
    ],
)
def test_tokens_that_end_a_generation(extra: dict[str, int], ends: set[str]) -> None:
    metadata = byte_level()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokens.extend(extra)
    types.extend(extra.values())
    tokenizer = load_tokenizer(metadata)
    assert set(texts(tokenizer, sorted(tokenizer.eog_token_ids))) == ends
    assert all(tokenizer.is_control(token_id) for token_id in tokenizer.eog_token_ids)


def test_html_strike_out_ends_nothing() -> None:
    metadata = byte_level(eos_token_id=0)
    metadata["tokenizer.ggml.token_type"] = [
        USER_DEFINED if text == "</s>" else kind
        for text, kind in zip(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.token_type"],
            strict=True,  # type: ignore[call-overload]
        )
    ]
    assert load_tokenizer(metadata).eog_token_ids == {0}


def test_an_unknown_pre_type_warns_by_name_and_is_marked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = load_tokenizer(byte_level(pre="of-tomorrow"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "`of-tomorrow`" in caplog.text
    assert tokenizer.unverified is not None
    assert "`of-tomorrow`" in tokenizer.unverified
    assert tokenizer.encode("hello")


def test_checked_and_unchecked_pre_types_are_told_apart() -> None:
    assert load_tokenizer(byte_level()).unverified is None
    unchecked = load_tokenizer(byte_level(pre="viking")).unverified
    assert unchecked is not None
    assert "`viking`" in unchecked


def change(**changes: object) -> Callable[[dict[str, object]], None]:
    def apply(metadata: dict[str, object]) -> None:
        for name, value in changes.items():
            key = f"tokenizer.ggml.{name}"
            if value is None:
                del metadata[key]
            else:
                metadata[key] = value

    return apply


def edit(name: str, index: int, value: object) -> Callable[[dict[str, object]], None]:
    def apply(metadata: dict[str, object]) -> None:
        values = metadata[f"tokenizer.ggml.{name}"]
        assert isinstance(values, list)
        values[index] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (change(model=None), "tokenizer.ggml.model"),
        (change(tokens=None), "tokenizer.ggml.tokens"),
        (change(tokens=[]), "empty"),
        (change(tokens="abc"), "array of strings"),
        (edit("tokens", 5, 7), "array of strings"),
        (edit("tokens", 5, "hello"), "`hello` twice"),
        (edit("token_type", 5, "x"), "array of numbers"),
        (change(token_type=[1, 2]), "`2` entries"),
        (change(merges=None), "tokenizer.ggml.merges"),
        (edit("merges", 0, "he"), "merges"),
        (edit("merges", 0, "h zzz"), "zzz"),
        (edit("merges", 0, "h z"), "hz"),
        (edit("merges", 0, ""), "merges"),
        (change(bos_token_id=10**6), "`1000000`"),
        (change(eos_token_id=-1), "`-1`"),
        (change(eos_token_id="2"), "eos_token_id"),
        (change(add_bos_token=True, bos_token_id=None), "bos_token_id"),
    ],
)
def test_a_malformed_byte_level_vocabulary_is_named(spoil: Callable[[dict[str, object]], None], named: str) -> None:
    metadata = byte_level()
    spoil(metadata)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(metadata)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (change(scores=None), "tokenizer.ggml.scores"),
        (change(scores=[1.0]), "`1` entries"),
        (edit("scores", 260, float("nan")), "array of numbers"),
        (edit("token_type", 260, float("inf")), "array of numbers"),
        (change(unknown_token_id=10**6), "unknown_token_id"),
        (edit("tokens", 3, "<0xZZ>"), "<0xZZ>"),
    ],
)
def test_a_malformed_sentencepiece_vocabulary_is_named(spoil: Callable[[dict[str, object]], None], named: str) -> None:
    metadata = sentencepiece()
    spoil(metadata)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(metadata)
    assert named in str(caught.value)


def test_an_unknown_kind_of_tokenizer_lists_what_is_supported() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_tokenizer(byte_level(model="rwkv"))
    assert "`gpt2`" in str(caught.value)
    assert isinstance(caught.value, ModelError)


def test_a_token_without_text_is_told_and_keeps_the_ids(caplog: pytest.LogCaptureFixture) -> None:
    metadata = byte_level()
    edit("tokens", 7, "")(metadata)
    tokenizer = load_tokenizer(metadata)
    assert "id `7`" in caplog.text
    assert tokenizer.vocab_size == len(byte_level()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]


def test_gemma_4_gets_its_bos_even_if_the_file_denies_it(caplog: pytest.LogCaptureFixture) -> None:
    metadata = sentencepiece(model="gemma4", add_bos_token=False, merges=["h e", "l l"], bos_token_id=1)
    tokenizer = load_tokenizer(metadata)
    assert texts(tokenizer, tokenizer.encode("he\u00e9 l\n")) == ["<s>", "he", "<0xC3>", "<0xA9>", "▁", "l", "<0x0A>"]
    assert "Gemma 4" in caplog.text


def test_phi_3_control_tokens_swallow_the_spaces_after_them() -> None:
    metadata = byte_level() | {"general.name": "Phi-3 mini"}
    tokenizer = load_tokenizer(metadata)
    end = tokenizer.eos_token_id
    assert tokenizer.encode("</s> \n hello", parse_special=True) == [end, *tokenizer.encode("hello")]
