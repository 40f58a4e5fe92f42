"""The one contract between engine and runner: what to compute in a step, and what came of it.

Serialisable, and in deltas: a request enters once with its data; later steps name its slot, its number of tokens and
its new blocks. The runner keeps each slot's known tokens (prompt, then what it sampled), so a step never repeats them:
a slot's inputs are always its known tokens at positions [num_computed, num_computed + num_tokens).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from pelton.cache.groups import CacheGroupSpec as CacheGroupSpec
from pelton.sampling_params import SamplingParams


class NewRequest(msgspec.Struct, frozen=True):
    """Enters a request into a free slot.

    token_ids:      the known tokens: the prompt, and after a restart also what was already said.
    num_prompt:     how many of them are prompt. The rest counts as output (penalties, positions of draws).
    seed:           resolved: never None. With `choice` and the position it keys every draw.
    position_rows:  1, or 3 where positions are (time, height, width).
    adapter:        adapter slot, None for the base model.
    """

    slot: int
    token_ids: list[int]
    num_prompt: int
    sampling: SamplingParams
    seed: int
    choice: int = 0
    eos_token_ids: tuple[int, ...] = ()
    position_rows: int = 1
    adapter: int | None = None


class SlotWork(msgspec.Struct, frozen=True):
    """One slot's part of a step.

    num_computed:   tokens whose KV is in the cache before this step. With `reset` it is more than 0 if the slot starts
                    with blocks that others have computed; it never writes to those.
    num_tokens:     how many known tokens to compute, >= 1.
    new_blocks:     per cache group, the blocks that this slot has got since its last step, as offsets into the pool in
                    units of 64 bytes. `reset` drops the old tables first (new request, or resumed after preemption).
    freed_blocks:   per cache group, how many leading blocks have been given back by now in all (window layers); None
                    if that has not changed since the slot's last step. They may be given back from the start; then
                    their offsets in new_blocks mean nothing.
    sample:         draw the next token from the last row. False while a prompt is still incomplete.
    prompt_logprobs_from:  first prompt position whose log-probability is wanted, None: not wanted. The row at
                    position p - 1 predicts the token at p, so with `end` = num_computed + num_tokens they are wanted
                    for positions [prompt_logprobs_from, min(end, num_prompt - 1)], both included, in order.
    token_mask:     allowed tokens as bits (little endian words of 32), or None for all. For grammars.
    """

    slot: int
    num_computed: int
    num_tokens: int
    new_blocks: list[list[int]]
    reset: bool = False
    freed_blocks: list[int] | None = None
    sample: bool = True
    prompt_logprobs_from: int | None = None
    token_mask: bytes | None = None


class Batch(msgspec.Struct, frozen=True):
    new: list[NewRequest]
    work: list[SlotWork]
    finished_slots: list[int]  # freed before `new` enters; one that is empty, after a step that broke off, stays so


class TokenLogprobs(msgspec.Struct, frozen=True):
    """One position's log-probabilities: the chosen token first, then the most likely ones in falling order.

    rank: the chosen token's rank in the vocabulary, 1 for the most likely.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class SlotResult(msgspec.Struct, frozen=True):
    """What one slot got.

    token_id:         the drawn token, None if `sample` was False.
    logprobs:         for the drawn token, None if not wanted.
    prompt_logprobs:  one per position asked for in this chunk.
    error:            set when this slot failed (NaN logits, no allowed token); the others are unharmed.
    """

    slot: int
    token_id: int | None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None


class StepResult(msgspec.Struct, frozen=True):
    results: list[SlotResult]


class Runner(Protocol):
    """Computes batches. `step` is the only call on the way of a token."""

    @property
    def cache_groups(self) -> list[CacheGroupSpec]: ...

    def step(self, batch: Batch) -> StepResult: ...

    def close(self) -> None: ...
