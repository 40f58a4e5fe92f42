"""Scripts: what they may say, and that a scripted engine says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pelton.engine.engine import Engine
from pelton.errors import UsageError
from pelton.sampling_params import SamplingParams
from pelton.scripted_model import load_scripted_engine, load_scripted_text
from tests.scripted import END, write_script

FIXTURE = Path(__file__).parent / "fixtures/scripted/hello.jsonl"


def answers(engine: Engine, *prompts: list[int], sampling: SamplingParams | None = None) -> list[list[int]]:
    """One after the other."""
    engine.eos_token_ids = (END,)
    found = []
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, sampling or SamplingParams(max_tokens=20))
        found.append([])
        while engine.has_work:
            found[-1] += [token for part in engine.step() for token in part.token_ids]
    return found


def test_the_fixture_can_be_read() -> None:
    text = load_scripted_text(f"scripted:{FIXTURE}")
    assert text.name == "model"
    assert text.chat_template is not None
    assert text.end_token_ids(512) == (END,)
    engine = load_scripted_engine(f"scripted:{FIXTURE}")
    (said,) = answers(engine, [5], sampling=SamplingParams(max_tokens=100))
    assert text.tokenizer.decode(said).startswith("Hello! This is a scripted answer")


def test_lines_are_taken_in_turn_or_by_the_prompt(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"tokens": [100]},
        {"tokens": [300], "prompt": "weather"},
        {"tokens": [200, 201]},
    ]
    script = write_script(tmp_path, lines)
    weather = load_scripted_text(script).tokenizer.encode("How is the weather?")
    found = answers(load_scripted_engine(script), [5], weather, [5], [5])
    assert found == [[100, END], [300, END], [100, END], [200, 201, END]]


def test_choices_and_preempted_requests_stay_with_their_line(tmp_path: Path) -> None:
    lines = [{"tokens": [100 + number] * 60} for number in range(6)]
    script = write_script(tmp_path, lines, kv_cache_bytes=2 << 20, max_num_batched_tokens=32)
    engine = load_scripted_engine(script)
    sampling = SamplingParams(n=2, max_tokens=60)
    for number in range(6):
        engine.add(str(number), [5] * 100, sampling, seed=number)
    said: dict[tuple[str, int], list[int]] = {}
    while engine.has_work:
        for part in engine.step():
            said.setdefault((part.request_id, part.choice), []).extend(part.token_ids)
    assert engine.stats().num_preemptions_total > 0
    assert said == {(str(number), choice): [100 + number] * 60 for number in range(6) for choice in range(2)}


def test_an_answer_that_may_not_end_starts_over(tmp_path: Path) -> None:
    engine = load_scripted_engine(write_script(tmp_path, [{"tokens": [100, 101]}]))
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    assert answers(engine, [5], sampling=sampling) == [[100, 101, 100, 101, 100]]
    sampling = SamplingParams(max_tokens=5, min_tokens=4)
    assert answers(engine, [5], sampling=sampling) == [[100, 101, 100, 101, END]]


def test_log_probabilities_are_made_up_but_hang_together(tmp_path: Path) -> None:
    engine = load_scripted_engine(write_script(tmp_path, [{"tokens": list(range(90, 120))}]))
    engine.add("a", [5, 0, 511, 7], SamplingParams(max_tokens=30, logprobs=5, prompt_logprobs=0))
    entries = []
    while engine.has_work:
        for part in engine.step():
            entries += [*(part.prompt_logprobs or []), *(part.logprobs or [])]
    assert [entry.token_ids[0] for entry in entries] == [0, 511, 7, *range(90, 120)]
    for entry in entries:
        chosen, *best = entry.logprobs
        assert best == sorted(best, reverse=True)
        assert len(set(entry.token_ids[1:])) == len(best)
        if best:
            assert entry.token_ids.index(entry.token_ids[0], 1) == entry.rank
            assert entry.logprobs[entry.rank] == chosen
    assert {entry.rank for entry in entries} == {1, 2, 3}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("{", "line 1"),
        ('{"model": 5}', "line 1"),
        ('{"model": "m", "size": 1}', "line 1: Object contains unknown field `size`"),
        ('{"model": "MODEL", "max_num_seqs": 0}', "line 1: sizes are at least 1"),
        ('{"model": "MODEL"}\n{"text": "a", "tokens": [1]}', "line 2: an answer has either `text` or `tokens`"),
        ('{"model": "MODEL"}\n\n{}', "line 2: an answer has either"),
        ('{"model": "MODEL"}\n{"tokens": [512]}', "line 2: there are `512` tokens"),
        ('{"model": "MODEL"}\n{"text": "a", "delay_s": -1}', "line 2: `delay_s`"),
        ('{"model": "MODEL"}\n{"text": "a", "delay_s": 1e300}', "line 2: `delay_s`"),
        ('{"model": "MODEL"}\n{"text": "a", "fault": "sleep"}', "line 2: Invalid enum value 'sleep'"),
        ('{"model": "MODEL"}\n' + "[" * 100_000, "line 2"),
    ],
)
def test_a_script_that_cannot_be_is_refused_with_the_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "script.jsonl"
    file.write_text(content.replace("MODEL", str(FIXTURE.parent / "model")))
    with pytest.raises(UsageError, match=message):
        load_scripted_engine(f"scripted:{file}")
