"""The sampler, row by row, against a model of it in numpy (sampler_model.py) and against torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pelton import _native
from pelton.sampling_params import SamplingParams
from tests.runner import sampler_model as model
from tests.runner.conftest import RowRunner

# Around vectors of 16 and blocks of 256, one odd, and one with more blocks than top_k.
VOCAB_SIZES = [1, 2, 15, 16, 17, 255, 256, 257, 1000, 12_345]
GREEDY = SamplingParams(temperature=0)


def random_row(rng: np.random.Generator, vocab_size: int, scale: float = 3.0) -> np.ndarray:
    return (rng.normal(size=vocab_size) * scale).astype(np.float32)


def mask_of(allowed: np.ndarray) -> bytes:
    """One bit per token, in little-endian words of 32, as the grammar gives them."""
    bits = np.zeros(-(-len(allowed) // 32) * 32, np.uint8)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").tobytes()


# ---- Greedy ----


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_greedy_takes_the_likeliest_token_wherever_it_is(team: _native.Team, vocab_size: int) -> None:
    runner = RowRunner(team, vocab_size)
    for token_id in {0, vocab_size // 2, max(0, vocab_size - 2), vocab_size - 1}:
        row = np.full(vocab_size, -5.0, np.float32)
        row[token_id] = -4.0
        assert runner.sample(row, GREEDY).token_id == token_id


def test_equal_logits_go_to_the_lowest_id(team: _native.Team) -> None:
    runner = RowRunner(team, 1000)
    row = np.zeros(1000, np.float32)
    for ties in ([3, 4], [255, 256], [17, 999], [0, 500, 998]):
        tied = row.copy()
        tied[ties] = 2.0
        result = runner.sample(tied, SamplingParams(temperature=0, logprobs=3))
        assert result.token_id == ties[0]
        assert result.logprobs is not None
        assert result.logprobs.rank == 1
        assert result.logprobs.token_ids[1 : 1 + len(ties)] == ties
    assert runner.sample(row, GREEDY).token_id == 0


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(top_k=1), SamplingParams(top_p=1e-6), SamplingParams(min_p=1.0), SamplingParams(temperature=1e-30)],
    ids=["top_k 1", "tiny top_p", "min_p 1", "tiny temperature"],
)
def test_the_narrowest_draws_are_greedy(team: _native.Team, sampling: SamplingParams) -> None:
    rng = np.random.default_rng(1)
    runner = RowRunner(team, 700)
    for seed in range(20):
        row = random_row(rng, 700)
        assert runner.sample(row, sampling, seed=seed).token_id == int(np.argmax(row))


# ---- Draws ----


def test_the_model_draws_with_the_published_generator() -> None:
    """Known answers of Random123, the authors' library."""
    ones = 0xFFFFFFFF
    assert model.philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert model.philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert model.philox(*pi) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def random_sampling(rng: np.random.Generator, vocab_size: int) -> SamplingParams:
    def maybe(value: float, default: float) -> float:
        return value if rng.random() < 0.4 else default

    token_ids = [int(i) for i in rng.integers(vocab_size, size=4)]
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.2, 0.7, 1.0, 1.0, 1.5, 10.0])),
        top_k=int(maybe(rng.integers(1, 2 * min(vocab_size, 100)), 0)),
        top_p=maybe(rng.uniform(0.05, 1.0), 1.0),
        min_p=maybe(rng.uniform(0.0, 0.3), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2.0), 1.0),
        presence_penalty=maybe(rng.uniform(-2.0, 2.0), 0.0),
        frequency_penalty=maybe(rng.uniform(-2.0, 2.0), 0.0),
        logit_bias={token_id: float(rng.uniform(-100, 100)) for token_id in token_ids} if rng.random() < 0.2 else {},
        min_tokens=int(maybe(3, 0)),
        stop_token_ids=(token_ids[0],),
    )


