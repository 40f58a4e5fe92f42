"""A request's tokens and log-probabilities, bit by bit, depend on nothing but the request, the model and the level."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pelton import _native
from pelton.config import load_settings
from pelton.engine.batch import Batch
from pelton.llm import LLM
from pelton.outputs import PositionLogprobs, RequestOutput
from pelton.runner.assembly import prepare
from pelton.sampling_params import SamplingParams

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
REAL = pytest.param("smollm2", marks=pytest.mark.model)
MODELS = (REAL, "llama", "qwen3", "gemma3")  # the small Gemma's windows are of 16 tokens
NUM_REQUESTS = 8
ANY, GROWING = range(4), range(4, NUM_REQUESTS)  # of random lengths; alike, so that all outgrow a small pool at once
MAX_MODEL_LEN = 128
LONGEST_PROMPT = 100
NUM_OUTPUT = 20
LEVELS = [level for level, is_usable, _ in _native.levels() if is_usable]
FUSED = [f"cpu/{level}/{kind}" for level in LEVELS for kind in ("linear_gated", "attention_prepare")]

# What was said: tokens, and the logarithms of each position's tokens as hexadecimal texts, which hide no bit.
Said = tuple[list[int], list[dict[int, str] | None], list[dict[int, str] | None]]


@dataclass(frozen=True)
class Case:
    """A model, requests, and what each of them says alone, its prompt computed whole, on two threads."""

    path: Path
    prompts: list[list[int]]
    sampling: list[SamplingParams]
    alone: list[Said]

    def load(self, **settings: Any) -> LLM:
        return load(self.path, **settings)

    def check(self, llm: LLM, requests: Sequence[int]) -> None:
        """Together, these requests say what each says alone."""
        outputs = llm.generate([self.prompts[i] for i in requests], [self.sampling[i] for i in requests])
        for index, output in zip(requests, outputs, strict=True):
            assert said(output) == self.alone[index], f"request {index}"


def load(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), **{"threads": 2, "max_model_len": MAX_MODEL_LEN, **settings})


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    name = request.param
    path = request.getfixturevalue("smollm2_path") if name == "smollm2" else FIXTURES / f"{name}.gguf"
    generator = random.Random(name)
    with load(path) as llm:
        lengths = [LONGEST_PROMPT, *(generator.randint(1, LONGEST_PROMPT) for _ in ANY[1:]), *(30 for _ in GROWING)]
        prompts = [[generator.randrange(llm.vocab_size) for _ in range(length)] for length in lengths]
        sampling = [random_sampling(generator, generator.randint(4, NUM_OUTPUT)) for _ in ANY]
        sampling += [random_sampling(generator, NUM_OUTPUT) for _ in GROWING]
        alone = [said(llm.generate(prompts[i], sampling[i])[0]) for i in range(NUM_REQUESTS)]
        yield Case(path, prompts, sampling, alone)


def random_sampling(generator: random.Random, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=generator.choice((0.0, 0.7, 1.5)),
        top_k=generator.choice((0, 5, 40)),
        top_p=generator.choice((0.8, 1.0)),
        min_p=generator.choice((0.0, 0.05)),
        repetition_penalty=generator.choice((1.0, 1.2)),
        presence_penalty=generator.choice((0.0, 0.5)),
        seed=generator.randrange(1 << 64),
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=3,
        prompt_logprobs=2,
    )


def said(output: RequestOutput) -> Said:
    def exact(positions: Sequence[PositionLogprobs | None] | None) -> list[dict[int, str] | None]:
        assert positions is not None
        return [
            None if position is None else {token: float(one.logprob).hex() for token, one in position.items()}
            for position in positions
        ]

    (choice,) = output.outputs
    return choice.token_ids, exact(choice.logprobs), exact(output.prompt_logprobs)


@pytest.fixture
def some(case_count: Callable[[int, int], int]) -> range:
    """The requests to try where each takes long."""
    return range(case_count(2, NUM_REQUESTS))


def test_alone_equals_among_seven_others(case: Case) -> None:
    with case.load() as llm:
        case.check(llm, range(NUM_REQUESTS))


@pytest.mark.parametrize("piece", [1, 3, 64])
def test_prompt_whole_equals_prompt_in_pieces(case: Case, piece: int, some: range) -> None:
    with case.load(max_num_batched_tokens=piece, max_num_seqs=1) as llm:
        case.check(llm, some)


def test_pieces_among_others_equal_alone(case: Case) -> None:
    """Chunks of several prompts share steps with decodes."""
    with case.load(max_num_batched_tokens=19, max_num_seqs=5) as llm:
        case.check(llm, range(NUM_REQUESTS))


def test_one_thread_equals_two(case: Case, some: range) -> None:
    with case.load(threads=1) as llm:
        case.check(llm, some)


@pytest.mark.parametrize("case", [REAL], indirect=True)
def test_preempted_equals_undisturbed(case: Case) -> None:
    """The pool holds one sequence of full length: four short ones start in it and have to give way as they grow."""
    one = {"model": str(case.path), "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 1}
    pool_bytes = prepare(load_settings(one)).plan.limits.kv_cache_bytes
    with case.load(kv_cache_bytes=pool_bytes, max_num_seqs=len(GROWING)) as llm:
        case.check(llm, GROWING)
        assert llm._loaded.engine.scheduler.num_preemptions > 0


def test_started_again_equals_undisturbed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lose their cache and their slots every few steps, as after a preemption, which small models never need."""
    with case.load() as llm:
        scheduler = llm._loaded.engine.scheduler
        schedule, steps = scheduler.schedule, itertools.count(1)

        def disturbed() -> Batch | None:
            if next(steps) % 6 == 0:
                scheduler.restart(scheduler.running + scheduler.waiting)
            return schedule()

        monkeypatch.setattr(scheduler, "schedule", disturbed)
        case.check(llm, range(NUM_REQUESTS))
        assert next(steps) > 6


def test_fused_equals_unfused(case: Case, some: range) -> None:
    with case.load(disabled_kernels=FUSED) as llm:
        case.check(llm, some)


@pytest.mark.timeout(1800)  # at full count the lowest level takes minutes
@pytest.mark.parametrize("level", LEVELS)
def test_every_level_repeats_itself(case: Case, level: str, case_count: Callable[[int, int], int]) -> None:
    """Levels round differently from each other, never from themselves. Few tokens: the lowest level is slow."""
    requests = range(case_count(1, NUM_REQUESTS))
    prompts = [case.prompts[i][:20] for i in requests]
    sampling = [replace(case.sampling[i], max_tokens=4) for i in requests]

    def run(**settings: Any) -> list[Said]:
        with case.load(level=level, **settings) as llm:
            return [said(output) for output in llm.generate(prompts, sampling)]

    assert run() == run(threads=1, max_num_batched_tokens=8, max_num_seqs=1)
