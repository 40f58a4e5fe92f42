"""A runner without tensors: it keeps tokens where keys and values would be, and draws by hashing what it can see.

It holds the engine to the contract: a row sees exactly the tokens before it, in blocks that nobody else has written.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from pelton.cache.groups import BLOCK_TOKENS, OFFSET_UNIT, CacheGroupSpec
from pelton.engine.batch import Batch, NewRequest, SlotResult, SlotWork, StepResult, TokenLogprobs
from pelton.engine.engine import Engine
from pelton.engine.request import Progress
from pelton.engine.scheduler import EngineLimits
from pelton.engine.step_costs import StepCosts

VOCAB_SIZE = 50
EOS = 1
FULL = CacheGroupSpec("full", 128)


@dataclass
class _Slot:
    """marks[p]: what a block must hold at position p, a hash of all tokens up to it and of who may share them."""

    request: NewRequest
    token_ids: list[int]
    salt: str
    marks: list[int] = field(default_factory=list)
    states: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)  # group -> blocks to read, to write
    tables: list[list[int | None]] = field(default_factory=list)
    num_computed: int = 0
    has_worked: bool = False

    def mark(self, position: int) -> int:
        for index in range(len(self.marks), position + 1):
            self.marks.append(hash((self.marks[-1] if index else self.salt, self.token_ids[index])))
        return self.marks[position]


@dataclass
class FakeRunner:
    """fail_on: a drawn token that makes its slot fail. interrupt_at: number of the step after which Ctrl-C comes.
    salt_of: a request's, which a runner is not told.
    steps: every batch, in order. has_failed: empty slots may be given back since."""

    cache_groups: list[CacheGroupSpec] = field(default_factory=lambda: [FULL])
    fail_on: int | None = None
    interrupt_at: int | None = None
    steps: list[Batch] = field(default_factory=list)
    is_closed: bool = False
    has_failed: bool = False
    salt_of: Callable[[NewRequest], str] = lambda _: ""
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _memory: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (group, block) -> 16 tokens' marks
    _owners: dict[int, tuple[int, int]] = field(default_factory=dict)  # 64 bytes of the pool -> who wrote there last
    _readers: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, block) of states -> this step's slot

    def step(self, batch: Batch) -> StepResult:
        assert batch.work, "an empty step"
        self.steps.append(batch)
        for slot in batch.finished_slots:
            assert slot in self._slots or self.has_failed, "an empty slot is given back"
            self._slots.pop(slot, None)
        for new in batch.new:
            assert new.slot not in self._slots, "a slot was given twice"
            self._slots[new.slot] = _Slot(new, list(new.token_ids), self.salt_of(new))
        assert len({work.slot for work in batch.work}) == len(batch.work), "a slot works twice in one step"
        self._readers = {}
        outcome = StepResult([self._work(work) for work in batch.work])
        for slot_number, slot in self._slots.items():
            for group, (_, written) in slot.states.items():
                for block in written:
                    assert self._readers.get((group, block), slot_number) == slot_number, "read and written in one step"
        if len(self.steps) == self.interrupt_at:
            self.has_failed = True
            raise KeyboardInterrupt
        return outcome

    def close(self) -> None:
        self.is_closed = True

    def _work(self, work: SlotWork) -> SlotResult:
        slot = self._slots[work.slot]
        self._update_tables(slot, work)
        end = work.num_computed + work.num_tokens
        assert work.num_computed == slot.num_computed, "computed tokens were skipped or repeated"
        assert work.reset == (not slot.has_worked), "`reset` is for the first step of a slot"
        slot.has_worked = True
        assert work.num_computed < end <= len(slot.token_ids), "unknown tokens are to be computed"
        assert work.sample == (end == len(slot.token_ids)), "`sample` must follow the last known token"
        for group, spec in enumerate(self.cache_groups):
            if spec.num_states:
                self._pass_states(slot, work, group)
                continue
            for position in range(work.num_computed, end):
                block = slot.tables[group][position // BLOCK_TOKENS]
                assert block is not None, "a token is written into a block that was given back"
                self._write(group, block, position % BLOCK_TOKENS, slot.mark(position))
            self._look(slot, work, group)
        slot.num_computed = end
        prompt_logprobs = self._prompt_logprobs(slot, work, end)
        if not work.sample:
            return SlotResult(work.slot, None, prompt_logprobs=prompt_logprobs)
        token_id = draw(slot.token_ids, slot.request)
        if token_id == self.fail_on:
            return SlotResult(work.slot, None, error="NaN in the logits")
        slot.token_ids.append(token_id)
        wants_logprobs = slot.request.sampling.logprobs is not None
        return SlotResult(work.slot, token_id, logprobs_of(token_id) if wants_logprobs else None, prompt_logprobs)

    def _update_tables(self, slot: _Slot, work: SlotWork) -> None:
        if work.reset:
            slot.tables = [[] for _ in self.cache_groups]
            slot.states = {}
            slot.num_computed = work.num_computed
        for group, (table, blocks) in enumerate(zip(slot.tables, work.new_blocks, strict=True)):
            if num_states := self.cache_groups[group].num_states:
                written = slot.states[group][1] if group in slot.states else []
                assert len(blocks) in ((0, num_states) if written else (num_states * (1 + (work.num_computed > 0)),))
                before, after = blocks[:-num_states], blocks[-num_states:]
                slot.states[group] = (before or written or after, after or written)
            else:
                table.extend(blocks)
        for table, freed in zip(slot.tables, work.freed_blocks or [], strict=False):
            table[:freed] = [None] * freed

    def _pass_states(self, slot: _Slot, work: SlotWork, group: int) -> None:
        """The states that are read stand behind the tokens computed so far; those written, behind this step's."""
        read, written = slot.states[group]
        if work.num_computed:
            for block in read:
                assert {self._owners[unit] for unit in self._units(group, block)} == {(group, block)}, "another group's"
                assert self._memory[group, block][0] == slot.mark(work.num_computed - 1), "another's state is read"
                assert self._readers.setdefault((group, block), work.slot) == work.slot or block not in written
        for block in written:
            self._write(group, block, 0, slot.mark(work.num_computed + work.num_tokens - 1))

    def _look(self, slot: _Slot, work: SlotWork, group: int) -> None:
        """Every token that the first row of this step sees is what this slot wrote or would have written."""
        window = self.cache_groups[group].window
        first = 0 if window is None else max(0, work.num_computed - window + 1)
        end = work.num_computed + work.num_tokens
        slot.mark(end - 1)
        for start in range(first - first % BLOCK_TOKENS, end, BLOCK_TOKENS):
            block = slot.tables[group][start // BLOCK_TOKENS]
            assert block is not None, f"position {max(start, first)} is visible but was given back"
            assert all(self._owners[unit] == (group, block) for unit in self._units(group, block)), "another group's"
            positions = slice(max(start, first), min(start + BLOCK_TOKENS, end))
            seen = self._memory[group, block][positions.start - start : positions.stop - start]
            assert seen == slot.marks[positions], f"another prefix is seen among {positions}"

    def _write(self, group: int, block: int, index: int, mark: int) -> None:
        self._memory.setdefault((group, block), [0] * BLOCK_TOKENS)[index] = mark
        for unit in self._units(group, block):
            self._owners[unit] = (group, block)

    def _units(self, group: int, block: int) -> range:
        return range(block, block + self.cache_groups[group].block_bytes // OFFSET_UNIT)

    def _prompt_logprobs(self, slot: _Slot, work: SlotWork, end: int) -> list[TokenLogprobs] | None:
        first = work.prompt_logprobs_from
        if first is None:
            return None
        last = min(end, slot.request.num_prompt - 1)
        assert work.num_computed < first <= last, "log-probabilities are asked for rows that are not computed"
        return [logprobs_of(slot.token_ids[position]) for position in range(first, last + 1)]


def draw(token_ids: list[int], request: NewRequest) -> int:
    """A function of the known tokens, the seed and the choice alone."""
    key = f"{token_ids}{request.seed}{request.choice}".encode()
    token_id = zlib.crc32(key) % VOCAB_SIZE
    has_to_go_on = len(token_ids) - request.num_prompt < request.sampling.min_tokens
    return 2 if has_to_go_on and token_id in request.eos_token_ids else token_id


def logprobs_of(token_id: int) -> TokenLogprobs:
    return TokenLogprobs([token_id, 0], [-float(token_id), -0.5], token_id + 1)


def engine_of(
    *,
    groups: list[CacheGroupSpec] | None = None,
    num_slabs: int = 64,
    max_model_len: int = 256,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    fail_on: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    step_costs: StepCosts | None = None,
    prefix_cache: bool = True,
    steps_between_checks: int = 1000,
    checkpoint_tokens: int = BLOCK_TOKENS,
    checkpoint_bytes: int | None = None,
) -> Engine:
    """An engine over a fake runner. A slab is 512 bytes: four blocks of the full group."""
    limits = EngineLimits(
        max_model_len,
        max_num_seqs,
        max_num_batched_tokens,
        num_slabs * 512,
        512,
        VOCAB_SIZE,
        step_costs,
        prefix_cache,
        checkpoint_tokens,
        checkpoint_bytes,
    )
    return Engine(
        FakeRunner(groups or [FULL], fail_on), limits, (EOS,), clock=clock, steps_between_checks=steps_between_checks
    )


def run(engine: Engine) -> dict[str, Progress]:
    """To the end of all that it has: the last progress of each request."""
    last = {}
    while engine.has_work:
        for part in engine.step():
            last[part.request_id] = part
        engine.cache.check_integrity()
    return last


def runner_of(engine: Engine) -> FakeRunner:
    assert isinstance(engine.runner, FakeRunner)
    return engine.runner
