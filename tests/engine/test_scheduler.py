"""What the scheduler decides, seen in the batches that reach the runner."""

from __future__ import annotations

from pelton.engine.engine import Engine
from pelton.sampling_params import SamplingParams
from tests.fake_runner import engine_of, runner_of

LONG = SamplingParams(max_tokens=100, ignore_eos=True)


def step_sizes(engine: Engine) -> dict[int, int]:
    """num_tokens by slot of the last step."""
    return {work.slot: work.num_tokens for work in runner_of(engine).steps[-1].work}


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    engine = engine_of(max_num_batched_tokens=32)
    engine.add("a", [5] * 70, LONG)
    sizes = []
    for _ in range(4):
        engine.step()
        sizes.append(step_sizes(engine))
    assert sizes == [{0: 32}, {0: 32}, {0: 6}, {0: 1}]


def test_decodes_go_on_while_a_prompt_is_computed() -> None:
    engine = engine_of(max_num_batched_tokens=32)
    engine.add("a", [5] * 4, LONG)
    engine.step()
    engine.add("b", [6] * 100, LONG)
    for _ in range(3):
        assert any(part.request_id == "a" and part.token_ids for part in engine.step())
        assert step_sizes(engine) == {0: 1, 1: 31}


def test_short_prompts_share_a_step() -> None:
    engine = engine_of(max_num_batched_tokens=32)
    for name in "abcd":
        engine.add(name, [7] * 10, LONG)
    engine.step()
    assert step_sizes(engine) == {0: 10, 1: 10, 2: 10, 3: 2}


def test_no_more_run_than_there_are_slots() -> None:
    engine = engine_of(max_num_seqs=2)
    for name in "abc":
        engine.add(name, [7] * 3, SamplingParams(max_tokens=2, ignore_eos=True))
    engine.step()
    assert set(step_sizes(engine)) == {0, 1}
    engine.step()
    engine.step()
    assert len(step_sizes(engine)) == 1


def test_priority_goes_before_arrival() -> None:
    engine = engine_of(max_num_seqs=1)
    finished = []
    engine.add("late", [7], SamplingParams(max_tokens=1), priority=1)
    engine.add("first", [7], SamplingParams(max_tokens=1))
    engine.add("second", [7], SamplingParams(max_tokens=1))
    while engine.has_work:
        finished += [part.request_id for part in engine.step()]
    assert finished == ["first", "second", "late"]


def test_the_youngest_gives_way_when_blocks_run_out() -> None:
    engine = engine_of(num_slabs=3, max_num_seqs=4)  # 12 blocks
    for name in "abc":
        engine.add(name, [7] * 16, LONG)
    while engine.scheduler.num_preemptions == 0:
        engine.step()
        engine.cache.check_integrity()
    assert [request.request_id for request in engine.scheduler.running] == ["a", "b"]
    preempted = engine.scheduler.waiting[0]
    assert preempted.request_id == "c"
    assert preempted.num_output > 0
    assert preempted.num_computed == 0


def test_a_prefill_takes_the_blocks_of_a_later_request_that_is_already_in_the_step() -> None:
    engine = engine_of(num_slabs=3, max_num_seqs=2, max_num_batched_tokens=4)  # 12 blocks
    engine.add("later", [7] * 12, SamplingParams(max_tokens=120, seed=1, ignore_eos=True), priority=1)
    for _ in range(3):
        engine.step()
    engine.add("first", [8] * 160, SamplingParams(max_tokens=4, seed=2, ignore_eos=True))
    finished = []
    while engine.has_work:
        finished += [part.request_id for part in engine.step() if part.finish_reason]
        engine.cache.check_integrity()
    assert finished == ["first", "later"]
    assert engine.scheduler.num_preemptions == 1
    batches = runner_of(engine).steps
    preempting = next(batch for batch in batches[4:] if len(batch.finished_slots) == 1 and not batch.new)
    assert [work.num_tokens for work in preempting.work] == [3]


def test_a_request_is_not_admitted_into_room_promised_to_another() -> None:
    engine = engine_of(num_slabs=4, max_num_batched_tokens=32)  # 16 blocks
    engine.add("a", [7] * 200, SamplingParams(max_tokens=1))
    engine.add("b", [8] * 100, SamplingParams(max_tokens=1))
    engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["a"]
    while engine.has_work:
        engine.step()
    assert engine.scheduler.num_preemptions == 0


def test_nobody_overtakes_the_first_that_waits_for_room() -> None:
    engine = engine_of(num_slabs=4)
    engine.add("a", [7] * 100, LONG)
    engine.step()
    engine.add("big", [8] * 150, SamplingParams(max_tokens=1))
    engine.add("small", [7], SamplingParams(max_tokens=1))
    engine.step()
    assert [request.request_id for request in engine.scheduler.waiting] == ["big", "small"]


def test_a_finished_slot_is_told_before_it_is_given_again() -> None:
    engine = engine_of(max_num_seqs=1)
    engine.add("a", [7], SamplingParams(max_tokens=1))
    engine.add("b", [7], SamplingParams(max_tokens=1))
    engine.step()
    engine.step()
    batch = runner_of(engine).steps[-1]
    assert batch.finished_slots == [0]
    assert [new.slot for new in batch.new] == [0]


def test_nothing_to_do_is_no_step() -> None:
    engine = engine_of()
    assert engine.step() == []
    assert runner_of(engine).steps == []
