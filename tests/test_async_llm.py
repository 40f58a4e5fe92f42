"""`AsyncLLM` over a scripted engine: texts in and out, everything between them real."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pelton.async_llm import AsyncLLM
from pelton.engine.supervisor import RestartPolicy
from pelton.errors import (
    ChatTemplateError,
    ContextLengthError,
    EngineDeadError,
    MemoryPlanError,
    ModelNotFoundError,
    PeltonError,
    QueueFullError,
    RequestError,
    UsageError,
)
from pelton.llm import LLM
from pelton.outputs import RequestOutput
from pelton.sampling_params import SamplingParams
from tests.scripted import children, open_files, run, settings_for, write_script

TEXT = "Once upon a time, an ä met a 🙂. They talked for a while, and then it was over."
LONG = SamplingParams(max_tokens=200)


@asynccontextmanager
async def started(engine: str, **settings: Any) -> AsyncIterator[AsyncLLM]:
    llm = await AsyncLLM.start(settings_for(engine, **settings), restarts=RestartPolicy(first_delay_s=0.001))
    async with llm:
        await llm.wait_ready()
        yield llm


def say(tmp_path: Path, text: str = TEXT, **line: Any) -> str:
    return write_script(tmp_path, [{"text": text, **line}])


async def collect(llm: AsyncLLM, prompt: Any = "hi", sampling: SamplingParams = LONG) -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, sampling)]


def text_of(outputs: list[RequestOutput], choice: int = 0) -> str:
    return "".join(part.text for output in outputs for part in output.outputs if part.index == choice)


def test_a_text_is_answered_with_a_text(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(say(tmp_path)) as llm:
            assert llm.status == "ready"
            outputs = await collect(llm)
            assert text_of(outputs) == TEXT
            last = outputs[-1].outputs[0]
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            assert (last.finish_reason, last.stop_reason) == ("stop", None)
            assert last.times is not None
            assert last.times.arrived_s <= last.times.started_s <= (last.times.first_token_s or 0)
            assert (last.times.first_token_s or 0) <= last.times.finished_s
        assert llm.status == "closed"

    run(work())


def test_it_is_loaded_by_name_and_talked_to(tmp_path: Path) -> None:
    async def work() -> None:
        async with await AsyncLLM.load(engine=say(tmp_path, prompt="user\nhello")) as llm:
            outputs = [output async for output in llm.chat([{"role": "user", "content": "hello"}], LONG)]
            assert text_of(outputs) == TEXT
            assert await llm.client.wait_ready() == llm.client.ready
        before = children(), open_files()
        with pytest.raises(UsageError, match="can't be read"):
            await AsyncLLM.load(engine="scripted:nowhere")
        with pytest.raises(UsageError, match="not a setting"):
            await AsyncLLM.load(engin="native")
        assert (children(), open_files()) == before

    run(work())


def test_prompts_come_in_every_shape(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(say(tmp_path)) as llm:
            _, token_ids = await llm.encode("hello")
            for prompt in ("hello", {"prompt": "hello"}, token_ids, {"prompt_token_ids": token_ids}):
                outputs = await collect(llm, prompt)
                assert outputs[0].prompt_token_ids == token_ids
                assert text_of(outputs) == TEXT
            text, chat_ids = await llm.encode_chat([{"role": "user", "content": "hello"}])
            assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
            assert text_of(await collect(llm, chat_ids)) == TEXT

    run(work())


def test_the_last_message_can_be_left_open(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "so far <|im_end|> "}]

    async def work() -> None:
        async with started(say(tmp_path)) as llm:
            text, token_ids = await llm.encode_chat(messages, continue_final_message=True)
            assert text.endswith("<|im_start|>assistant\nso far <|im_end|> ")
            assert token_ids.count(llm.text.tokenizer.control_tokens["<|im_end|>"]) == 1  # the user's turn
            with pytest.raises(ChatTemplateError, match="no text that could be continued"):
                await llm.encode_chat([{"role": "user", "content": None}], continue_final_message=True)

    run(work())


def test_what_can_never_be_served_is_refused_with_numbers(tmp_path: Path) -> None:
    cases: list[tuple[Any, SamplingParams, type[PeltonError], str]] = [
        ("x" * 1_000_000, LONG, ContextLengthError, "`1000000` bytes, more than"),
        ([5] * 512, LONG, ContextLengthError, "`512` tokens; the context holds `512`"),
        ([], LONG, RequestError, "no tokens"),
        ([512], LONG, RequestError, "outside"),
        ([1], SamplingParams(logit_bias={512: 1.0}), RequestError, "`logit_bias`"),
        ("\ud800", LONG, RequestError, "lone surrogate"),
        ({"text": "hi"}, LONG, UsageError, "one key"),
    ]

    async def work() -> None:
        async with started(say(tmp_path)) as llm:
            for prompt, sampling, kind, message in cases:
                with pytest.raises(kind, match=message):
                    await collect(llm, prompt, sampling)
            with pytest.raises(ContextLengthError, match="bytes, more than"):
                await llm.encode_chat([{"role": "user", "content": "x" * 1_000_000}])
            with pytest.raises(UsageError, match="can't set `messages`"):
                await llm.encode_chat([], chat_template_kwargs={"messages": []})
            assert llm.client.num_open == 0
            assert text_of(await collect(llm)) == TEXT

    run(work())


def test_a_stop_string_ends_its_choice_in_the_engine_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(say(tmp_path, delay_s=0.003)) as llm:
            outputs = await collect(llm, sampling=SamplingParams(n=2, max_tokens=200, stop=("met",)))
            for choice in range(2):
                assert text_of(outputs, choice) == TEXT.partition("met")[0]
            reasons = {
                (part.finish_reason, part.stop_reason)
                for output in outputs
                for part in output.outputs
                if part.finish_reason
            }
            assert reasons == {("stop", "met")}
            times = [part.times for output in outputs for part in output.outputs if part.finish_reason is not None]
            assert len(times) == 2
            for one in times:
                assert one is not None
                assert one.first_token_s is not None
                assert one.arrived_s <= one.started_s <= one.first_token_s <= one.finished_s
            while llm.stats.num_running:
                await asyncio.sleep(0.002)
            assert llm.stats.generation_tokens_total < 2 * len((await llm.encode(TEXT))[1])

    run(work())


def test_leaving_in_the_middle_frees_the_engine(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(say(tmp_path, delay_s=0.003)) as llm:
            async with aclosing(llm.generate("hi", LONG)) as outputs:
                await anext(outputs)
                assert llm.client.num_open == 1
            assert llm.client.num_open == 0
            task = asyncio.create_task(collect(llm))
            while not llm.stats.num_running:
                await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.wait([task])
            while llm.stats.num_running:
                await asyncio.sleep(0.002)
            assert llm.stats.kv_cache_usage == 0.0

    run(work())


def test_an_iterator_that_nobody_reads_is_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(say(tmp_path)) as llm:
            outputs = llm.generate("hi", LONG)
            assert llm.client.num_open == 0
            await outputs.aclose()

    run(work())


def test_an_abort_ends_the_iterator(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(say(tmp_path, delay_s=0.003)) as llm:
            outputs = llm.generate("hi", LONG, request_id="mine")
            said = [await anext(outputs)]
            await llm.abort("mine")
            await llm.abort("nobody")
            said += [output async for output in outputs]
            assert said[-1].outputs[0].finish_reason == "abort"
            assert TEXT.startswith(text_of(said))

    run(work())


def test_many_at_once_get_their_own_texts(tmp_path: Path) -> None:
    lines = [{"text": f"{TEXT} {number}.", "prompt": f"<{number}>"} for number in range(50)]

    async def work() -> None:
        async with started(write_script(tmp_path, lines), max_queue=200) as llm:
            answers = await asyncio.gather(*(collect(llm, f"say <{number % 50}>") for number in range(200)))
            assert [text_of(outputs) for outputs in answers] == [f"{TEXT} {number % 50}." for number in range(200)]

    run(work())


@pytest.mark.parametrize("num_outputs", [0, 1, 5])
def test_texts_go_on_after_a_crash(tmp_path: Path, num_outputs: int) -> None:
    sampling = SamplingParams(n=2, max_tokens=200, logprobs=1, prompt_logprobs=0)

    async def work() -> None:
        async with started(say(tmp_path, delay_s=0.002)) as llm:
            whole = await collect(llm, "a longer prompt", sampling)
            outputs = llm.generate("a longer prompt", sampling)
            said = [await anext(outputs) for _ in range(num_outputs)]
            os.kill(llm.client.pid or 0, signal.SIGKILL)
            said += [output async for output in outputs]
            for choice in range(2):
                assert text_of(said, choice) == text_of(whole, choice) == TEXT
                assert _logprobs(said, choice) == _logprobs(whole, choice)
            assert _prompt_logprobs(said) == _prompt_logprobs(whole)
            assert llm.num_restarts == 1
            times = said[-1].outputs[0].times
            assert times is not None
            assert times.arrived_s <= times.started_s <= (times.first_token_s or 0) <= times.finished_s

    run(work())


def test_another_event_loop_is_refused_and_nothing_is_harmed(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(say(tmp_path)) as llm:
            with pytest.raises(UsageError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, collect(llm, "a"))
            assert text_of(await collect(llm, "a"), 0) == TEXT

    run(work())


def _logprobs(outputs: list[RequestOutput], choice: int) -> list[Any]:
    parts = [part for output in outputs for part in output.outputs if part.index == choice]
    return [entry for part in parts for entry in part.logprobs or []]


def _prompt_logprobs(outputs: list[RequestOutput]) -> list[Any]:
    return [output.prompt_logprobs for output in outputs if output.prompt_logprobs is not None]


def test_the_queue_is_bounded_by_the_settings(tmp_path: Path) -> None:
    async def work() -> None:
        engine = write_script(tmp_path, [{"text": TEXT, "delay_s": 0.2}], max_num_seqs=1)
        async with started(engine, max_queue=1) as llm:
            tasks = [asyncio.create_task(collect(llm)) for _ in range(3)]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            with pytest.raises(QueueFullError, match="requests are waiting, which is all that may"):
                done.pop().result()
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)

    run(work())


def test_the_loop_stays_free_while_a_prompt_is_tokenised(tmp_path: Path) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    async def work() -> None:
        async with started(say(tmp_path)) as llm:
            encode = llm.text.tokenizer.encode

            def slow(*arguments: Any, **named: Any) -> list[int]:
                has_begun.set()
                assert may_end.wait(20)
                return encode(*arguments, **named)

            llm.text.tokenizer.encode = slow  # type: ignore[method-assign]
            task = asyncio.create_task(llm.encode("slow"))
            while not has_begun.is_set():
                await asyncio.sleep(0.001)
            assert text_of(await collect(llm, [5, 6])) == TEXT  # beside it
            may_end.set()
            assert await task == ("slow", encode("slow", parse_special=True))

    run(work())


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"model": "./nowhere.gguf"}, ModelNotFoundError, "nowhere.gguf"),
        ({"engine": "scripted:nowhere.jsonl"}, UsageError, "can't be read"),
        ({"model": str(Path(__file__))}, PeltonError, "test_async_llm.py"),
    ],
)
def test_a_start_that_fails_says_why(settings: dict[str, Any], kind: type[PeltonError], message: str) -> None:
    async def work() -> None:
        before = children(), open_files()
        llm = await AsyncLLM.start(settings_for(**{"engine": "native", **settings}))
        with pytest.raises(kind, match=message):
            await llm.wait_ready()
        assert llm.status.startswith("dead: ")
        assert message in llm.status
        errors = []
        for _ in range(3):
            with pytest.raises(kind) as caught:
                await collect(llm)
            errors.append(caught.value)
        assert len(set(map(id, errors))) == 3  # one alone would keep the frames of all who were told
        assert len({error.hint for error in errors}) == 1
        await llm.close()
        assert (children(), open_files()) == before

    run(work())


@pytest.mark.parametrize("num_turns", [0, 1, 3, 30])
def test_closing_while_it_loads_leaves_nothing(tmp_path: Path, num_turns: int) -> None:
    async def work() -> None:
        before = children(), open_files()
        llm = await AsyncLLM.start(settings_for(say(tmp_path)))
        for _ in range(num_turns):
            await asyncio.sleep(0.002)
        await llm.close()
        await llm.close()
        assert (children(), open_files()) == before
        assert llm.status == "closed"
        with pytest.raises(EngineDeadError):
            await collect(llm)

    run(work())


def test_phases_of_the_start_are_told(tmp_path: Path) -> None:
    async def work() -> None:
        llm = await AsyncLLM.start(settings_for(say(tmp_path)))
        seen = []
        while llm.status != "ready":
            if llm.status not in seen:
                seen.append(llm.status)
            await asyncio.sleep(0.001)
        await llm.close()
        assert all(status.startswith("loading: ") for status in seen)
        assert "loading: starting" in seen

    run(work())


@pytest.mark.model
def test_what_the_engine_refuses_to_start_with_comes_with_its_hint(smollm2_path: Path) -> None:
    async def work() -> None:
        settings = {"model": str(smollm2_path), "kv_cache_bytes": 1 << 44, "strict": True}
        with pytest.raises(MemoryPlanError, match="`kv_cache_bytes` is `17592186044416`") as caught:
            await AsyncLLM.load(**settings)
        assert "--kv-cache-bytes" in str(caught.value.hint)
        with pytest.raises(UsageError, match="`level` is `none`") as refused:
            await AsyncLLM.load(str(smollm2_path), level="none")
        assert "it has: " in str(refused.value.hint)

    run(work())


@pytest.mark.model
def test_a_real_model_says_the_same_as_in_this_process(smollm2_path: Path) -> None:
    settings = {"model": str(smollm2_path), "max_model_len": 512, "threads": 1}
    sampling = SamplingParams(max_tokens=12, seed=5, logprobs=2, prompt_logprobs=1)
    with LLM(**settings) as llm:
        (expected,) = llm.generate("The sky is", sampling)

    async def work() -> None:
        async with await AsyncLLM.start(settings_for("native", **settings)) as llm:
            await llm.wait_ready()
            outputs = llm.generate("The sky is", sampling)
            said = [await anext(outputs), await anext(outputs)]
            os.kill(llm.client.pid or 0, signal.SIGKILL)  # and across a crash
            said += [output async for output in outputs]
            assert text_of(said) == expected.outputs[0].text
            assert [token for output in said for token in output.outputs[0].token_ids] == expected.outputs[0].token_ids
            assert _logprobs(said, 0) == expected.outputs[0].logprobs
            assert _prompt_logprobs(said) == [expected.prompt_logprobs]

    run(work())
