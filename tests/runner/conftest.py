from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pelton import _native
from pelton.engine.batch import NewRequest, SlotResult, SlotWork
from pelton.runner.runner import slot_result
from pelton.sampling_params import SamplingParams

HEAD_ROWS = 32
MAX_MODEL_LEN = 256


class RowRunner:
    """A runner without a model: the program has no nodes, and the test writes the logits that the sampler reads.

    Row r of the tile belongs to the r-th slot of a step that samples.
    """

    def __init__(self, team: _native.Team, vocab_size: int, level: str = "generic") -> None:
        self.vocab_size = vocab_size
        self.stride = -(-vocab_size // 16) * 16
        self._buffer = _native.Buffer(64 + HEAD_ROWS * self.stride * 4, "test")
        self._native = _native.Runner(
            _native.Program(team, level),
            None,
            self._buffer,
            logits_offset=64,
            logits_stride=self.stride,
            cache_groups=[],
            num_slots=HEAD_ROWS,
            max_model_len=MAX_MODEL_LEN,
            max_num_tokens=MAX_MODEL_LEN,
            vocab_size=vocab_size,
        )
        self._known: dict[int, list[int]] = {}

    def write(self, rows: Any) -> None:
        tile = np.frombuffer(self._buffer, np.float32, offset=64).reshape(HEAD_ROWS, self.stride)
        tile[...] = np.float32("nan")  # padding and unused rows must not be looked at
        tile[: len(rows), : self.vocab_size] = rows

    def enter(
        self,
        slot: int,
        sampling: SamplingParams,
        *,
        prompt: list[int] | None = None,
        output: list[int] | None = None,
        seed: int = 0,
        choice: int = 0,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        prompt, output = prompt or [0], output or []
        self._native.enter(NewRequest(slot, prompt + output, len(prompt), sampling, seed, choice, eos_token_ids))
        self._known[slot] = prompt + output

    def release(self, slot: int) -> None:
        self._native.release(slot)

    def step(self, rows: Any, slots: list[int] | None = None, *, mask: bytes | None = None) -> list[SlotResult]:
        """Computes each slot's last known token and samples from its row."""
        self.write(rows)
        slots = list(range(len(rows))) if slots is None else slots
        work = [SlotWork(slot, len(self._known[slot]) - 1, 1, [], token_mask=mask) for slot in slots]
        results = [slot_result(*outcome) for outcome in self._native.step(work)]
        for result in results:
            if result.token_id is not None:
                self._known[result.slot].append(result.token_id)
        return results

    def sample(self, row: Any, sampling: SamplingParams, *, mask: bytes | None = None, **request: Any) -> SlotResult:
        """One draw of a request of its own."""
        self.enter(0, sampling, **request)
        (result,) = self.step([row], mask=mask)
        self.release(0)
        return result


@pytest.fixture(scope="session")
def team() -> Iterator[_native.Team]:
    team = _native.Team(2)
    yield team
    team.close()


@pytest.fixture(scope="session")
def usable_levels() -> list[str]:
    return [name for name, is_usable, _ in _native.levels() if is_usable]
