"""Extensions of other packages: found by entry point, used by name, and harmless when broken."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from pelton.errors import UsageError
from pelton.graph.program import compile
from pelton.platforms import discover
from pelton.platforms.torch import TorchPlatform
from pelton.platforms.torch.program import TorchProgram
from tests.graph.tiny_model import build_tiny_model, settings_for
from tests.platforms.steps import one_sequence, random_parameters

PACKAGE = Path(__file__).resolve().parents[1] / "external_provider"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PACKAGE))
    discover.load_extension.cache_clear()


def test_a_provider_of_another_package_computes_when_it_is_named() -> None:
    import pelton_shout

    graph = build_tiny_model()
    platform = TorchPlatform(torch.float64)
    logits = []
    for providers in (("torch",), ("shout", "torch")):
        settings = settings_for(graph, "f32", kv_dtype="f64", providers=providers)
        program = compile(graph, platform, settings)
        runnable = TorchProgram(program, random_parameters(graph, torch.float64), pool_bytes=1 << 20)
        logits.append(runnable.run(**one_sequence(program, [1, 2, 3]))["head"])
    assert pelton_shout.ShoutingAdd.calls == 4
    assert torch.equal(*logits)
    (embedding,) = (row for row in program.describe() if row.node == "embed_tokens")
    assert embedding.reasons == ("shout/embedding: shout has no embedding",)


def test_a_broken_extension_warns_once_and_is_listed_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pelton.platforms.discover"):
        found = {(item.group, item.name): item.error for item in discover.statuses()}
        discover.statuses()
    assert found["pelton.providers", "shout"] is None
    assert found["pelton.providers", "broken"] == "ModuleNotFoundError: No module named 'pelton_shout.missing'"
    others = {(item.group, item.name) for item in discover.statuses(own=False)}
    assert others == found.keys() - {("pelton.platforms", "cpu"), ("pelton.platforms", "torch")}
    assert [record.getMessage() for record in caplog.records] == [
        "`broken` of `pelton.providers` (`pelton_shout.missing:Nothing`) can't be used: "
        "ModuleNotFoundError: No module named 'pelton_shout.missing'"
    ]


def test_a_broken_extension_that_is_named_is_an_error() -> None:
    graph = build_tiny_model()
    with pytest.raises(UsageError, match=r"`broken` of `pelton\.providers` can't be used: ModuleNotFoundError"):
        compile(graph, TorchPlatform(), settings_for(graph, "f32", providers=("broken",)))
    with pytest.raises(UsageError, match=r"`whisper` is not one of the `pelton\.providers`") as caught:
        compile(graph, TorchPlatform(), settings_for(graph, "f32", providers=("whisper",)))
    assert caught.value.hint == "installed: broken, shout"


def test_our_own_platforms_cannot_be_replaced() -> None:
    assert discover.find_extensions(discover.PLATFORMS)["cpu"] == "pelton.platforms.cpu:CpuPlatform"
    assert discover.find_platform("cpu").name == "cpu"


def test_an_unknown_platform_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"`abacus` is not one of the `pelton\.platforms`"):
        discover.find_platform("abacus")
