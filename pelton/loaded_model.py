"""A model that can answer in this process: its engine and its text side, loaded together.

What its program is made of is runner/assembly.py's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

from pelton.config import NATIVE_ENGINE, Settings
from pelton.engine.engine import Engine
from pelton.plan import Plan
from pelton.sizes import format_bytes
from pelton.text_model import TextModel, load_text_model

Result = TypeVar("Result")


class LoadedModel(msgspec.Struct, frozen=True):
    text: TextModel
    engine: Engine
    plan: Plan

    def close(self) -> None:
        """Gives the memory back."""
        self.engine.close()


def load_model(settings: Settings) -> LoadedModel:
    """Finds, plans and loads. Raises ModelError, DownloadError, MemoryPlanError or UsageError."""
    from pelton.runner.assembly import prepare

    prepared = prepare(settings)
    # Reading weights keeps the cores busy without the interpreter: what text needs is made beside it.
    loading = _Task(lambda: load_text_model(prepared.name, prepared.checkpoint))
    try:
        runner = prepared.load()
    finally:
        loading.wait()
    try:
        text = loading.result()
        text.tokenizer.check_vocab_size(prepared.spec.vocab_size)
    except BaseException:
        runner.close()
        raise
    limits = prepared.plan.limits
    return LoadedModel(text, Engine(runner, limits, text.end_token_ids(limits.vocab_size)), prepared.plan)


def load_engine(settings: Settings, report: Callable[[str, list[str]], None]) -> Engine:
    """The engine alone, for a process that needs no text; it is told the tokens that end an answer later.

    report: takes the name of each phase as it begins, and what is known by then, in lines for people. Raises as
    load_model.
    """
    if settings.server.engine != NATIVE_ENGINE:
        from pelton.scripted_model import load_scripted_engine

        report("reading the script", [])
        return load_scripted_engine(settings.server.engine)
    from pelton.runner.assembly import prepare

    report("reading headers", [])
    prepared = prepare(settings)
    report("reading weights", _facts(prepared.plan))
    return Engine(prepared.load(), prepared.plan.limits)


def _facts(plan: Plan) -> list[str]:
    """What a user wants to see before it is loaded."""
    weights = [line for line in plan.memory if line.name.startswith("weights")]
    formats = ", ".join(line.name.removeprefix("weights ") for line in weights)
    limits = plan.limits
    return [
        f"{format_bytes(sum(line.nbytes for line in weights))} of weights ({formats})",
        f"{limits.max_num_seqs} sequences at once, each of up to {limits.max_model_len} tokens",
        f"{format_bytes(limits.kv_cache_bytes)} of {plan.kv_dtype} keys and values for all of them",
        f"{plan.threads} threads with the `{plan.level}` kernels",
    ]


class _Task(Generic[Result]):
    """Work in a thread of its own, begun at once. What it raises comes out of `result`."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pelton-text", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001  whoever asks for the result gets it
            self._error = error

    def wait(self) -> None:
        self._thread.join()

    def result(self) -> Result:
        self.wait()
        if self._error is not None:
            raise self._error
        return cast(Result, self._result)
