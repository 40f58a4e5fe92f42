"""The report of a full run: what ran, on which commit and machine, how it ended. Written by `scripts/test --all`."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest

from bench.machine import ROOT, machine_facts

REPORT = ROOT / "bench" / "results" / "test-all.json"


class FullRunReport:
    """A pytest plugin that counts outcomes by file."""

    def __init__(self) -> None:
        self._start = time.time()
        self._outcomes: dict[str, Counter[str]] = {}
        self._failed: list[str] = []
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.split("::")[0]
        self._seconds[file] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes.setdefault(file, Counter())[report.outcome] += 1
        if report.outcome == "failed":
            self._failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        total: Counter[str] = Counter()
        for outcomes in self._outcomes.values():
            total += outcomes
        files = {
            file: {**outcomes, "seconds": round(self._seconds[file], 1)}
            for file, outcomes in sorted(self._outcomes.items())
        }
        document: dict[str, Any] = {
            "command": "./scripts/test --all",
            **machine_facts(),
            "seconds": round(time.time() - self._start, 1),
            "outcomes": dict(total),
            "failed": self._failed,
            "files": files,
        }
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(document, indent=1) + "\n")
