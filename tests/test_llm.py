"""The Python API over the fake runner: shapes, texts, ends, refusals. Token i reads as the character chr(48 + i)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import pelton
from pelton.engine.batch import NewRequest
from pelton.engine.engine import Engine
from pelton.errors import ChatTemplateError, ContextLengthError, PeltonError, RequestError, UsageError
from pelton.llm import LLM
from pelton.loaded_model import LoadedModel
from pelton.plan import Plan
from pelton.sampling_params import SamplingParams
from pelton.text_model import TextModel
from tests.fake_runner import EOS, draw, engine_of, runner_of


class FakeTokenizer:
    strips_leading_space = False

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, max_bytes: int | None = None
    ) -> list[int]:
        return [ord(character) - 48 for character in text]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True, at_start: bool = True) -> str:
        return "".join(chr(48 + token_id) for token_id in ids if not (skip_special and token_id == EOS))

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([48 + token_id])

    def is_control(self, token_id: int) -> bool:
        return token_id == EOS


class FakeTemplate:
    def encode(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True, **variables: Any
    ) -> tuple[str, list[int]]:
        text = "".join(message["content"] for message in messages) + (">" if add_generation_prompt else "")
        return text, FakeTokenizer().encode(text)


def make_llm(*, has_template: bool = True, defaults: Mapping[str, Any] | None = None, **sizes: Any) -> LLM:
    engine = engine_of(**sizes)
    return LLM.of(
        LoadedModel(
            TextModel(
                name="fake",
                tokenizer=FakeTokenizer(),  # type: ignore[arg-type]
                chat_template=FakeTemplate() if has_template else None,  # type: ignore[arg-type]
                sampling_defaults=defaults or {},
            ),
            engine=engine,
            plan=Plan(engine.limits, "bf16", "outlier", 1, "plain", None, (), {}, (), 0, ()),
        )
    )


def engine_under(llm: LLM) -> Engine:
    return llm._loaded.engine


def said(prompt: str, sampling: SamplingParams, choice: int = 0) -> str:
    """The text that the fake runner would say in full, ends and all."""
    known = FakeTokenizer().encode(prompt)
    request = NewRequest(0, known, len(known), sampling, sampling.seed or 0, choice, (EOS,))
    for _ in range(sampling.max_tokens or 0):
        known.append(draw(known, request))
    return FakeTokenizer().decode(known[len(prompt) :], skip_special=False)


SAMPLING = SamplingParams(max_tokens=12, seed=7, ignore_eos=True, skip_special_tokens=False)


def test_generate_gives_vllms_shapes() -> None:
    (output,) = make_llm().generate("ABC", SAMPLING)
    assert output.prompt == "ABC"
    assert output.prompt_token_ids == [17, 18, 19]
    assert output.finished
    assert output.prompt_logprobs is None
    (choice,) = output.outputs
    assert choice.index == 0
    assert choice.text == said("ABC", SAMPLING)
    assert len(choice.token_ids) == 12
    assert (choice.finish_reason, choice.stop_reason) == ("length", None)
    assert choice.logprobs is None
    assert choice.cumulative_logprob is None


@pytest.mark.parametrize(
    "prompts",
    ["ABC", ["ABC"], [17, 18, 19], [[17, 18, 19]], {"prompt": "ABC"}, [{"prompt_token_ids": [17, 18, 19]}]],
)
def test_every_way_to_write_a_prompt_asks_the_same(prompts: Any) -> None:
    (output,) = make_llm().generate(prompts, SAMPLING)
    assert output.outputs[0].text == said("ABC", SAMPLING)


def test_outputs_come_in_the_order_of_prompts_with_their_own_sampling() -> None:
    prompts = ["A" * (1 + index) for index in range(6)]
    sampling = [SamplingParams(max_tokens=10 - index, seed=1, ignore_eos=True) for index in range(6)]
    outputs = make_llm().generate(prompts, sampling, use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [10, 9, 8, 7, 6, 5]


def test_no_prompts_are_no_outputs() -> None:
    assert make_llm().generate([], SAMPLING) == []


def test_an_end_of_sequence_is_a_token_but_no_text() -> None:
    sampling = SamplingParams(max_tokens=200, seed=1, skip_special_tokens=False)
    (output,) = make_llm().generate("9", sampling)
    choice = output.outputs[0]
    assert choice.token_ids[-1] == EOS
    assert choice.text == said("9", sampling)[: len(choice.token_ids) - 1]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", None)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_text_and_frees_the_blocks(include: bool) -> None:
    whole = said("ABC", SAMPLING)
    stop = whole[4:7]
    sampling = SamplingParams(
        max_tokens=12,
        seed=7,
        ignore_eos=True,
        skip_special_tokens=False,
        stop=("never said", stop),
        include_stop_str_in_output=include,
    )
    llm = make_llm()
    (output,) = llm.generate("ABC", sampling)
    choice = output.outputs[0]
    assert choice.text == whole[: whole.index(stop)] + (stop if include else "")
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert len(choice.token_ids) == whole.index(stop) + 3
    assert not engine_under(llm).has_work
    assert engine_under(llm).cache.pool.num_used_blocks(0) == 0


def test_the_beginning_of_a_stop_string_is_text_if_the_rest_never_comes() -> None:
    whole = said("ABC", SAMPLING)
    sampling = SamplingParams(
        max_tokens=12, seed=7, ignore_eos=True, skip_special_tokens=False, stop=(whole[-2:] + "~",)
    )
    (output,) = make_llm().generate("ABC", sampling)
    assert output.outputs[0].text == whole


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    whole = said("ABC", SAMPLING)
    sampling = SamplingParams(
        max_tokens=12, seed=7, ignore_eos=True, skip_special_tokens=False, stop=tuple(set(whole)), min_tokens=5
    )
    (output,) = make_llm().generate("ABC", sampling)
    assert output.outputs[0].text == whole[:4]
    assert len(output.outputs[0].token_ids) == 5


def test_a_stop_token_is_named_and_left_out_of_the_text() -> None:
    whole = said("ABC", SAMPLING)
    token_id = ord(whole[3]) - 48
    sampling = SamplingParams(
        max_tokens=12, seed=7, ignore_eos=True, skip_special_tokens=False, stop_token_ids=(token_id,)
    )
    (output,) = make_llm().generate("ABC", sampling)
    assert output.outputs[0].stop_reason == token_id
    assert output.outputs[0].text == whole[: whole.index(whole[3])]


def test_choices_are_separate_and_in_order() -> None:
    sampling = SamplingParams(n=3, max_tokens=8, seed=7, ignore_eos=True, skip_special_tokens=False)
    (output,) = make_llm().generate("ABC", sampling)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert [choice.text for choice in output.outputs] == [said("ABC", sampling, choice) for choice in range(3)]


def test_logprobs_have_the_chosen_token_first_and_are_summed() -> None:
    (output,) = make_llm().generate("ABC", SamplingParams(max_tokens=3, seed=7, logprobs=1, ignore_eos=True))
    choice = output.outputs[0]
    assert choice.logprobs is not None
    assert [next(iter(entry)) for entry in choice.logprobs] == choice.token_ids
    first = choice.logprobs[0][choice.token_ids[0]]
    assert first.logprob == -float(choice.token_ids[0])
    assert first.rank == choice.token_ids[0] + 1
    assert first.decoded_token == chr(48 + choice.token_ids[0])
    assert choice.logprobs[0][0].rank == 1
    assert choice.cumulative_logprob == -float(sum(choice.token_ids))


@pytest.mark.parametrize("n", [1, 3])
def test_prompt_logprobs_are_one_per_prompt_token_and_none_for_the_first(n: int) -> None:
    (output,) = make_llm(max_num_batched_tokens=16).generate(
        "ABCDEF" * 8, SamplingParams(n=n, max_tokens=1, prompt_logprobs=0)
    )
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [next(iter(entry)) for entry in output.prompt_logprobs[1:] if entry] == output.prompt_token_ids[1:]


def test_a_stream_joined_is_the_answer() -> None:
    sampling = SamplingParams(max_tokens=12, seed=7, logprobs=0, prompt_logprobs=0, skip_special_tokens=False)
    (whole,) = make_llm().generate("ABC", sampling)
    parts = list(make_llm().stream("ABC", sampling))
    assert "".join(part.outputs[0].text for part in parts) == whole.outputs[0].text
    assert [token for part in parts for token in part.outputs[0].token_ids] == whole.outputs[0].token_ids
    assert [entry for part in parts for entry in part.outputs[0].logprobs or []] == whole.outputs[0].logprobs
    assert [part.prompt_logprobs for part in parts if part.prompt_logprobs] == [whole.prompt_logprobs]
    assert [part.finished for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].outputs[0].finish_reason == whole.outputs[0].finish_reason
    assert parts[-1].outputs[0].cumulative_logprob == whole.outputs[0].cumulative_logprob


def test_a_stream_of_choices_tells_who_speaks() -> None:
    sampling = SamplingParams(n=2, max_tokens=6, seed=7, ignore_eos=True, skip_special_tokens=False)
    texts = ["", ""]
    for part in make_llm().stream("ABC", sampling):
        for choice in part.outputs:
            texts[choice.index] += choice.text
    assert texts == [said("ABC", sampling, choice) for choice in range(2)]


def test_dropping_a_stream_frees_its_blocks() -> None:
    llm = make_llm()
    stream = llm.stream("ABC", SAMPLING)
    next(stream)
    assert engine_under(llm).has_work
    stream.close()  # type: ignore[attr-defined]
    assert not engine_under(llm).has_work
    assert engine_under(llm).cache.pool.num_used_blocks(0) == 0


def test_a_stream_that_nobody_reads_leaves_nothing_behind() -> None:
    llm = make_llm()
    llm.stream("ABC", SAMPLING)
    assert not engine_under(llm).has_work


def test_a_stream_goes_on_while_others_are_answered() -> None:
    llm = make_llm()
    stream = llm.stream("ABC", SAMPLING)
    text = next(stream).outputs[0].text
    (other,) = llm.generate("XYZ", SAMPLING)
    assert other.outputs[0].text == said("XYZ", SAMPLING)
    assert text + "".join(part.outputs[0].text for part in stream) == said("ABC", SAMPLING)


def test_chat_answers_one_conversation_or_several() -> None:
    llm = make_llm()
    conversation = [{"role": "user", "content": "AB"}]
    (output,) = llm.chat(conversation, SAMPLING)
    assert output.prompt == "AB>"
    assert output.outputs[0].text == said("AB>", SAMPLING)
    outputs = llm.chat([conversation, [{"role": "user", "content": "C"}]], SAMPLING)
    assert [output.prompt for output in outputs] == ["AB>", "C>"]
    streamed = llm.stream_chat(conversation, SAMPLING)
    assert "".join(part.outputs[0].text for part in streamed) == said("AB>", SAMPLING)
    assert llm.encode_chat(conversation) == [17, 18, 14]


def test_a_model_without_a_template_does_not_converse() -> None:
    with pytest.raises(ChatTemplateError, match="`fake` has no chat template"):
        make_llm(has_template=False).chat([{"role": "user", "content": "AB"}])


def test_one_prompt_too_long_is_named_before_anything_runs() -> None:
    llm = make_llm(max_model_len=32)
    with pytest.raises(ContextLengthError, match="prompt 1: the prompt has `40` tokens"):
        llm.generate(["A", "B" * 40, "C"], SAMPLING)
    assert runner_of(engine_under(llm)).steps == []
    with pytest.raises(ContextLengthError, match=r"^the prompt has `40` tokens"):
        llm.stream("B" * 40, SAMPLING)


def test_a_failing_request_leaves_the_others_whole() -> None:
    llm = make_llm(fail_on=ord(said("ABC", SAMPLING)[3]) - 48)
    failed, other = llm.generate(["ABC", "B"], [SAMPLING, SamplingParams(max_tokens=1, seed=2)])
    assert failed.outputs[0].finish_reason == "error"
    assert failed.outputs[0].error == "NaN in the logits"
    assert other.outputs[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    "prompts",
    [
        {"prompt": "A", "prompt_token_ids": [1]},
        {"text": "A"},
        {"prompt": 5},
        [1, "A"],
        [1.5],
        [[1, 2.5]],
        [[True]],
        [None],
        b"A",
        [b"A"],
        None,
        7,
    ],
)
def test_what_is_no_prompt_is_refused(prompts: Any) -> None:
    with pytest.raises(UsageError, match="a prompt"):
        make_llm().generate(prompts, SAMPLING)


def test_counts_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match="`2` prompts, but `1` sampling params"):
        make_llm().generate(["A", "B"], [SAMPLING])
    with pytest.raises(UsageError, match="`1` prompts, but `2` priorities"):
        make_llm().generate(["A"], SAMPLING, priority=[1, 2])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"sampling_params": {"temperature": 0}}, "`sampling_params`"),
        ({"sampling_params": [None]}, "`sampling_params`"),
        ({"priority": 1}, "`priority`"),
        ({"priority": ["high"]}, "`priority`"),
    ],
)
def test_arguments_of_another_kind_are_named(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(UsageError, match=name):
        make_llm().generate(["A"], **arguments)


@pytest.mark.parametrize("messages", ["hi", b"hi", None, [["hi"]], ["hi"], [{"role": "user"}, 3], {"role": "user"}])
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    llm = make_llm()
    with pytest.raises(UsageError, match="`messages`"):
        llm.chat(messages)
    with pytest.raises(UsageError, match="`messages`"):
        llm.stream_chat(messages)


def test_template_arguments_of_another_kind_are_named() -> None:
    with pytest.raises(UsageError, match="`chat_template_kwargs`"):
        make_llm().chat([{"role": "user", "content": "A"}], chat_template_kwargs=["x"])  # type: ignore[arg-type]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokens"):
        make_llm().generate("", SAMPLING)


def test_a_request_that_cannot_start_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_llm() as llm:
        with monkeypatch.context() as patch:
            patch.setattr(engine_under(llm), "add", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                llm.generate([1, 2, 3])
        assert not llm._answers
        assert len(llm.generate([1, 2, 3])) == 1


def _interrupt(*arguments: object, **named: object) -> None:
    raise KeyboardInterrupt


def test_the_models_own_sampling_is_the_default() -> None:
    llm = make_llm(defaults={"temperature": 0.6, "max_tokens": 3})
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.6, max_tokens=3)
    assert len(llm.generate("A")[0].outputs[0].token_ids) <= 3


def test_sizes_are_told() -> None:
    llm = make_llm(max_model_len=64)
    assert (llm.model_name, llm.max_model_len, llm.vocab_size) == ("fake", 64, 50)


def test_a_closed_llm_says_so() -> None:
    with make_llm() as llm:
        engine = engine_under(llm)
    assert runner_of(engine).is_closed
    llm.close()
    with pytest.raises(PeltonError, match="closed"):
        llm.generate("A", SAMPLING)


def test_an_unknown_setting_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(UsageError, match="did you mean `max_model_len`"):
        LLM("absent.gguf", max_model_length=3)


def test_public_names_are_there() -> None:
    for name in pelton.__all__:
        assert getattr(pelton, name).__name__ == name
    assert set(pelton.__all__) <= set(dir(pelton))
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = pelton.nothing_such
