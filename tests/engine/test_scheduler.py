"""What the scheduler decides, seen in the batches that reach the runner."""

from __future__ import annotations

from pelton.engine.engine import Engine
from pelton.engine.step_costs import MAX_STRETCH, StepCosts
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


def test_a_short_prompt_is_not_stuck_behind_a_long_one() -> None:
    engine = engine_of(max_num_batched_tokens=32, max_model_len=2000, num_slabs=64)
    engine.add("long", [5] * 800, LONG)
    engine.step()
    engine.add("short", [6] * 16, LONG)
    assert [part.request_id for part in engine.step() if part.token_ids] == ["short"]
    assert step_sizes(engine) == {0: 16, 1: 16}


def test_half_of_a_step_is_the_first_prompts_however_many_short_ones_come() -> None:
    engine = engine_of(max_num_batched_tokens=32, max_model_len=2000, num_slabs=64)
    engine.add("long", [5] * 320, SamplingParams(max_tokens=1))
    for number in range(19):
        engine.add(str(number), [number] * 31, SamplingParams(max_tokens=1))
        engine.step()
        assert step_sizes(engine)[0] >= 16
    assert any(part.request_id == "long" for part in engine.step())


def test_a_prompt_of_higher_priority_is_served_before_a_shorter_one() -> None:
    engine = engine_of(max_num_batched_tokens=32)
    engine.add("first", [5] * 100, LONG, priority=-2)
    engine.add("second", [6] * 80, LONG, priority=-1)
    engine.add("short", [7] * 8, LONG)
    engine.step()
    assert step_sizes(engine) == {0: 16, 1: 16}


def test_prefills_leave_decodes_within_the_bound() -> None:
    costs = StepCosts(read_rows=7.0, half_position=100.0)
    engine = engine_of(max_num_batched_tokens=64, max_model_len=2000, num_slabs=80, step_costs=costs)
    engine.add("decodes", [5], SamplingParams(max_tokens=200, ignore_eos=True))
    engine.step()
    engine.add("long", [6] * 500, LONG)
    (long,) = engine.scheduler.waiting
    sizes = []
    while long.remaining > 1:
        engine.step()
        decode, prefill = runner_of(engine).steps[-1].work
        assert decode.num_tokens == 1
        sizes.append(prefill.num_tokens)
        alone = costs.read_rows + costs.row(decode.num_computed)
        together = alone + prefill.num_tokens * costs.row(prefill.num_computed)
        assert together <= MAX_STRETCH * alone
    assert sizes[0] == int((MAX_STRETCH - 1) * 8)  # a decode and the reading of weights cost eight rows
    assert min(sizes[:-1]) >= 1
    assert sizes[-2] < sizes[0]


def test_a_prefill_goes_on_even_where_the_bound_leaves_nothing() -> None:
    engine = engine_of(step_costs=StepCosts(0.0, 1.0), max_model_len=200)
    engine.add("decodes", [5], LONG)
    engine.step()
    engine.add("long", [6] * 60, LONG)
    for _ in range(70):
        engine.step()
    assert all(request.num_output for request in engine.scheduler.running)


def test_without_decodes_a_prefill_takes_the_whole_step() -> None:
    engine = engine_of(step_costs=StepCosts(1.0, 10.0))
    engine.add("long", [6] * 60, LONG)
    engine.step()
    assert step_sizes(engine) == {0: 32}
