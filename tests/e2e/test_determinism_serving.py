"""Hundreds of requests of every kind, served in many ways: each says bitwise what it says alone.

Tokens and log-probabilities, on the native runner, with a model of full attention and one with sliding windows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pelton.config import load_settings
from pelton.engine.batch import TokenLogprobs
from pelton.engine.engine import Engine
from pelton.engine.request import Progress
from pelton.engine.step_costs import StepCosts
from pelton.runner.assembly import prepare
from pelton.runner.runner import NativeRunner
from pelton.sampling_params import SamplingParams

FIXTURES = Path(__file__).parents[1] / "fixtures" / "models"
MODELS = ("llama", "gemma3", "qwen3_5")  # the small Gemma's windows are of 16 tokens
NUM_REQUESTS, NUM_GROWING = 200, 40
MAX_MODEL_LEN = 160
VOCAB_SIZE = 300


@dataclass
class Said:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, part: Progress) -> None:
        assert part.error is None
        self.token_ids += part.token_ids
        self.logprobs += part.logprobs or []
        self.prompt_logprobs += part.prompt_logprobs or []


@dataclass(frozen=True)
class Wanted:
    """A request. arrival: the step before which it comes."""

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    arrival: int
    priority: int
    salt: str

    def add_to(self, engine: Engine, said: list[list[int]] | None = None) -> None:
        engine.add(
            self.request_id,
            self.prompt,
            self.sampling,
            priority=self.priority,
            cache_salt=self.salt,
            output_token_ids=said or (),
        )


Answers = dict[tuple[str, int], Said]


def random_requests(generator: random.Random) -> list[Wanted]:
    """Fresh prompts, and prompts that begin alike. Some come ten at once, are short and say much: they outgrow a
    small pool together."""
    families = [[generator.randrange(VOCAB_SIZE) for _ in range(120)] for _ in range(4)]
    wanted = []
    for number in range(NUM_REQUESTS):
        own = [generator.randrange(VOCAB_SIZE) for _ in range(generator.choice((1, 3, 17, 40)))]
        common = generator.choice(families)[: generator.choice((0, 0, 16, 48, 63, 100))]
        is_growing = number < NUM_GROWING
        if is_growing:
            own, common = own[:1], []
        sampling = SamplingParams(
            n=generator.choice((1, 1, 1, 2, 3)),
            temperature=generator.choice((0.0, 0.7, 1.5)),
            top_k=generator.choice((0, 5, 40)),
            top_p=generator.choice((0.8, 1.0)),
            min_p=generator.choice((0.0, 0.05)),
            repetition_penalty=generator.choice((1.0, 1.2)),
            frequency_penalty=generator.choice((0.0, 0.5)),
            seed=generator.randrange(1 << 64),
            max_tokens=40 if is_growing else generator.randint(1, 16),
            logprobs=generator.choice((0, 3)),
            prompt_logprobs=generator.choice((None, None, None, 2)),
        )
        salt = generator.choice(("", "", "other"))
        arrival = 50 * (number % 4) if is_growing else generator.randrange(NUM_REQUESTS)
        wanted.append(Wanted(str(number), common + own, sampling, arrival, generator.choice((0, 0, 1)), salt))
    return sorted(wanted, key=lambda request: request.arrival)


@contextmanager
def open_engine(path: Path, *, threads: int = 2, num_blocks: int = 400, **limits: Any) -> Iterator[Engine]:
    """num_blocks: of the largest group that the pool holds; a slab holds one of them. States are kept at every
    boundary, so that these short prompts find some."""
    prepared = prepare(load_settings({"model": str(path), "threads": threads, "max_model_len": MAX_MODEL_LEN}))
    slab_bytes = max(group.block_bytes for group in prepared.program.cache_layout)
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "step_costs": None, "checkpoint_tokens": 16, **limits}
    sizes = {"slab_bytes": slab_bytes, "kv_cache_bytes": num_blocks * slab_bytes}
    planned = msgspec.structs.replace(prepared.plan.limits, **sizes, **given)
    runner = NativeRunner(
        prepared.load_program(), kv_cache_bytes=planned.kv_cache_bytes, max_num_seqs=planned.max_num_seqs
    )
    engine = Engine(runner, planned, (1, 2))
    try:
        yield engine
    finally:
        engine.close()


def serve(engine: Engine, requests: list[Wanted], disturb: Callable[[Answers], None] = lambda _: None) -> Answers:
    """disturb: called before each step with what has been said so far."""
    answers: Answers = {}
    coming = list(requests)
    num_steps = 0
    while coming or engine.has_work:
        while coming and (coming[0].arrival <= num_steps or not engine.has_work):
            coming.pop(0).add_to(engine)
        disturb(answers)
        for part in engine.step():
            answers.setdefault((part.request_id, part.choice), Said()).take(part)
        num_steps += 1
    engine.cache.check_integrity()
    assert engine.stats().kv_cache_usage == 0
    return answers


@dataclass(frozen=True)
class Case:
    path: Path
    requests: list[Wanted]
    alone: Answers

    def check(self, answers: Answers) -> None:
        assert answers.keys() == self.alone.keys()
        wrong = [key for key, said in answers.items() if said != self.alone[key]]
        assert not wrong, f"{len(wrong)} of {len(answers)} differ from what they say alone"


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    """Alone: one at a time, one choice at a time, the prompt computed whole, on one thread."""
    path = FIXTURES / f"{request.param}.gguf"
    requests = random_requests(random.Random(request.param))
    alone: Answers = {}
    with open_engine(
        path, threads=1, max_num_seqs=1, max_num_batched_tokens=MAX_MODEL_LEN, prefix_cache=False
    ) as engine:
        for wanted in requests:
            alone |= serve(engine, [wanted])
    return Case(path, requests, alone)


def test_batched_is_as_alone(case: Case) -> None:
    with open_engine(case.path, prefix_cache=False) as engine:
        case.check(serve(engine, case.requests))
        assert engine.stats().prefix_queried_tokens_total == 0


@pytest.mark.parametrize("num_tokens", [8, 27])
def test_chunked_is_as_alone(case: Case, num_tokens: int) -> None:
    with open_engine(case.path, max_num_batched_tokens=num_tokens, prefix_cache=False) as engine:
        case.check(serve(engine, case.requests))


def test_prefills_that_give_way_to_decodes_are_as_alone(case: Case) -> None:
    with open_engine(case.path, threads=1, step_costs=StepCosts(5.0, 100.0)) as engine:
        case.check(serve(engine, case.requests))


@pytest.mark.parametrize("threads", [1, 2])
def test_with_prefixes_found_is_as_alone(case: Case, threads: int) -> None:
    """Twice on one engine: the second time nearly everything is found."""
    with open_engine(case.path, threads=threads) as engine:
        for least_share in (0.2, 0.5):
            before = engine.stats()
            case.check(serve(engine, case.requests))
            after = engine.stats()
            queried = after.prefix_queried_tokens_total - before.prefix_queried_tokens_total
            assert after.prefix_hit_tokens_total - before.prefix_hit_tokens_total > least_share * queried


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_is_as_alone(case: Case, prefix_cache: bool) -> None:
    """The pool holds little more than one request at its peak."""
    with open_engine(case.path, num_blocks=13, max_num_batched_tokens=32, prefix_cache=prefix_cache) as engine:
        case.check(serve(engine, case.requests))
        assert engine.scheduler.num_preemptions > 2


def test_replayed_is_as_alone(case: Case) -> None:
    """Every few steps some are dropped and enter again with what they had said."""
    generator = random.Random(1)
    wanted = {request.request_id: request for request in case.requests}

    with open_engine(case.path) as engine:

        def replay(answers: Answers) -> None:
            live = [*engine.scheduler.running, *engine.scheduler.waiting]
            if not live or generator.random() > 0.3:
                return
            request = wanted[generator.choice(live).request_id]
            said = [answers.setdefault((request.request_id, choice), Said()) for choice in range(request.sampling.n)]
            assert engine.abort(request.request_id)
            request.add_to(engine, [one.token_ids for one in said])
            if not said[0].token_ids:
                said[0].prompt_logprobs = []

        case.check(serve(engine, case.requests, replay))


def test_interrupted_is_as_alone(case: Case) -> None:
    """Every few steps all of them lose their slots and their cache."""
    generator = random.Random(2)

    with open_engine(case.path) as engine:

        def restart(_: Answers) -> None:
            if generator.random() < 0.1:
                engine.scheduler.restart(engine.scheduler.running + engine.scheduler.waiting)

        case.check(serve(engine, case.requests, restart))
