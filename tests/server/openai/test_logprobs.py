"""Log-probabilities in the two shapes; equality of floats is what clients decide by."""

from __future__ import annotations

import math

import msgspec
import pytest

from pelton.outputs import Logprob, PositionLogprobs
from pelton.server.openai.logprobs import (
    CompletionLogprobsWriter,
    chat_logprobs,
    finite,
    prompt_logprobs,
    token_name,
)
from pelton.text.tokenizer import Tokenizer
from tests.server.openai.fake_llm import FakeLLM


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return FakeLLM().text.tokenizer


def entry(*ranked: tuple[int, float, int]) -> PositionLogprobs:
    return {token_id: Logprob(logprob, rank, "") for token_id, logprob, rank in ranked}


def test_tokens_that_are_part_of_a_character_have_distinct_names() -> None:
    assert token_name("ä".encode()) == "ä"
    assert token_name(b"\xe2\x80") == "bytes:\\xe2\\x80"
    assert token_name(b"") == ""


def test_infinities_become_a_number_and_numbers_stay_themselves() -> None:
    assert finite(-math.inf) == -9999.0
    assert finite(-1e30) == -9999.0
    least = -0.1234567890123456789
    assert finite(least) is least


def test_chat_tells_bytes_and_exactly_as_many_alternatives_as_asked(tokenizer: Tokenizer) -> None:
    (a, b, c) = (tokenizer.encode(text)[0] for text in "abc")
    logprobs = [entry((c, -5.0, 9), (a, -0.5, 1), (b, -1.0, 2)), entry((a, -0.5, 1), (b, -math.inf, 2))]
    found = chat_logprobs([c, a], logprobs, 2, tokenizer)
    first, second = found.content
    assert (first.token, first.logprob, first.bytes) == ("c", -5.0, [99])
    assert [each.token for each in first.top_logprobs] == ["a", "b"]
    assert [each.token for each in second.top_logprobs] == ["a", "b"]
    assert second.top_logprobs[1].logprob == -9999.0
    assert b"null" not in msgspec.json.encode(found.content)
    assert chat_logprobs([c], logprobs[:1], 0, tokenizer).content[0].top_logprobs == []


def test_chosen_token_is_among_the_top_ones_as_the_very_same_float(tokenizer: Tokenizer) -> None:
    (a, b, c) = (tokenizer.encode(text)[0] for text in "abc")
    writer = CompletionLogprobsWriter(1, tokenizer, skip_special=True)
    chosen = -3.0000000001
    found = writer.write([c, a], [entry((c, chosen, 3), (a, -0.5, 1)), entry((a, -0.5, 1), (b, -0.7, 2))])
    assert found.tokens == ["c", "a"]
    assert found.top_logprobs == [{"a": -0.5, "c": chosen}, {"a": -0.5}]
    assert found.token_logprobs[0] is not None
    is_greedy = [
        logprob == max(top.values()) for logprob, top in zip(found.token_logprobs, found.top_logprobs, strict=True)
    ]  # type: ignore[union-attr]
    assert is_greedy == [False, True]


def test_of_tokens_spelled_alike_the_likelier_counts(tokenizer: Tokenizer) -> None:
    beyond = (tokenizer.vocab_size, tokenizer.vocab_size + 1)  # padding of an embedding: both stand for nothing
    writer = CompletionLogprobsWriter(2, tokenizer, skip_special=True)
    found = writer.write([beyond[1]], [entry((beyond[1], -2.0, 2), (beyond[0], -1.0, 1))])
    assert found.top_logprobs == [{"": -1.0}]
    assert found.token_logprobs == [-2.0]


def test_offsets_count_characters_of_the_shown_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.eos_token_id
    assert end is not None
    text = "aä🙂b"
    prompt, answer = tokenizer.encode("öx"), tokenizer.encode(text)
    writer = CompletionLogprobsWriter(0, tokenizer, skip_special=True)
    echoed = writer.echo([end, *prompt], [None, *(entry((each, -1.0, 1)) for each in prompt)], 1, 2)
    assert echoed.text_offset[:2] == [0, 0]
    assert echoed.token_logprobs[0] is None
    assert echoed.top_logprobs[0] is None
    written = [writer.write([each], [entry((each, -1.0, 1))]) for each in (*answer, end, answer[-1])]
    offsets = [offset for part in written for offset in part.text_offset]
    shown = "öx" + text
    assert offsets == sorted(offsets)
    assert offsets[0] == 2
    assert shown[offsets[len(answer) - 1]] == "b"
    assert offsets[-2] == offsets[-1] == len(shown), "the end is not shown"


def test_prompts_in_vllms_shape(tokenizer: Tokenizer) -> None:
    found = prompt_logprobs([None, entry((5, -math.inf, 7), (6, -0.5, 1))])
    assert msgspec.to_builtins(found) == [
        None,
        {
            "5": {"logprob": -9999.0, "rank": 7, "decoded_token": ""},
            "6": {"logprob": -0.5, "rank": 1, "decoded_token": ""},
        },
    ]
