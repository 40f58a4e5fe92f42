"""Steps over slots: which rows get logits, what is refused, and that a refusal or a failure harms nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pelton import _native
from pelton.engine.batch import NewRequest, SlotWork
from pelton.sampling_params import SamplingParams

VOCAB_SIZE = 32
MAX_TOKENS = 100
MAX_MODEL_LEN = 128
POOL_BYTES = 4096
GROUPS: list[tuple[int, int | None, int]] = [(128, None, 0), (64, 20, 0)]  # bytes of a block, window, states
GREEDY = SamplingParams(temperature=0)


class StepRunner:
    """A runner whose body rows the test writes: row r of the step has logits rows[r]."""

    def __init__(self, team: _native.Team, groups: list[tuple[int, int | None, int]] = GROUPS) -> None:
        self.hidden = _native.Buffer(MAX_TOKENS * VOCAB_SIZE * 4, "test")
        self.logits = _native.Buffer(32 * VOCAB_SIZE * 4, "test")
        self.pool = _native.Buffer(POOL_BYTES, "test")
        program = _native.Program(team, "generic")
        addresses = [self.hidden.address, self.logits.address]
        program.add("gather_rows", 1, addresses, [VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE], [])
        self.native = _native.Runner(
            program,
            self.pool,
            self.logits,
            logits_offset=0,
            logits_stride=VOCAB_SIZE,
            cache_groups=groups,
            num_slots=4,
            max_model_len=MAX_MODEL_LEN,
            max_num_tokens=MAX_TOKENS,
            vocab_size=VOCAB_SIZE,
        )

    def step(self, work: list[SlotWork], rows: Any = None) -> list[_native.Outcome]:
        tile = np.frombuffer(self.hidden, np.float32).reshape(MAX_TOKENS, VOCAB_SIZE)
        if rows is None:
            tile[...] = 0
        else:
            tile[: len(rows)] = rows
        return self.native.step(work)


@pytest.fixture
def runner(team: _native.Team) -> StepRunner:
    return StepRunner(team)


def request(slot: int = 0, num_tokens: int = 5, num_prompt: int | None = None, **sampling: Any) -> NewRequest:
    token_ids = [position % VOCAB_SIZE for position in range(num_tokens)]
    params = SamplingParams(**{"temperature": 0, **sampling})
    return NewRequest(slot, token_ids, num_tokens if num_prompt is None else num_prompt, params, seed=0)


def work(slot: int, num_computed: int, num_tokens: int, **more: Any) -> SlotWork:
    """Work with blocks for all of it from the start of the pool, unless they are given."""
    blocks = -(-(num_computed + num_tokens) // 16)
    return SlotWork(slot, num_computed, num_tokens, **{"new_blocks": [[0] * blocks, [0] * blocks], **more})


# ---- Rows ----


def test_each_slot_samples_from_its_last_row(runner: StepRunner) -> None:
    for slot, num_tokens in enumerate([3, 1, 7]):
        runner.native.enter(request(slot, num_tokens))
    rows = np.eye(VOCAB_SIZE)[:11]  # row r wants token r
    outcomes = runner.step([work(2, 0, 7), work(0, 0, 3), work(1, 0, 1)], rows)
    assert [(slot, token_id) for slot, token_id, *_ in outcomes] == [(2, 6), (0, 9), (1, 10)]
    outcomes = runner.step([work(1, 1, 1, new_blocks=[[], []]), work(2, 7, 1, new_blocks=[[], []])], rows)
    assert [(slot, token_id) for slot, token_id, *_ in outcomes] == [(1, 0), (2, 1)]


def test_a_chunk_that_does_not_sample_gets_no_token(runner: StepRunner) -> None:
    runner.native.enter(request(0, 40))
    assert runner.step([work(0, 0, 30, sample=False)]) == [(0, None, None, None, None)]
    rows = np.eye(VOCAB_SIZE)[:10]
    assert runner.step([work(0, 30, 10, new_blocks=[[0], [0]])], rows) == [(0, 9, None, None, None)]


@pytest.mark.parametrize("chunks", [[90], [1] * 90, [33, 32, 25], [89, 1]], ids=["whole", "ones", "tiles", "last"])
def test_prompt_logprobs_do_not_depend_on_chunks(runner: StepRunner, chunks: list[int]) -> None:
    rows = np.random.default_rng(0).normal(size=(90, VOCAB_SIZE)).astype(np.float32)
    expected = torch.log_softmax(torch.from_numpy(rows).double(), 1).numpy()
    runner.native.enter(request(0, 90, prompt_logprobs=2, logprobs=0))
    found: list[_native.Logprobs] = []
    done = 0
    for chunk in chunks:
        blocks = -(-(done + chunk) // 16) - -(-done // 16)
        (outcome,) = runner.step(
            [
                work(
                    0,
                    done,
                    chunk,
                    new_blocks=[[0] * blocks, [0] * blocks],
                    sample=done + chunk == 90,
                    prompt_logprobs_from=done + 1,
                )
            ],
            rows[done : done + chunk],
        )
        found += outcome[3] or []
        done += chunk
    assert outcome[1] == int(np.argmax(rows[89]))
    assert len(found) == 89
    for position, (token_ids, logprobs, rank) in enumerate(found, 1):
        order = np.lexsort((np.arange(VOCAB_SIZE), -rows[position - 1]))
        assert token_ids == [position % VOCAB_SIZE, order[0], order[1]]
        assert rank == list(order).index(token_ids[0]) + 1
        # Sums of masses within 1e-6 (arguments of up to 8 nats), results up to 16 rounded to float32.
        assert logprobs == pytest.approx(expected[position - 1][token_ids], abs=2e-6)


def test_prompt_logprobs_start_and_end_where_they_should(runner: StepRunner) -> None:
    runner.native.enter(request(0, num_tokens=9, num_prompt=6, prompt_logprobs=0))
    (outcome,) = runner.step([work(0, 0, 9, prompt_logprobs_from=3)])
    assert outcome[3] is not None
    assert [token_ids for token_ids, _, _ in outcome[3]] == [[3], [4], [5]]
    assert outcome[2] is None


def test_a_row_that_fails_takes_only_its_slot(runner: StepRunner) -> None:
    runner.native.enter(request(0, 40, prompt_logprobs=1))
    runner.native.enter(request(1, 3))
    rows = np.zeros((43, VOCAB_SIZE), np.float32)
    rows[7, 5] = np.nan
    outcomes = runner.step([work(0, 0, 40, prompt_logprobs_from=1), work(1, 0, 3)], rows)
    assert outcomes == [(0, None, None, None, "the model's logits hold NaN"), (1, 0, None, None, None)]


# ---- Slots ----


def test_a_slot_serves_one_request_after_another(runner: StepRunner) -> None:
    for token_id in range(3):
        runner.native.enter(request(0, 2))
        rows = np.eye(VOCAB_SIZE)[[9, token_id]]
        assert runner.step([work(0, 0, 2, reset=True)], rows)[0][1] == token_id
        runner.native.release(0)
    with pytest.raises(ValueError, match="slot `0`: it holds no request"):
        runner.native.release(0)


def test_reset_drops_the_old_tables(runner: StepRunner) -> None:
    runner.native.enter(request(0, 40))
    runner.step([work(0, 0, 40)])
    with pytest.raises(ValueError, match="`1` blocks do not hold `40` tokens"):
        runner.step([work(0, 0, 40, new_blocks=[[0], [0]], sample=False, reset=True)])
    with pytest.raises(ValueError, match="`1` blocks do not hold"):
        runner.step([work(0, 40, 1, new_blocks=[[0], [0]], reset=True)])
    assert runner.step([work(0, 40, 1, new_blocks=[[], []])])[0][1] == 0


def test_a_slot_may_start_behind_blocks_that_another_has_computed(runner: StepRunner) -> None:
    runner.native.enter(request(0, 40))
    runner.native.enter(request(1, 45))
    runner.step([work(0, 0, 40, new_blocks=[[0, 2, 4], [6, 7, 8]])])
    # Of the window nobody at 36 or later sees the first block: its place says nothing.
    start = {"new_blocks": [[0, 2, 10], [63, 7, 9]], "freed_blocks": [0, 1], "reset": True}
    rows = np.eye(VOCAB_SIZE)[[3, 5, 7, 9, 11, 13, 15, 17, 19]]
    assert runner.step([work(1, 36, 9, **start)], rows) == [(1, 19, None, None, None)]
    with pytest.raises(ValueError, match="`freed_blocks` is `1`; `0` were given back before and `0` are out"):
        runner.step([work(1, 32, 9, sample=False, **start)])
    with pytest.raises(ValueError, match="`2` blocks do not hold `45` tokens"):
        runner.step([work(1, 32, 13, new_blocks=[[0, 2], [6, 7]], sample=False, reset=True)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot": 4}, "there are `4` slots"),
        ({"slot": -1}, "there are `4` slots"),
        ({"slot": 1}, "it is taken"),
        ({"token_ids": []}, "`num_prompt` is `5` of `0` tokens"),
        ({"num_prompt": 0}, "`num_prompt` is `0` of `5` tokens"),
        ({"num_prompt": 6}, "`num_prompt` is `6` of `5` tokens"),
        ({"token_ids": [0, 32, 1, 1, 1]}, "token `32` is outside the vocabulary of `32`"),
        ({"token_ids": [0, -1, 1, 1, 1]}, "token `-1` is outside"),
        ({"token_ids": [0] * 129}, "`129` tokens exceed the context of `128`"),
        ({"token_ids": [0, 1 << 40, 1, 1, 1]}, "`token_ids` is "),
        ({"token_ids": "words"}, "`token_ids` is 'words'|`token_ids` is `'words'`"),
        ({"seed": -1}, "`seed` is `-1`"),
        ({"position_rows": 3}, "`position_rows` must be 1"),
        ({"adapter": 0}, "`adapter` must be None"),
        ({"sampling": SamplingParams(logit_bias={32: 1.0})}, "`logit_bias key` is"),
    ],
)
def test_a_request_that_cannot_be_is_refused(runner: StepRunner, change: dict[str, Any], message: str) -> None:
    runner.native.enter(request(1))
    good = request(0)
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    with pytest.raises(ValueError, match=message):
        runner.native.enter(NewRequest(**{**fields, **change}))
    runner.native.enter(good)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (work(3, 0, 5), "slot `3`: it holds no request"),
        (work(9, 0, 5), "there are `4` slots"),
        (work(0, 0, 0), "`num_tokens` is `0`, not within"),
        (work(0, 0, 101), "`num_tokens` is `101`, not within"),
        (work(0, 0, 61), "`60` tokens are known"),
        (work(0, -1, 5), "`num_computed` is `-1`"),
        (SlotWork(0, 1 << 62, 5, [[0], [0]]), "`num_computed` is"),
        (work(0, 0, 59), "can't sample before all known tokens are computed"),
        (work(0, 0, 60, new_blocks=[[0] * 4]), "a list per cache group"),
        (work(0, 0, 60, new_blocks=[[0] * 3, [0] * 4]), "`3` blocks do not hold `60` tokens"),
        (work(0, 0, 60, new_blocks=[[0, 0, 0, 63], [0] * 4]), "block `63` lies outside the KV pool"),
        (work(0, 0, 60, new_blocks=[[0] * 4, [0, 0, 0, 64]]), "block `64` lies outside the KV pool"),
        (work(0, 0, 60, new_blocks=[[0] * 4, [0, 0, 0, 0xFFFFFFFF]]), "lies outside the KV pool"),
        (work(0, 0, 60, new_blocks=[[0] * 4, [0, 0, 0, -1]]), "`new_blocks` is "),
        (work(0, 0, 60, freed_blocks=[0]), "a number per cache group"),
        (work(0, 0, 60, freed_blocks=[0, 1]), "`freed_blocks` is `1`; `0` were given back before and `0` are out"),
        (work(0, 0, 60, freed_blocks=[0, -1]), "`freed_blocks` is `-1`"),
        (work(0, 50, 10, freed_blocks=[1, 0]), "`freed_blocks` is `1`; `0` were given back before and `0` are out"),
        (work(0, 50, 10, freed_blocks=[0, 2]), "`freed_blocks` is `2`; `0` were given back before and `1` are out"),
        (work(0, 0, 60, token_mask=b"\0" * 8), "`token_mask` does not hold a bit per token"),
        (work(0, 0, 60, token_mask=b"\0" * 3), "`token_mask` has `3` bytes"),
        (work(0, 0, 60, token_mask=b""), "`token_mask` has `0` bytes"),
        (work(0, 0, 60, prompt_logprobs_from=0), "`prompt_logprobs_from` is `0`, which no row predicts"),
        (work(0, 0, 60, prompt_logprobs_from=61), "`prompt_logprobs_from` is `61`, which no row predicts"),
        (work(1, 0, 60, prompt_logprobs_from=1), "did not ask for prompt log-probabilities"),
    ],
)
def test_work_that_does_not_fit_is_refused_whole(runner: StepRunner, wrong: SlotWork, message: str) -> None:
    runner.native.enter(request(0, 60, prompt_logprobs=0))
    runner.native.enter(request(1, 60))
    runner.native.enter(request(2, 5))
    with pytest.raises(ValueError, match=message):
        runner.step([work(2, 0, 5), wrong])
    # Nothing has changed: not even the slot before it has moved.
    assert [token_id for _, token_id, *_ in runner.step([work(2, 0, 5), work(0, 0, 60)])] == [0, 0]


def test_a_slot_works_once_per_step(runner: StepRunner) -> None:
    runner.native.enter(request(0, 60))
    with pytest.raises(ValueError, match="slot `0`: it appears twice in a step"):
        runner.step([work(0, 0, 30, sample=False), work(0, 30, 30)])
    runner.native.enter(request(1, 60))
    with pytest.raises(ValueError, match="a step of `120` tokens; the program has room for `100`"):
        runner.step([work(0, 0, 60), work(1, 0, 60)])


def test_blocks_out_of_sight_can_be_given_back(runner: StepRunner) -> None:
    runner.native.enter(request(0, 100))
    runner.step([work(0, 0, 50, sample=False)])
    runner.step([work(0, 50, 30, new_blocks=[[0], [0]], freed_blocks=[0, 1], sample=False)])
    with pytest.raises(ValueError, match="`freed_blocks` is `0`; `1` were given back before and `3` are out of sight"):
        runner.step([work(0, 80, 20, new_blocks=[[0, 0], [0, 0]], freed_blocks=[0, 0])])
    assert runner.step([work(0, 80, 20, new_blocks=[[0, 0], [0, 0]], freed_blocks=[0, 3])])[0][1] == 0


def test_a_full_context_is_refused(runner: StepRunner) -> None:
    runner.native.enter(request(0, 128))
    runner.step([work(0, 0, 64, sample=False)])
    assert runner.step([work(0, 64, 64, new_blocks=[[0] * 4, [0] * 4])])[0][1] == 0
    with pytest.raises(ValueError, match="the context of `128` is full"):
        runner.step([work(0, 128, 1, new_blocks=[[0], [0]])])


def test_whatever_it_is_told_it_only_refuses(runner: StepRunner, case_count: Callable[[int, int], int]) -> None:
    """Good work of random slots, mostly with one field replaced by a number from the edges."""
    rng = np.random.default_rng(1)
    numbers = [-(1 << 63), -1, 0, 1, 2, 15, 16, 17, 40, 63, 64, 1 << 31, (1 << 63) - 1]

    def number() -> int:
        return numbers[rng.integers(len(numbers))]

    def wrong_fields() -> dict[str, Any]:
        lists = [[number() for _ in range(rng.integers(5))] for _ in range(rng.integers(4))]
        fields = {"slot": number(), "num_computed": number(), "num_tokens": number(), "new_blocks": lists}
        fields |= {"reset": False, "sample": False, "prompt_logprobs_from": number(), "freed_blocks": [0, number()]}
        name = str(rng.choice(list(fields)))
        return {name: fields[name]}

    num_accepted = num_refused = 0
    for slot in range(4):
        runner.native.enter(request(slot, 60, prompt_logprobs=1))
    for _ in range(case_count(2000, 50_000)):
        slot = int(rng.integers(4))
        good = work(slot, 0, 60, reset=True)
        fields = {name: getattr(good, name) for name in good.__struct_fields__}
        try:
            runner.step([SlotWork(**{**fields, **wrong_fields()})])
            num_accepted += 1
        except ValueError:
            num_refused += 1
        runner.native.release(slot)
        runner.native.enter(request(slot, 60, prompt_logprobs=1))
    assert min(num_accepted, num_refused) > 200


# ---- Memory ----


def test_memory_stays_while_the_runner_lives(runner: StepRunner) -> None:
    for buffer in (runner.pool, runner.logits):
        with pytest.raises(BufferError):
            buffer.close()
    del runner.native
    for buffer in (runner.pool, runner.logits):
        buffer.close()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([[0], []], None, "`0` blocks for `2` states"),
        ([[0], [0]], None, "`1` blocks for `2` states"),
        ([[0], [0, 1, 2, 3]], None, "`4` blocks for `2` states"),
        ([[0], [0, 64]], None, "block `64` lies outside"),
        ([[0], [0, 1]], {"new_blocks": [[], [2]]}, "`1` blocks for `2` states"),
        ([[0], [0, 1]], {"new_blocks": [[], [2, 3, 4, 5]]}, "`4` blocks for `2` states"),
        ([[0], [0, 1]], {"new_blocks": [[], []], "num_computed": 4}, "its states stand behind `5`"),
        ([[0], [0, 1]], {"new_blocks": [[], []], "freed_blocks": [0, 1]}, "states can't be given back"),
        ([[0], [0, 1]], {"new_blocks": [[0], [2, 3]], "reset": True}, "`2` blocks for `2` states"),
    ],
)
def test_states_that_a_slot_can_not_have_are_refused(
    team: _native.Team, first: list[list[int]], second: dict[str, Any] | None, message: str
) -> None:
    runner = StepRunner(team, [(64, None, 0), (64, None, 2)])
    runner.native.enter(request(0, 7))
    start = work(0, 0, 5, new_blocks=first, sample=False)
    if second is not None:
        runner.step([start])
        start = SlotWork(**{"slot": 0, "num_computed": 5, "num_tokens": 1, "sample": False, **second})
    with pytest.raises(ValueError, match=message):
        runner.step([start])


def test_states_go_on_in_place_move_and_start_behind_others(team: _native.Team) -> None:
    runner = StepRunner(team, [(64, None, 0), (64, None, 2)])
    runner.native.enter(request(0, 9))
    runner.step([work(0, 0, 5, new_blocks=[[0], [0, 1]], sample=False)])
    runner.step([work(0, 5, 1, new_blocks=[[], []], sample=False)])
    runner.step([work(0, 6, 1, new_blocks=[[], [2, 3]], sample=False)])
    runner.step([work(0, 7, 1, new_blocks=[[], []], sample=False)])
    runner.step([work(0, 6, 1, new_blocks=[[0], [0, 1, 2, 3]], sample=False, reset=True)])
    runner.step([work(0, 7, 1, new_blocks=[[], []], sample=False)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits_offset": 64}, "does not hold a tile"),
        ({"logits_offset": -64}, "does not hold a tile"),
        ({"logits_offset": 2}, "does not hold a tile"),
        ({"logits_stride": VOCAB_SIZE - 1}, "does not hold a tile"),
        ({"logits_stride": 1 << 60}, "does not hold a tile"),
        ({"vocab_size": 0}, "does not hold a tile"),
        ({"num_slots": 0}, "`num_slots` is `0`"),
        ({"num_slots": 1 << 40}, "`num_slots` is"),
        ({"max_model_len": 0}, "`max_model_len` is `0`"),
        ({"max_num_tokens": 1 << 33}, "`max_num_tokens` is"),
        ({"cache_groups": [(POOL_BYTES + 1, None, 0)]}, "`block_bytes` is `4097`"),
        ({"cache_groups": [(64, -1, 0)]}, "`window` is `-1`"),
        ({"cache_groups": [(64, None, -1)]}, "`num_states` is `-1`"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(team: _native.Team, change: dict[str, Any], message: str) -> None:
    logits, pool = _native.Buffer(32 * VOCAB_SIZE * 4, "test"), _native.Buffer(POOL_BYTES, "test")
    sizes: dict[str, Any] = {
        "logits_offset": 0,
        "logits_stride": VOCAB_SIZE,
        "cache_groups": GROUPS,
        "num_slots": 4,
        "max_model_len": 128,
        "max_num_tokens": 100,
        "vocab_size": VOCAB_SIZE,
    }
    program = _native.Program(team, "generic")
    with pytest.raises(ValueError, match=message):
        _native.Runner(program, pool, logits, **{**sizes, **change})
    logits.close()
    pool.close()
