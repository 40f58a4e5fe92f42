"""chat, run and generate: one answer, from arguments and pipes, and what it is sampled with."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pelton.cli import answering
from pelton.cli.answering import prompt_and_pipe, show
from pelton.cli.options import add_sampling
from pelton.llm import LLM
from pelton.outputs import CompletionOutput, RequestOutput
from tests.cli.conftest import Pelton
from tests.gguf_copies import LLAMA

FEW = ("--max-tokens", "6", "--temperature", "0", "--max-model-len", "200")


def test_a_prompt_is_answered_and_the_answer_alone_is_on_standard_output(pelton: Pelton, chat_model: Path) -> None:
    shown = pelton("chat", "abc", "--model", chat_model, *FEW)
    document = pelton("chat", "abc", "--model", chat_model, *FEW, "--json").document
    assert shown.code == 0
    assert shown.out == document["text"] + "\n"
    assert shown.err == "(cut at 6 tokens, see --max-tokens)\n"
    assert (document["finish_reason"], document["completion_tokens"]) == ("length", 6)


def test_run_is_chat_with_the_model_first(pelton: Pelton, chat_model: Path) -> None:
    assert pelton("run", chat_model, "abc", *FEW).out == pelton("chat", "abc", "--model", chat_model, *FEW).out


def test_what_is_piped_in_comes_after_the_prompt(pelton: Pelton, chat_model: Path) -> None:
    both = pelton("run", chat_model, "abc", *FEW, "--json", piped=b"def\n").document
    as_one = pelton("run", chat_model, "abc\n\ndef", *FEW, "--json").document
    assert (both["text"], both["prompt_tokens"]) == (as_one["text"], as_one["prompt_tokens"])
    assert pelton("run", chat_model, *FEW, piped=b"abc").out == pelton("run", chat_model, "abc", *FEW).out


def test_a_dash_is_what_is_piped_in(pelton: Pelton, chat_model: Path) -> None:
    expected = pelton("run", chat_model, "abc", *FEW).out
    assert pelton("run", chat_model, "-", *FEW, piped=b"abc\n").out == expected
    assert pelton("generate", "-", "--model", LLAMA, *FEW, piped=b"abc").out == (
        pelton("generate", "abc", "--model", LLAMA, *FEW).out
    )


def test_a_pipe_that_stays_silent_beside_a_prompt_is_left_alone_and_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "PIPE_WAIT_S", 0.0)
    reading, writing = os.pipe()
    with open(reading) as pipe, open(writing, "w") as source:
        monkeypatch.setattr("sys.stdin", pipe)
        assert prompt_and_pipe("abc") == ("abc", "")
        assert "answering without it" in capsys.readouterr().err
        source.write("def")
        source.close()
        assert prompt_and_pipe("abc") == ("abc", "def")
        assert prompt_and_pipe("abc") == ("abc", "")  # it has been closed: nothing to wait for
        assert capsys.readouterr().err == ""


def test_generate_needs_no_template_and_keeps_a_pipe_as_it_is(pelton: Pelton) -> None:
    from_pipe = pelton("generate", "--model", LLAMA, *FEW, "--json", piped=b" abc\n").document
    from_argument = pelton("generate", " abc\n", "--model", LLAMA, *FEW, "--json").document
    assert from_pipe["text"] == from_argument["text"]
    assert from_pipe["prompt_tokens"] == from_argument["prompt_tokens"]


def test_chat_with_a_model_that_has_no_template_points_to_generate(pelton: Pelton) -> None:
    outcome = pelton("run", LLAMA, "abc")
    assert outcome.code == 3
    assert "has no chat template" in outcome.err
    assert "`generate`" in outcome.err


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_a_pipe_that_is_no_text_is_refused(pelton: Pelton, command: str) -> None:
    outcome = pelton(command, "--model", LLAMA, piped=b"ab\xff")
    assert (outcome.code, outcome.out) == (2, "")
    assert "not UTF-8 text: byte `2`" in outcome.err


def test_an_argument_that_is_no_text_is_refused(pelton: Pelton) -> None:
    outcome = pelton("generate", b"ab\xff".decode(errors="surrogateescape"), "--model", LLAMA)
    assert outcome.code in (1, 2)
    assert outcome.err.startswith("error: ")


def test_statistics_are_printed_if_asked_for(pelton: Pelton, chat_model: Path) -> None:
    assert "tokens/s" in pelton("run", chat_model, "abc", *FEW, "--stats").err


def test_a_stop_string_ends_the_answer(pelton: Pelton) -> None:
    whole = pelton("generate", "abc", "--model", LLAMA, *FEW, "--json").document["text"]
    cut = pelton("generate", "abc", "--model", LLAMA, *FEW, "--json", "--stop", whole[1:3]).document
    assert cut["text"] == whole[:1]
    assert cut["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [((), (0.3, 0.95, 5)), (("--temperature", "0", "--top-p", "0.5"), (0.0, 0.5, 5))],
)
def test_the_user_counts_for_more_than_the_model_and_that_more_than_defaults(
    pelton: Pelton, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: tuple[float, float, int]
) -> None:
    monkeypatch.setattr(LLM, "recommended_sampling", {"temperature": 0.3, "max_tokens": 5})
    seen = []
    monkeypatch.setattr(LLM, "stream", lambda self, prompt, sampling: seen.append(sampling) or iter(()))
    pelton("generate", "abc", "--model", LLAMA, *flags)
    assert [(each.temperature, each.top_p, each.max_tokens) for each in seen] == [expected]


def test_ctrl_c_ends_an_answer_and_keeps_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    is_closed = []

    def outputs() -> Iterator[RequestOutput]:
        try:
            yield RequestOutput("0", "p", [1, 2], None, [CompletionOutput(0, "so far", [3])], False)
            raise KeyboardInterrupt
        finally:
            is_closed.append(True)

    answer = show(outputs())
    assert (answer.text, answer.finish_reason, answer.prompt_tokens) == ("so far", "interrupted", 2)
    assert capsys.readouterr().out == "so far"
    assert is_closed == [True]


def test_sampling_options_leave_unsaid_what_is_not_given() -> None:
    parser = argparse.ArgumentParser()
    add_sampling(parser)
    assert set(vars(parser.parse_args([])).values()) == {None}
