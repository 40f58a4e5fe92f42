"""What broke the engine is refused for a while, whoever sends it."""

from __future__ import annotations

from pelton.engine.messages import AddRequest
from pelton.engine.quarantine import DURATION_S, Quarantine
from pelton.sampling_params import SamplingParams


def request(name: str, prompt: list[int], seed: int = 1, **sampling: float) -> AddRequest:
    return AddRequest(name, prompt, SamplingParams(**sampling), seed)  # type: ignore[arg-type]


def test_the_same_wish_is_refused_under_any_name_until_its_time_is_up() -> None:
    quarantine = Quarantine()
    assert quarantine.seconds_left(request("a", [1, 2]), 0.0) == 0.0
    name = quarantine.add(request("a", [1, 2]), 0.0)
    assert len(name) == 32
    assert quarantine.seconds_left(request("b", [1, 2], seed=9), 100.0) == DURATION_S - 100.0
    assert quarantine.seconds_left(request("a", [1, 3]), 100.0) == 0.0
    assert quarantine.seconds_left(request("a", [1, 2], temperature=0.5), 100.0) == 0.0
    assert quarantine.seconds_left(request("a", [1, 2]), DURATION_S + 1.0) == 0.0


def test_it_has_a_bound_and_forgets_the_oldest() -> None:
    quarantine = Quarantine()
    quarantine.add(request("renewed", [0]), 0.0)
    for number in range(1, 256):
        quarantine.add(request("a", [number]), 0.0)
    quarantine.add(request("renewed", [0]), 1.0)
    quarantine.add(request("one more", [256]), 1.0)
    assert quarantine.seconds_left(request("a", [1]), 1.0) == 0.0
    for number in (0, 2, 256):
        assert quarantine.seconds_left(request("a", [number]), 1.0) > 0.0
