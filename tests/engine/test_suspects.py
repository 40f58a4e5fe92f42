"""Who is at fault when the engine breaks: the one who always was there, and nobody else."""

from __future__ import annotations

import random
from collections.abc import Callable

from pelton.engine.suspects import MAX_BREAKS, Suspects


def breaks_until_found(poison: set[str], names: list[str], slots: int, draw: random.Random) -> tuple[int, list[str]]:
    """Runs `names`, of which the poisonous ones break the engine in their first step. (breaks, who was failed)."""
    suspects = Suspects()
    waiting, running, done, failed = list(names), [], [], []
    num_breaks = 0
    while waiting or running:
        trial = suspects.on_trial
        may_start = [name for name in waiting if trial in (None, name)]
        while may_start and len(running) < slots:
            running.append(may_start.pop(0))
            waiting.remove(running[-1])
        if poison & set(running):
            num_breaks += 1
            guilty = suspects.broke(running)
            failed += guilty
            waiting = sorted([*waiting, *(name for name in running if name not in guilty)], key=names.index)
            running = []
            continue
        for name in list(running):
            suspects.advanced(name)
            if draw.random() < 0.5:
                running.remove(name)
                suspects.forget(name)
                done.append(name)
    assert sorted(done + failed) == sorted(names)
    return num_breaks, failed


def test_one_that_breaks_alone_is_found_at_the_second_break() -> None:
    assert breaks_until_found({"a"}, ["a"], 4, random.Random(0)) == (2, ["a"])


def test_only_the_guilty_are_failed(case_count: Callable[[int, int], int]) -> None:
    for seed in range(case_count(300, 10_000)):
        draw = random.Random(seed)
        names = [str(number) for number in range(draw.randrange(1, 40))]
        poison = set(draw.sample(names, draw.randrange(0, min(3, len(names)) + 1)))
        num_breaks, failed = breaks_until_found(poison, names, draw.randrange(1, 33), draw)
        assert set(failed) == poison
        assert num_breaks <= 3 * len(poison)


def test_progress_clears() -> None:
    suspects = Suspects()
    for _ in range(3):
        assert suspects.broke(["a", "b"]) == []
        suspects.advanced("a")
        suspects.advanced("b")
        assert suspects.on_trial is None


def test_there_is_an_end_even_with_progress() -> None:
    suspects = Suspects()
    for _ in range(MAX_BREAKS - 1):
        assert suspects.broke(["a"]) == []
        suspects.advanced("a")
    assert suspects.broke(["a"]) == ["a"]


def test_nobody_is_blamed_for_what_breaks_while_nothing_runs() -> None:
    suspects = Suspects()
    assert suspects.broke([]) == []
    assert suspects.on_trial is None