def test_draws_equal_the_model(team: _native.Team, case_count: Callable[[int, int], int]) -> None:
    rng = np.random.default_rng(7)
    runners = {vocab_size: RowRunner(team, vocab_size) for vocab_size in VOCAB_SIZES}
    for _ in range(case_count(400, 20_000)):
        vocab_size = int(rng.choice(VOCAB_SIZES))
        row = random_row(rng, vocab_size, float(rng.choice([0.1, 1.0, 3.0, 30.0])))
        if rng.random() < 0.3:
            row = np.round(row)  # many ties
        sampling = random_sampling(rng, vocab_size)
        prompt, output = ([int(i) for i in rng.integers(vocab_size, size=rng.integers(1, 9))] for _ in range(2))
        allowed = rng.random(vocab_size) < rng.uniform(0.01, 1.0) if rng.random() < 0.3 else None
        eos = (int(rng.integers(vocab_size)),)
        seed, choice = int(rng.integers(1 << 64, dtype=np.uint64)), int(rng.integers(16))
        result = runners[vocab_size].sample(
            row,
            sampling,
            prompt=prompt,
            output=output,
            seed=seed,
            choice=choice,
            eos_token_ids=eos,
            mask=None if allowed is None else mask_of(allowed),
        )
        case = (vocab_size, sampling, prompt, output, seed, choice, eos)
        x = model.modified(row, sampling, prompt=prompt, output=output, eos_token_ids=eos, allowed=allowed)
        if np.all(x == -np.inf):
            assert result.error == "no token is allowed", case
            continue
        assert result.error is None, case
        assert result.token_id is not None, case
        if sampling.temperature == 0:
            assert result.token_id == model.ranking(x)[0], case
            continue
        uniform = model.uniform(seed, choice, len(prompt) + len(output))
        found = model.distributions(x, sampling)
        assert any(one.allows(result.token_id, uniform) for one in found), case


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(top_k=5), SamplingParams(top_p=0.8)],
    ids=["plain", "temperature", "top_k", "top_p"],
)
def test_frequencies_follow_the_probabilities(team: _native.Team, sampling: SamplingParams) -> None:
    row = random_row(np.random.default_rng(3), 12, 1.0)
    (expected,) = model.distributions(row, sampling)
    runner = RowRunner(team, 12)
    num_draws = 4000
    counts = np.zeros(12)
    for first_seed in range(0, num_draws, 32):
        for slot in range(32):
            runner.enter(slot, sampling, seed=first_seed + slot)
        for result in runner.step([row] * 32):
            assert result.token_id is not None
            counts[result.token_id] += 1
        for slot in range(32):
            runner.release(slot)
    drawn = counts[expected.token_ids]
    assert drawn.sum() == num_draws
    probabilities = np.diff(expected.bounds)
    chi_square = float(np.sum((drawn - num_draws * probabilities) ** 2 / (num_draws * probabilities)))
    # Mean k and variance 2k with k = tokens - 1 degrees of freedom; five deviations above it is one seed in 10^5.
    degrees = len(probabilities) - 1
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


def test_each_position_choice_and_seed_draws_anew(team: _native.Team) -> None:
    runner = RowRunner(team, 4096)
    row = np.zeros(4096, np.float32)
    drawn = [
        runner.sample(row, SamplingParams(), seed=seed, choice=choice, output=[0] * num_output).token_id
        for seed in (0, 1, 1 << 63)
        for choice in (0, 1)
        for num_output in range(8)
    ]
    assert len(set(drawn)) > len(drawn) - 4  # 48 of 4,096: 0.3 collisions expected


def test_a_draw_does_not_depend_on_company_threads_or_level(usable_levels: list[str]) -> None:
    rng = np.random.default_rng(5)
    vocab_size = 1500
    rows = [random_row(rng, vocab_size) for _ in range(32)]
    params = [
        SamplingParams(**kind, logprobs=5)
        for kind in ({}, {"top_k": 40, "top_p": 0.9}, {"top_p": 0.95}, {"min_p": 0.05, "temperature": 1.3})
    ]
    outcomes = []
    for num_threads in (1, 3):
        team = _native.Team(num_threads)
        for level in usable_levels:
            runner = RowRunner(team, vocab_size, level)
            alone = [runner.sample(row, params[i % 4], seed=i) for i, row in enumerate(rows)]
            outcomes.append([(result.token_id, result.logprobs) for result in alone])
            for slot in range(32):
                runner.enter(slot, params[slot % 4], seed=slot)
            order = [int(slot) for slot in rng.permutation(32)]
            together = {result.slot: result for result in runner.step([rows[slot] for slot in order], order)}
            outcomes.append([(together[slot].token_id, together[slot].logprobs) for slot in range(32)])
        team.close()
    assert all(outcome == outcomes[0] for outcome in outcomes)


# ---- What a request changes ----


def test_penalties_count_every_token_of_the_output_as_it_comes(team: _native.Team) -> None:
    rng = np.random.default_rng(11)
    vocab_size = 40
    runner = RowRunner(team, vocab_size)
    sampling = SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25)
    prompt, output = [3, 3, 7], [7]
    runner.enter(0, sampling, prompt=prompt, output=output)
    for _ in range(60):
        row = random_row(rng, vocab_size, 1.0)
        (result,) = runner.step([row])
        assert result.token_id == model.ranking(model.modified(row, sampling, prompt=prompt, output=output))[0]
        output.append(result.token_id)
    # After a preemption the request comes back with all that it has said.
    row = random_row(rng, vocab_size, 1.0)
    (result,) = runner.step([row])
    runner.release(0)
    assert runner.sample(row, sampling, prompt=prompt, output=output).token_id == result.token_id


