"""What a caller of the engine sees: progress, ends, refusals."""

from __future__ import annotations

import pytest

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.batch import NewRequest
from pelton.engine.engine import Engine
from pelton.engine.request import Progress
from pelton.errors import ContextLengthError, RequestError
from pelton.sampling_params import SamplingParams
from tests.fake_runner import EOS, VOCAB_SIZE, draw, engine_of, logprobs_of, runner_of


def run(engine: Engine) -> dict[tuple[str, int], list[Progress]]:
    parts: dict[tuple[str, int], list[Progress]] = {}
    while engine.has_work:
        for part in engine.step():
            parts.setdefault((part.request_id, part.choice), []).append(part)
        engine.cache.check_integrity()
    assert engine.cache.pool.num_idle_slabs == engine.cache.pool.num_slabs
    return parts


def tokens(parts: list[Progress]) -> list[int]:
    return [token for part in parts for token in part.token_ids]


def expected(prompt: list[int], sampling: SamplingParams, choice: int = 0) -> list[int]:
    """What the fake runner draws, without any engine."""
    assert sampling.max_tokens is not None
    assert sampling.seed is not None
    request = NewRequest(0, prompt, len(prompt), sampling, sampling.seed, choice, (EOS,))
    known = list(prompt)
    while len(known) - len(prompt) < sampling.max_tokens:
        known.append(draw(known, request))
        if known[-1] == EOS and not sampling.ignore_eos:
            break
    return known[len(prompt) :]


def test_output_is_the_same_alone_and_among_others_and_preempted() -> None:
    prompts = [[3 + index] * (5 + 11 * index) for index in range(8)]
    sampling = SamplingParams(max_tokens=60, seed=7)
    engine = engine_of(num_slabs=7)
    for index, prompt in enumerate(prompts):
        engine.add(str(index), prompt, sampling)
    parts = run(engine)
    assert engine.scheduler.num_preemptions > 0
    for index, prompt in enumerate(prompts):
        assert tokens(parts[str(index), 0]) == expected(prompt, sampling)


@pytest.mark.parametrize("budget", [8, 9, 31, 256])
def test_output_does_not_depend_on_how_the_prompt_is_cut(budget: int) -> None:
    groups = [CacheGroupSpec("full", 128), CacheGroupSpec("window", 192, window=20)]
    engine = engine_of(groups=groups, max_num_batched_tokens=budget)
    sampling = SamplingParams(max_tokens=40, seed=3, ignore_eos=True)
    engine.add("a", list(range(2, 40)) * 3, sampling)
    assert tokens(run(engine)["a", 0]) == expected(list(range(2, 40)) * 3, sampling)


def test_choices_are_drawn_apart() -> None:
    engine = engine_of()
    sampling = SamplingParams(n=3, max_tokens=10, seed=5, ignore_eos=True)
    engine.add("a", [4, 5, 6], sampling)
    parts = run(engine)
    answers = [tokens(parts["a", choice]) for choice in range(3)]
    assert answers == [expected([4, 5, 6], sampling, choice) for choice in range(3)]
    assert answers[0] != answers[1]


def test_end_of_sequence_stops() -> None:
    sampling = SamplingParams(max_tokens=200, seed=1)
    engine = engine_of()
    engine.add("a", [9], sampling)
    parts = run(engine)["a", 0]
    assert parts[-1].token_ids == [EOS]
    assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("stop", None)


def test_ignored_end_of_sequence_goes_on() -> None:
    engine = engine_of()
    engine.add("a", [9], SamplingParams(max_tokens=200, seed=1, ignore_eos=True))
    parts = run(engine)["a", 0]
    assert EOS in tokens(parts)[:-1]
    assert parts[-1].finish_reason == "length"


def test_a_stop_token_stops_and_is_named() -> None:
    sampling = SamplingParams(max_tokens=100, seed=1, ignore_eos=True)
    third = expected([9], sampling)[2]
    engine = engine_of()
    engine.add("a", [9], SamplingParams(max_tokens=100, seed=1, ignore_eos=True, stop_token_ids=(third,)))
    parts = run(engine)["a", 0]
    assert tokens(parts) == expected([9], sampling)[:3]
    assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("stop", third)


def test_no_end_before_min_tokens() -> None:
    engine = engine_of()
    engine.add("a", [9], SamplingParams(max_tokens=90, min_tokens=80, seed=1, stop_token_ids=tuple(range(2, 50))))
    assert len(tokens(run(engine)["a", 0])) == 80


