"""Progress becomes an answer: the same one, however many tokens come at a time."""

from __future__ import annotations

from typing import Any

import pytest

from pelton.answer import Answer
from pelton.engine.batch import TokenLogprobs
from pelton.engine.request import Progress
from pelton.outputs import CompletionOutput
from pelton.sampling_params import SamplingParams
from tests.test_llm import FakeTokenizer

TEXT = "ABCDEFGHIJ"


def answered(num_at_once: int, finish_reason: Any = "length", **fields: Any) -> CompletionOutput:
    """The answer to tokens that come so many at a time."""
    tokenizer: Any = FakeTokenizer()
    answer = Answer("r", None, [5], SamplingParams(max_tokens=10, logprobs=0, **fields), tokenizer)
    tokens = tokenizer.encode(TEXT)
    for start in range(0, len(tokens), num_at_once):
        part = tokens[start : start + num_at_once]
        logprobs = [TokenLogprobs([token], [-0.125 * token], 1) for token in part]
        is_end = start + num_at_once >= len(tokens)
        answer.take(Progress("r", 0, part, logprobs, None, finish_reason if is_end else None))
        if answer.is_finished:
            break
    return answer.output().outputs[0]


@pytest.mark.parametrize("num_at_once", [2, 3, 10])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"finish_reason": "stop"},
        {"finish_reason": "stop", "include_stop_str_in_output": True},
        {"stop": ["EF"]},
        {"stop": ["EF"], "include_stop_str_in_output": True},
        {"stop": ["BC", "GH"], "min_tokens": 5},
        {"stop": ["J"], "finish_reason": "stop"},
        {"stop": ["JK"]},
    ],
)
def test_answer_is_the_same_however_many_tokens_come_at_a_time(num_at_once: int, fields: dict[str, Any]) -> None:
    assert answered(num_at_once, **fields) == answered(1, **fields)


def test_tokens_after_a_stop_string_are_no_part_of_the_answer() -> None:
    output = answered(10, stop=["EF"])
    assert output.text == "ABCD"
    assert len(output.token_ids) == 6
    assert output.logprobs is not None
    assert len(output.logprobs) == 6
    assert output.stop_reason == "EF"
