"""The native tokenizer gives the token ids of the `tokenizers` library, on all text."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from pelton import _native
from pelton.text.pre_tokenizers import PRE_TOKENIZERS
from pelton.text.tokenizer import Tokenizer, load_tokenizer
from pelton.weights.checkpoint import open_checkpoint
from tests.text.library_reference import reference
from tests.text.vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, byte_level, sentencepiece

CaseCount = Callable[[int, int], int]

# What patterns tell apart, densely: cases of case, marks, digits, spaces, line ends, scripts, beyond the first plane.
ALPHABET = [
    *"abstreST'019.,/!$_-+ \t\r\n\x0b\x85\u00a0\u2028\u3000\u200b\u00ad",
    *"éÉßſK\u0301\u0903\u20e3ǅʰªº中々かナ한ไ٣Ⅷ½—«»€^´😀𝒜𐐀\U000e0100\ue000\U0010ffff\x00",
]
WORDS = ["'s", "'LL", "'ſ", "  ", "\r\n", "1234567", "camelCase", "漢字かな", "IMGIMGABZ", "<sentinel:3>", "é\u0301"]


def random_text(generator: random.Random, extra: Iterable[str] = ()) -> str:
    pool = [*ALPHABET, *WORDS, *extra]
    parts = [generator.choice(pool) * generator.choice((1, 1, 1, 2, 5)) for _ in range(generator.randrange(30))]
    if generator.random() < 0.3:
        parts.append(chr(generator.choice((generator.randrange(0xD800), generator.randrange(0xE000, 0x110000)))))
    return "".join(parts)


def check(tokenizer: Tokenizer, metadata: dict[str, Any], texts: Iterable[str]) -> None:
    library = reference(metadata)
    for text in texts:
        for parse_special in (False, True):
            ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
            expected = library.encode(text, add_special=False, parse_special=parse_special)
            assert ids == expected, ascii(text)


def all_patterns() -> list[str]:
    found = {pattern for rule in PRE_TOKENIZERS.values() for pattern in rule.patterns}
    return sorted(found - {r"(?=(\d{3})+(?!\d))"})  # that one matches nothing at all: see the test of whole rules


def test_every_pattern_matches_what_the_library_matches(case_count: CaseCount) -> None:
    generator = random.Random(1)
    for pattern in all_patterns():
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "removed", invert=True)
        for _ in range(case_count(60, 1500)):
            text = random_text(generator)
            expected = [piece for piece, _ in split.pre_tokenize_str(text)]
            assert _native.pattern_matches(pattern, text) == expected, (pattern, ascii(text))


def test_every_code_point_has_the_librarys_properties(case_count: CaseCount) -> None:
    step = case_count(97, 1)
    text = "".join(chr(code) for code in range(0, 0x110000, step) if not 0xD800 <= code < 0xE000)
    for name in (r"\p{L}", r"\p{N}", r"\p{Lu}", r"\p{Ll}", r"\p{M}", r"\p{P}", r"\p{S}", r"\p{Han}", r"\s", r"\d"):
        split = pre_tokenizers.Split(tokenizers.Regex(name), "removed", invert=True)
        assert _native.pattern_matches(name, text) == [piece for piece, _ in split.pre_tokenize_str(text)], name


@pytest.mark.parametrize("name", sorted({rule: name for name, rule in PRE_TOKENIZERS.items()}.values()))
def test_every_rule_gives_the_librarys_ids(name: str, case_count: CaseCount) -> None:
    generator = random.Random(name)
    if PRE_TOKENIZERS[name].byte_level:
        metadata = byte_level(pre=name, merges="h e,l l,he ll,hell o,Ġ w,1 2,12 3,Ġ Ġ,ĠĠ ĠĠ,' s,Ã ©,s t,e r,st r")
    else:
        metadata = byte_level(pre=name, merges="a b,ab s,▁ ▁,▁▁ ▁▁,1 2")
        metadata["tokenizer.ggml.tokens"] += [f"<0x{byte:02X}>" for byte in range(256)]
        metadata["tokenizer.ggml.token_type"] += [BYTE] * 256
        if "▁" not in metadata["tokenizer.ggml.tokens"]:
            metadata["tokenizer.ggml.tokens"].append("▁")
            metadata["tokenizer.ggml.token_type"].append(NORMAL)
    extra = ("<s>", "<think>", "</s", "hello", "strer", "123")
    check(load_tokenizer(metadata), metadata, (random_text(generator, extra) for _ in range(case_count(60, 1000))))


def random_pieces(generator: random.Random) -> dict[str, Any]:
    """A SentencePiece vocabulary over few characters, so that pieces overlap in every way, with equal scores."""
    metadata = sentencepiece(add_space_prefix=generator.random() < 0.5)
    kept = 259 if generator.random() < 0.5 else 3  # with tokens for bytes or without
    tokens, types = metadata["tokenizer.ggml.tokens"][:kept], metadata["tokenizer.ggml.token_type"][:kept]
    pieces = {"a", "b", "é", "▁"} | {
        "".join(generator.choices("abé▁", k=generator.randrange(2, 7))) for _ in range(generator.randrange(60))
    }
    tokens = [*tokens, *sorted(pieces), "[a]", "ab[", "中"]
    types = [*types, *[NORMAL] * len(pieces), USER_DEFINED, CONTROL, UNKNOWN]
    scores = [float(generator.randrange(8)) for _ in tokens]
    return metadata | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
    }


def test_scores_merge_as_the_librarys_list_of_merges(case_count: CaseCount) -> None:
    generator = random.Random(3)
    for _ in range(case_count(40, 1000)):
        metadata = random_pieces(generator)
        parts = ["a", "b", "é", " ", "ab", "[a]", "ab[", "中", "x", "😀"]
        texts = ["".join(generator.choices(parts, k=generator.randrange(40))) for _ in range(10)]
        check(load_tokenizer(metadata), metadata, texts)


def test_merges_overlap_in_every_way(case_count: CaseCount) -> None:
    generator = random.Random(4)
    for _ in range(case_count(40, 1000)):
        known = ["a", "b", "c"]
        merges: list[str] = []
        for _ in range(generator.randrange(1, 20)):
            left, right = generator.choice(known), generator.choice(known)
            if left + right not in known:
                known.append(left + right)
                merges.append(f"{left} {right}")
        metadata = byte_level(merges=",".join(merges))
        texts = ["".join(generator.choices("abc", k=generator.randrange(60))) for _ in range(10)]
        check(load_tokenizer(metadata), metadata, texts)


def test_byte_without_a_token_is_left_out_and_its_neighbours_merge() -> None:
    metadata = byte_level()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("x")] = "[none]"
    check(load_tokenizer(metadata), metadata, ["hxe", "xhexllx", "x", "xx", "hxexllo <s>x"])


def test_longest_added_token_wins() -> None:
    metadata = byte_level()
    for text in ("<think>ing", "<thin", "<t", "😀<"):
        metadata["tokenizer.ggml.tokens"].append(text)
        metadata["tokenizer.ggml.token_type"].append(USER_DEFINED)
    texts = ["<thinking>", "<think>ing!", "<<thi<think", "<t<th😀<t>", "😀", "<s><think></s>"]
    check(load_tokenizer(metadata), metadata, texts)


def test_many_threads_encode_at_once() -> None:
    generator = random.Random(5)
    metadata = byte_level(pre="qwen2")
    tokenizer = load_tokenizer(metadata)
    texts = [random_text(generator, ("hello", "<think>")) for _ in range(200)]
    expected = [tokenizer.encode(text) for text in texts]
    found: list[list[list[int]]] = []
    threads = [threading.Thread(target=lambda: found.append([tokenizer.encode(t) for t in texts])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


@pytest.mark.parametrize("word", ["a" * 300_000, "ab" * 150_000, " " * 300_000, "a\n" * 100_000, "<" * 300_000])
def test_long_words_are_encoded(word: str) -> None:
    """Slow only if the time is not about linear in the length; the suite's time limit would tell."""
    for metadata in (byte_level(merges="a b,ab ab,Ġ Ġ,a a,aa aa"), sentencepiece()):
        tokenizer = load_tokenizer(metadata)
        assert tokenizer.decode(tokenizer.encode(word), at_start=True) == word


