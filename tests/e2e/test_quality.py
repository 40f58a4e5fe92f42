"""The real models are as close to float32 on their own weights as they are said to be. All texts: bench/quality.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.quality import MODES, Judged, judge, measure

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]  # the reference over all texts takes minutes

# Mean KL(reference || ours) in nats, share of positions with the same most likely token. 8 bits for whole groups of
# activations, as is common, come to 0.0034 and 96.1 % on SmolLM2.
TARGETS = {"default": (0.0008, 0.98), "exact": (0.00001, 0.999)}


def num_tokens(case_count: Callable[[int, int], int]) -> int | None:
    """A few of every passage, or all that there are: more than 2,000 with either tokenizer."""
    return case_count(256, 0) or None


@pytest.fixture(scope="module")
def judged_smollm2(smollm2_path: Path, case_count: Callable[[int, int], int]) -> list[Judged]:
    return judge(smollm2_path, num_tokens(case_count))


@pytest.fixture(scope="module")
def judged_gemma3(gemma3_path: Path, case_count: Callable[[int, int], int]) -> list[Judged]:
    return judge(gemma3_path, num_tokens(case_count))


@pytest.mark.parametrize("mode", MODES)
def test_smollm2_is_close_to_float32(mode: str, smollm2_path: Path, judged_smollm2: list[Judged]) -> None:
    check(smollm2_path, judged_smollm2, mode)


@pytest.mark.parametrize("mode", MODES)
def test_gemma3_is_close_to_float32(mode: str, gemma3_path: Path, judged_gemma3: list[Judged]) -> None:
    check(gemma3_path, judged_gemma3, mode)


def check(path: Path, judged: list[Judged], mode: str) -> None:
    divergence, agreement = TARGETS[mode]
    found = measure(path, judged, **MODES[mode])["all"]
    assert found.divergence <= divergence, found
    assert found.agreement >= agreement - sampling_error(agreement, found.num_tokens), found


def sampling_error(share: float, count: int) -> float:
    """A share over few positions strays: three deviations of it. Over all positions the target itself counts."""
    return 0.0 if count > 2000 else 3 * (share * (1 - share) / count) ** 0.5
