"""A request that enters again with what it had said goes on as if nothing had happened."""

from __future__ import annotations

import pytest

from pelton.engine.engine import Engine
from pelton.errors import RequestError
from pelton.sampling_params import SamplingParams
from tests.fake_runner import EOS, engine_of

PROMPT = [5, 6, 7] * 9
SAMPLING = SamplingParams(n=2, max_tokens=12, logprobs=1, prompt_logprobs=0, ignore_eos=True)


def run(engine: Engine) -> tuple[dict[int, list[int]], int]:
    """(tokens by choice, prompt log-probabilities told)."""
    said: dict[int, list[int]] = {}
    num_prompt_logprobs = 0
    while engine.has_work:
        for part in engine.step():
            said.setdefault(part.choice, []).extend(part.token_ids)
            num_prompt_logprobs += len(part.prompt_logprobs or [])
    return said, num_prompt_logprobs


@pytest.mark.parametrize("lengths", [(0, 0), (1, 5), (0, 3), (11, 2)])
def test_a_replayed_request_says_the_rest(lengths: tuple[int, int]) -> None:
    engine = engine_of()
    engine.add("whole", PROMPT, SAMPLING, seed=9)
    whole, num_prompt_logprobs = run(engine)
    engine = engine_of()
    said = [whole[choice][:length] for choice, length in enumerate(lengths)]
    engine.add("again", PROMPT, SAMPLING, seed=9, output_token_ids=said)
    rest, told_again = run(engine)
    assert {choice: said[choice] + rest[choice] for choice in rest} == whole
    assert told_again == (0 if said[0] else num_prompt_logprobs)


def test_a_choice_that_had_ended_is_not_run_again() -> None:
    engine = engine_of()
    sampling = SamplingParams(n=3, max_tokens=4)
    engine.add("a", PROMPT, sampling, seed=1, output_token_ids=[[2, EOS], [], [3, 4, 5, 6]])
    assert list(run(engine)[0]) == [1]
    engine.add("b", PROMPT, sampling, seed=1, output_token_ids=[[EOS], [EOS], [EOS]])
    assert not engine.has_work


@pytest.mark.parametrize(
    ("seed", "said", "message"),
    [
        (1, [[2]], "`1` outputs are to be continued of `2` choices"),
        (None, [[2], []], "only with the seed"),
        (1, [[2] * 13, []], "ends after `12`"),
        (1, [[50], []], "outside"),
    ],
)
def test_what_cannot_be_continued_is_refused(seed: int | None, said: list[list[int]], message: str) -> None:
    engine = engine_of()
    with pytest.raises(RequestError, match=message):
        engine.add("a", PROMPT, SAMPLING, seed=seed, output_token_ids=said)
    assert not engine.has_work
