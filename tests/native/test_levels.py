"""What the levels offer, and that each that this machine has agrees with the generic one."""

from __future__ import annotations

import pytest

from pelton import _native

USABLE = [name for name, usable, _ in _native.levels() if usable]


def test_generic_is_first_and_always_usable() -> None:
    assert _native.levels()[0] == ("generic", True, "")


def test_unusable_levels_say_why() -> None:
    for name, usable, reason in _native.levels():
        assert bool(reason) != usable, name


@pytest.mark.parametrize("level", [name for name, _, _ in _native.levels()])
def test_every_level_has_the_same_kernels(level: str) -> None:
    assert _native.kernels(level) == _native.kernels("generic")
    assert _native.kernels(level) == sorted(set(_native.kernels(level)))


@pytest.mark.parametrize("level", USABLE)
def test_every_kernel_agrees_with_the_generic_level(level: str) -> None:
    results = _native.self_test(level)
    assert results
    assert [result for result in results if result[1] != "ok"] == []


def test_level_that_the_cpu_lacks_is_refused() -> None:
    team = _native.Team(1)
    for name, usable, reason in _native.levels():
        if not usable:
            with pytest.raises(ValueError, match=reason):
                _native.Program(team, name)
            with pytest.raises(ValueError, match=reason):
                _native.self_test(name)
    with pytest.raises(ValueError, match="no level `x87`"):
        _native.Program(team, "x87")


def test_features_are_named() -> None:
    features = _native.cpu_features()
    assert features
    assert all(isinstance(present, bool) for present in features.values())