def test_max_tokens_ends_with_length() -> None:
    engine = engine_of()
    engine.add("a", [9], SamplingParams(max_tokens=3, ignore_eos=True))
    parts = run(engine)["a", 0]
    assert len(tokens(parts)) == 3
    assert [part.finish_reason for part in parts] == [None, None, "length"]


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_the_end_of_the_context_ends_with_length(max_tokens: int | None) -> None:
    engine = engine_of(max_model_len=48)
    engine.add("a", [9] * 40, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    parts = run(engine)["a", 0]
    assert len(tokens(parts)) == 8
    assert parts[-1].finish_reason == "length"


def test_a_prompt_longer_than_the_context_is_refused_with_the_numbers() -> None:
    engine = engine_of(max_model_len=48)
    with pytest.raises(ContextLengthError, match="`48` tokens; the context holds `48`"):
        engine.add("a", [9] * 48, SamplingParams())
    assert not engine.has_work


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], SamplingParams(), "no tokens"),
        ([VOCAB_SIZE], SamplingParams(), "outside"),
        ([-1], SamplingParams(), "outside"),
        ([1], SamplingParams(logit_bias={VOCAB_SIZE: 1.0}), "`logit_bias` names token `50`; there are `50`"),
        ([1], SamplingParams(stop_token_ids=(VOCAB_SIZE,)), "stop_token_ids"),
        ([1] * 60, SamplingParams(max_tokens=100), "need `1536` bytes of KV cache; the pool has `1024`"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(prompt: list[int], sampling: SamplingParams, message: str) -> None:
    engine = engine_of(num_slabs=2)
    with pytest.raises(RequestError, match=message):
        engine.add("a", prompt, sampling)
    assert not engine.has_work


def test_a_request_id_is_not_used_twice() -> None:
    engine = engine_of()
    engine.add("a", [1], SamplingParams())
    with pytest.raises(RequestError, match="already"):
        engine.add("a", [1], SamplingParams())


def test_an_aborted_request_frees_its_blocks_before_the_next_step() -> None:
    engine = engine_of(max_num_seqs=1)
    engine.add("a", [7] * 20, SamplingParams(max_tokens=100))
    engine.add("b", [7] * 20, SamplingParams(max_tokens=2, ignore_eos=True))
    engine.step()
    assert engine.abort("a")
    assert engine.cache.pool.num_used_blocks(0) == 0
    assert list(run(engine)) == [("b", 0)]


def test_a_waiting_request_can_be_aborted() -> None:
    engine = engine_of(max_num_seqs=1)
    for name in "ab":
        engine.add(name, [7], SamplingParams(max_tokens=3, ignore_eos=True))
    engine.step()
    assert engine.abort("b")
    assert not engine.abort("b")
    assert list(run(engine)) == [("a", 0)]


def test_one_choice_can_be_aborted() -> None:
    engine = engine_of()
    engine.add("a", [7], SamplingParams(n=2, max_tokens=5, ignore_eos=True))
    engine.step()
    assert engine.abort("a", choice=0)
    assert list(run(engine)) == [("a", 1)]


def test_a_failing_slot_ends_alone() -> None:
    sampling = SamplingParams(max_tokens=30, seed=1, ignore_eos=True)
    answers = {name: expected([ord(name) % 40], sampling) for name in "abc"}
    failing = next(token for token in answers["b"] if token not in answers["a"] + answers["c"])
    engine = engine_of(fail_on=failing)
    for name in answers:
        engine.add(name, [ord(name) % 40], sampling)
    parts = run(engine)
    assert parts["b", 0][-1].finish_reason == "error"
    assert parts["b", 0][-1].error == "NaN in the logits"
    assert tokens(parts["a", 0]) == answers["a"]
    assert tokens(parts["c", 0]) == answers["c"]


@pytest.mark.parametrize("interrupt_at", [1, 2, 3, 7])
def test_an_interrupted_step_loses_nothing(interrupt_at: int) -> None:
    sampling = SamplingParams(max_tokens=10, seed=3, ignore_eos=True, prompt_logprobs=0)
    engine = engine_of(max_num_batched_tokens=16)
    runner_of(engine).interrupt_at = interrupt_at
    prompts = {"a": [5] * 30, "b": [6] * 3, "c": [7]}
    for name, prompt in prompts.items():
        engine.add(name, prompt, sampling)
    parts = [part for _ in range(interrupt_at - 1) for part in engine.step()]
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.abort("c")
    while engine.has_work:
        parts += engine.step()
        engine.cache.check_integrity()
    for name in "ab":
        mine = [part for part in parts if part.request_id == name]
        assert tokens(mine) == expected(prompts[name], sampling)
        assert sum(len(part.prompt_logprobs or []) for part in mine) == len(prompts[name]) - 1


def test_logprobs_come_with_their_tokens() -> None:
    engine = engine_of()
    engine.add("a", [7], SamplingParams(max_tokens=3, logprobs=1, ignore_eos=True))
    for part in run(engine)["a", 0]:
        assert part.logprobs == [logprobs_of(token) for token in part.token_ids]


@pytest.mark.parametrize("num_slabs", [64, 3])
def test_every_prompt_logprob_comes_once_and_in_order(num_slabs: int) -> None:
    engine = engine_of(num_slabs=num_slabs, max_num_batched_tokens=10)
    prompt = [(7 * index) % VOCAB_SIZE for index in range(90)]
    sampling = SamplingParams(max_tokens=40, prompt_logprobs=0, ignore_eos=True)
    engine.add("other", [4] * 10, SamplingParams(max_tokens=100, ignore_eos=True))
    engine.add("a", prompt, sampling)
    got = [entry for part in run(engine)["a", 0] for entry in part.prompt_logprobs or []]
    assert got == [logprobs_of(token) for token in prompt[1:]]


def test_a_prompt_of_one_token_has_no_logprobs() -> None:
    engine = engine_of()
    engine.add("a", [7], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert run(engine)["a", 0][0].prompt_logprobs is None


def test_a_request_without_a_seed_gets_one() -> None:
    engine = engine_of()
    for name in "ab":
        engine.add(name, [7], SamplingParams(max_tokens=20, ignore_eos=True))
    parts = run(engine)
    assert tokens(parts["a", 0]) != tokens(parts["b", 0])


def test_closing_closes_the_runner() -> None:
    engine = engine_of()
    engine.close()
    assert runner_of(engine).is_closed
