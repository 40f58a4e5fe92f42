"""lm-eval over HTTP: scores bitwise those that the model gives without a server, and answers to questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from pelton import LLM, SamplingParams
from tests.clients.conftest import RunningServer

TASKS = Path(__file__).parent / "tasks"


@pytest.fixture(autouse=True)
def in_the_tasks_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks name their data relative to it."""
    monkeypatch.chdir(TASKS)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(str(smollm2_path), max_model_len=512) as llm:
        yield llm


def samples_of(task: str, model: str, path: str, server: RunningServer, **arguments: Any) -> list[dict[str, Any]]:
    results = lm_eval.simple_evaluate(
        model=model,
        model_args={"model": "pelton", "base_url": f"{server.api}/{path}", **arguments},
        tasks=[task],
        task_manager=TaskManager(include_path=str(TASKS), include_defaults=False),
        log_samples=True,
        apply_chat_template=path.startswith("chat"),
    )
    samples: list[dict[str, Any]] = results["samples"][task]
    return samples


def direct_score(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """The continuation's log-likelihood, and whether it is what would be said."""
    encode = llm.get_tokenizer().encode
    first = len(encode(context, add_special=False, parse_special=True))
    token_ids = encode(context + continuation, add_special=False, parse_special=True)
    (output,) = llm.generate([token_ids], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1))
    assert output.prompt_logprobs is not None
    scored = [entry[token] for token, entry in zip(token_ids, output.prompt_logprobs, strict=True) if entry][
        first - 1 :
    ]
    return sum(each.logprob for each in scored), all(each.rank == 1 for each in scored)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_scores_are_those_of_the_model_itself(smollm2_server: RunningServer, llm: LLM, batch_size: int) -> None:
    samples = samples_of(
        "pelton_capitals",
        "local-completions",
        "completions",
        smollm2_server,
        tokenizer_backend="remote",
        batch_size=batch_size,
        num_concurrent=2,
    )
    assert len(samples) == 4
    for sample in samples:
        scores = [tuple(response) for (response,) in sample["resps"]]
        assert scores == [direct_score(llm, *arguments) for arguments in sample["arguments"]]
    assert sum(sample["acc"] for sample in samples) == 4, "a small model knows these"


def test_text_is_generated(smollm2_server: RunningServer) -> None:
    samples = samples_of("pelton_sums", "local-completions", "completions", smollm2_server, tokenizer_backend="remote")
    assert all(isinstance(text, str) for sample in samples for (text,) in sample["resps"])


def test_conversations_are_answered(smollm2_server: RunningServer) -> None:
    samples = samples_of("pelton_sums", "local-chat-completions", "chat/completions", smollm2_server)
    assert all(text for sample in samples for (text,) in sample["resps"])