UNKNOWN_PATTERNS = [
    *(
        "(",
        ")",
        "[",
        "[a",
        "[b-a]",
        r"[a-\s]",
        "[[:alpha:]]",
        "\\",
        r"\q",
        r"\p{Klingon}",
        r"\p{",
        ".",
        "^a",
        "(?<=a)b",
    ),
    *("a{", "a{3,1}", "a{9999}", "a*?", "a{2}+", "(a*)*", "(a|)+", "(a)++", "((a{999}){999}){999}", "(" * 60),
]


@pytest.mark.parametrize("pattern", UNKNOWN_PATTERNS)
def test_unknown_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern `"):
        _native.pattern_matches(pattern, "text")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"merges": _native.Strings(("a bc",))}, "token `bc` of merge 0 is not in the vocabulary"),
        ({"merges": _native.Strings(("ab",))}, "not two tokens"),
        ({"merges": None, "scores": [1.0]}, "`3` tokens with `1` scores"),
        ({"merges": None, "scores": [1.0] * 3, "no_pieces": [3]}, "no token `3`"),
        ({"added": [(3, True, False, False)]}, "no token `3`"),
        ({"unknown_id": -2}, "no token `-2`"),
    ],
)
def test_impossible_vocabularies_are_refused(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "added": [],
        "patterns": [],
        "merges": _native.Strings(()),
        "scores": [],
        "no_pieces": [],
    }
    flags = ("byte_level", "space_prefix", "escape_spaces", "drop_unmatched", "ignore_merges", "byte_fallback")
    arguments |= dict.fromkeys(flags, False) | {"unknown_id": None}
    vocabulary = _native.Vocabulary(_native.Strings(("a", "b", "ab")))
    with pytest.raises(ValueError, match=message):
        _native.BytePairTokenizer(vocabulary, **arguments | changed)


@pytest.mark.model
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_vocabularies_give_the_librarys_ids(
    model: str, request: pytest.FixtureRequest, case_count: CaseCount
) -> None:
    path: Path = request.getfixturevalue(model)
    metadata = dict(open_checkpoint(path).metadata)
    generator = random.Random(6)
    texts = [random_text(generator, ("hello world", "Straße", "<unused1>")) for _ in range(case_count(300, 5000))]
    check(load_tokenizer(metadata), metadata, texts)