def test_mask_alone_decides_what_can_be_drawn(team: _native.Team) -> None:
    runner = RowRunner(team, 70)
    row = random_row(np.random.default_rng(2), 70)
    for only in (0, 31, 32, 69):
        allowed = np.zeros(70, bool)
        allowed[only] = True
        for sampling in (GREEDY, SamplingParams(), SamplingParams(top_k=10), SamplingParams(top_p=0.5)):
            assert runner.sample(row, sampling, mask=mask_of(allowed)).token_id == only
    beyond = np.zeros(96, bool)
    beyond[70:] = True  # bits beyond the vocabulary name no token
    assert runner.sample(row, GREEDY, mask=mask_of(beyond)).error == "no token is allowed"


def test_stop_tokens_wait_for_min_tokens(team: _native.Team) -> None:
    runner = RowRunner(team, 10)
    row = np.arange(10, dtype=np.float32)
    sampling = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(8, 1_000_000))
    runner.enter(0, sampling, eos_token_ids=(9,))
    assert [runner.step([row])[0].token_id for _ in range(3)] == [7, 7, 9]


def test_bias_moves_a_logit(team: _native.Team) -> None:
    runner = RowRunner(team, 10)
    row = np.arange(10, dtype=np.float32)
    assert runner.sample(row, SamplingParams(temperature=0, logit_bias={2: 7.5})).token_id == 2
    assert runner.sample(row, SamplingParams(temperature=0, logit_bias={2: 7.0})).token_id == 2  # a tie
    assert runner.sample(row, SamplingParams(temperature=0, logit_bias={9: -100.0, 8: -1.5})).token_id == 7


# ---- Log-probabilities ----


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_logprobs_are_those_of_the_unmodified_row(team: _native.Team, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    runner = RowRunner(team, vocab_size)
    for num_logprobs in (0, 1, 5, 20):
        row = random_row(rng, vocab_size)
        sampling = SamplingParams(temperature=1.5, logprobs=num_logprobs, logit_bias={0: 3.0}, repetition_penalty=2.0)
        result = runner.sample(row, sampling, seed=num_logprobs)
        assert result.logprobs is not None
        order = [int(i) for i in model.ranking(row)]
        assert result.logprobs.token_ids == [result.token_id, *order[:num_logprobs]]
        assert result.logprobs.rank == order.index(result.logprobs.token_ids[0]) + 1
        expected = torch.log_softmax(torch.from_numpy(row).double(), 0).numpy()
        # A log-sum of masses within 5e-6 of exact (see sampler_model), and a result rounded to float32 of up to 32.
        np.testing.assert_allclose(
            result.logprobs.logprobs, expected[result.logprobs.token_ids], rtol=0, atol=model.TOLERANCE + 32 * 2.0**-24
        )
        if num_logprobs and result.logprobs.rank == 1:
            assert result.logprobs.logprobs[0] == result.logprobs.logprobs[1]


def test_an_impossible_token_has_logprob_minus_infinity(team: _native.Team) -> None:
    runner = RowRunner(team, 3)
    result = runner.sample([0.0, -np.inf, 0.0], SamplingParams(logprobs=3))
    assert result.logprobs is not None
    assert result.logprobs.token_ids[1:] == [0, 2, 1]
    assert result.logprobs.logprobs[1:] == pytest.approx([np.log(0.5), np.log(0.5), -np.inf], abs=1e-6)


# ---- Broken rows ----


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.nan, "the model's logits hold NaN"), (np.inf, "the model's logits hold infinity")],
)
@pytest.mark.parametrize("place", [0, 300, 514])
def test_a_broken_row_fails_alone(team: _native.Team, value: float, error: str, place: int) -> None:
    rng = np.random.default_rng(4)
    runner = RowRunner(team, 515)
    rows = [random_row(rng, 515) for _ in range(3)]
    rows[1][place] = value
    for slot in range(3):
        runner.enter(slot, GREEDY)
    first, broken, last = runner.step(rows)
    assert (broken.token_id, broken.error) == (None, error)
    assert (first.token_id, first.error) == (int(np.argmax(rows[0])), None)
    assert (last.token_id, last.error) == (int(np.argmax(rows[2])), None)


def test_a_row_without_any_probability_is_an_error(team: _native.Team) -> None:
    runner = RowRunner(team, 5)
    assert runner.sample([-np.inf] * 5, SamplingParams()).error == "every logit of the model is -infinity"
    assert runner.sample([-np.inf] * 4 + [1.0], SamplingParams()).token_id == 4


def test_penalties_that_overflow_are_an_error(team: _native.Team) -> None:
    runner = RowRunner(team, 5)
    sampling = SamplingParams(repetition_penalty=1e-37)
    assert runner.sample([3e38] * 5, sampling).error == "the penalties made a logit infinite"
