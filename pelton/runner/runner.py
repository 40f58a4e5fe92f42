"""Computes the engine's batches with a native program: slots, steps and sampling are native, here is only the contract.

It knows no model and no device; a platform hands over the program, with its weights loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from pelton import _native
from pelton.cache.groups import CacheGroupSpec
from pelton.engine.batch import Batch, SlotResult, StepResult, TokenLogprobs
from pelton.errors import PeltonError
from pelton.graph.graph import Graph
from pelton.graph.kernel import CacheGroupLayout
from pelton.graph.program import Program


class NativeProgram(Protocol):
    """A compiled program in memory. arena: where its values live, at the offsets that `program` says."""

    @property
    def program(self) -> Program: ...
    @property
    def native(self) -> _native.Program: ...
    @property
    def arena(self) -> _native.Buffer: ...

    def close(self) -> None: ...


def cache_group_specs(graph: Graph, layouts: Sequence[CacheGroupLayout]) -> list[CacheGroupSpec]:
    """The graph's cache groups as the engine must know them, in blocks of these layouts."""
    return [
        CacheGroupSpec(
            "state" if layout.num_states else "full" if group.window is None else "window",
            layout.block_bytes,
            group.window,
            layout.num_states,
        )
        for group, layout in zip(graph.cache_groups, layouts, strict=True)
    ]


class NativeRunner:
    """The Runner of programs that run in native code. Owns the program and the KV pool."""

    def __init__(self, program: NativeProgram, *, kv_cache_bytes: int, max_num_seqs: int) -> None:
        """kv_cache_bytes: size of the pool, in which the engine places blocks. max_num_seqs: slots.

        Steps are bounded by what the program was compiled for: its max_tokens and max_context.
        """
        compiled = program.program
        logits = compiled.graph.outputs["logits"]
        place = compiled.places[logits]
        _, vocab_size = logits.shape
        assert isinstance(vocab_size, int), "logits have a symbolic number of columns"
        self._groups = cache_group_specs(compiled.graph, compiled.cache_layout)
        self._program = program
        self._kv_pool = _native.Buffer(kv_cache_bytes, "kv cache")
        self._native: _native.Runner | None = _native.Runner(
            program.native,
            self._kv_pool,
            program.arena,
            logits_offset=place.offset,
            logits_stride=place.row_bytes // 4,
            cache_groups=[(group.block_bytes, group.window, group.num_states) for group in self._groups],
            num_slots=max_num_seqs,
            max_model_len=compiled.settings.max_context,
            max_num_tokens=compiled.settings.max_tokens,
            vocab_size=vocab_size,
        )

    @property
    def cache_groups(self) -> list[CacheGroupSpec]:
        return self._groups

    def step(self, batch: Batch) -> StepResult:
        """Raises ValueError if the batch does not fit what the slots know. After that, or after Ctrl-C, the batch's
        slots can be given back and given anew.
        """
        for slot in batch.finished_slots:
            self._vacate(slot)
        for request in batch.new:
            self._vacate(request.slot)
            self._open.enter(request)
        return StepResult([slot_result(*outcome) for outcome in self._open.step(batch.work)])

    @property
    def _open(self) -> _native.Runner:
        # Never kept in a local: the traceback of a step that failed would keep it, and the pool with it, past `close`.
        if self._native is None:
            raise PeltonError("the runner is closed")
        return self._native

    def _vacate(self, slot: int) -> None:
        """A step that broke off may have left a slot empty that is given back, or full that is given anew."""
        with suppress(ValueError):  # it holds no request
            self._open.release(slot)

    def close(self) -> None:
        """Gives all memory back. Idempotent."""
        if self._native is not None:
            self._native = None
            self._kv_pool.close()
            self._program.close()


def slot_result(
    slot: int,
    token_id: int | None,
    logprobs: _native.Logprobs | None,
    prompt_logprobs: list[_native.Logprobs] | None,
    error: str | None,
) -> SlotResult:
    return SlotResult(
        slot,
        token_id,
        None if logprobs is None else TokenLogprobs(*logprobs),
        None if prompt_logprobs is None else [TokenLogprobs(*position) for position in prompt_logprobs],
        error,
    )
