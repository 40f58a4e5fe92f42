"""What a step costs outside the runner: schedule and update, with a runner that computes nothing.

python -m bench.scheduling [--streams 32]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.batch import Batch, SlotResult, StepResult
from pelton.engine.engine import Engine
from pelton.engine.scheduler import EngineLimits
from pelton.engine.step_costs import StepCosts
from pelton.sampling_params import SamplingParams

BLOCK_BYTES = 368_640  # SmolLM2's
SLAB_BYTES = 6 * BLOCK_BYTES
NUM_PROMPT, NUM_OUTPUT = 512, 600


class IdleRunner:
    """Every token is 5."""

    cache_groups = [CacheGroupSpec("full", BLOCK_BYTES)]

    def step(self, batch: Batch) -> StepResult:
        return StepResult([SlotResult(work.slot, 5 if work.sample else None) for work in batch.work])

    def close(self) -> None:
        pass


def step_seconds(streams: int, *, num_waiting: int, prefix_cache: bool) -> list[float]:
    """Of the steps in which `streams` requests decode; num_waiting more wait for a slot."""
    limits = EngineLimits(2048, streams, 512, 1200 * SLAB_BYTES, SLAB_BYTES, 1000, StepCosts(9.0, 1500.0), prefix_cache)
    engine = Engine(IdleRunner(), limits, clock=time.perf_counter)
    sampling = SamplingParams(max_tokens=NUM_OUTPUT, ignore_eos=True)
    for number in range(streams + num_waiting):
        engine.add(str(number), [number % 1000] * NUM_PROMPT, sampling)
    found = []
    while engine.stats().num_waiting >= num_waiting:
        before = engine.stats().schedule_seconds_total
        engine.step()
        stats = engine.stats()
        if stats.step_tokens == streams:
            found.append(stats.schedule_seconds_total - before)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    streams = parser.parse_args().streams
    for prefix_cache in (False, True):
        for num_waiting in (1, 200):
            times = sorted(step_seconds(streams, num_waiting=num_waiting, prefix_cache=prefix_cache))
            row = {
                "streams": streams,
                "waiting": num_waiting,
                "prefix_cache": prefix_cache,
                "steps": len(times),
                "p10_us": round(1e6 * times[len(times) // 10], 1),
                "median_us": round(1e6 * statistics.median(times), 1),
            }
            print(json.dumps(row))


if __name__ == "__main__":
    main()
