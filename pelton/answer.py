"""From the engine's progress to outputs: one request's tokens become text, log-probabilities and ends.

It knows a tokenizer and the request's wishes; it does not run anything. Whoever drives the engine hands each Progress
to `take`, and aborts the choice that `take` says has ended by a stop string.
"""

from __future__ import annotations

from pelton.engine.batch import TokenLogprobs
from pelton.engine.request import Progress, RequestTimes
from pelton.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput
from pelton.sampling_params import SamplingParams
from pelton.text.detokenizer import Detokenizer
from pelton.text.stop_matcher import StopMatcher
from pelton.text.tokenizer import Tokenizer


class Answer:
    """One request with all its choices, as known so far."""

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        tokenizer: Tokenizer,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self._tokenizer = tokenizer
        self._choices = [_Choice(index, sampling, tokenizer) for index in range(sampling.n)]
        self._prompt_logprobs: list[PositionLogprobs | None] | None = None
        if sampling.prompt_logprobs is not None:
            self._prompt_logprobs = [None]
        self._has_told_prompt = False
        self._num_cached_tokens = 0

    @property
    def is_finished(self) -> bool:
        return all(choice.is_finished for choice in self._choices)

    def take(self, progress: Progress) -> bool:
        """Takes in a step's progress. True if a stop string has ended the choice: the engine must drop it."""
        if self._prompt_logprobs is not None and progress.prompt_logprobs:
            self._prompt_logprobs += (position_logprobs(entry, self._tokenizer) for entry in progress.prompt_logprobs)
        if progress.choice == 0:
            self._num_cached_tokens = progress.num_cached_tokens
        return self._choices[progress.choice].take(progress)

    def output(self) -> RequestOutput:
        """Everything so far."""
        return self._output([choice.output() for choice in self._choices], self._prompt_logprobs)

    def set_times(self, choice: int, times: RequestTimes | None) -> None:
        """Of a choice that `take` ended, whose times nobody else tells."""
        self._choices[choice].set_times(times)

    def news(self) -> RequestOutput | None:
        """What came since the last call, None if nothing did. The prompt's log-probabilities are told once, whole."""
        outputs = [news for choice in self._choices if (news := choice.news()) is not None]
        if not outputs:
            return None
        prompt_logprobs = None
        if not self._has_told_prompt and len(self._prompt_logprobs or ()) == len(self.prompt_token_ids):
            prompt_logprobs, self._has_told_prompt = self._prompt_logprobs, True
        return self._output(outputs, prompt_logprobs)

    def _output(
        self, outputs: list[CompletionOutput], prompt_logprobs: list[PositionLogprobs | None] | None
    ) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            prompt_logprobs,
            outputs,
            self.is_finished,
            self._num_cached_tokens,
        )


class _Choice:
    def __init__(self, index: int, sampling: SamplingParams, tokenizer: Tokenizer) -> None:
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, skip_special=sampling.skip_special_tokens)
        self._stops = StopMatcher(sampling.stop, include_stop=sampling.include_stop_str_in_output)
        self._known = CompletionOutput(index, "", [])
        if sampling.logprobs is not None:
            self._known.logprobs, self._known.cumulative_logprob = [], 0.0
        self._pieces: list[str] = []
        # How much of it `news` has told.
        self._num_told_pieces = 0
        self._num_told_tokens = 0
        self._has_told_end = False

    @property
    def is_finished(self) -> bool:
        return self._known.finish_reason is not None

    def take(self, progress: Progress) -> bool:
        known = self._known
        if self.is_finished:
            return False
        stop = self._take_tokens(progress)
        if stop is not None:
            known.finish_reason, known.stop_reason = "stop", stop
            return True
        known.finish_reason, known.stop_reason = progress.finish_reason, progress.stop_reason
        known.error, known.times = progress.error, progress.times
        return False

    def output(self) -> CompletionOutput:
        return self._since(0, 0)

    def set_times(self, times: RequestTimes | None) -> None:
        self._known.times = times

    def news(self) -> CompletionOutput | None:
        num_tokens, is_finished = len(self._known.token_ids), self.is_finished
        if num_tokens == self._num_told_tokens and is_finished == self._has_told_end:
            return None
        news = self._since(self._num_told_tokens, self._num_told_pieces)
        self._num_told_tokens, self._num_told_pieces, self._has_told_end = num_tokens, len(self._pieces), is_finished
        return news

    def _since(self, num_tokens: int, num_pieces: int) -> CompletionOutput:
        known = self._known
        return CompletionOutput(  # `replace` takes three times as long, and this is done for each token
            known.index,
            "".join(self._pieces[num_pieces:]),
            known.token_ids[num_tokens:],
            known.cumulative_logprob,
            None if known.logprobs is None else known.logprobs[num_tokens:],
            known.finish_reason,
            known.stop_reason,
            known.error,
            known.times,
        )

    def _take_tokens(self, progress: Progress) -> str | None:
        """Adds the new tokens and their text; the stop string that they end with, if they do.

        Tokens after it are left out: that they came is chance, the engine had not been told yet.
        """
        known = self._known
        has_silent_end = progress.finish_reason == "stop" and not self._sampling.include_stop_str_in_output
        num_shown = len(progress.token_ids) - has_silent_end
        for position, token_id in enumerate(progress.token_ids):
            known.token_ids.append(token_id)
            if known.logprobs is not None and known.cumulative_logprob is not None and progress.logprobs is not None:
                entry = progress.logprobs[position]
                known.cumulative_logprob += entry.logprobs[0]
                known.logprobs.append(position_logprobs(entry, self._tokenizer))
            stop = self._add(self._detokenizer.push(token_id)) if position < num_shown else None
            if stop is not None:
                return stop
        if progress.finish_reason is None:
            return None
        stop = self._add(self._detokenizer.finish())
        if stop is None:
            self._pieces.append(self._stops.finish())
        return stop

    def _add(self, text: str) -> str | None:
        """Adds the new tokens' text; the stop string that it ends with, if one does."""
        if len(self._known.token_ids) >= self._sampling.min_tokens:
            text, stop = self._stops.push(text)
        else:
            stop = None  # no end before min_tokens, by a stop string neither
        if text:
            self._pieces.append(text)
        return stop


def position_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """The chosen token with its rank, then the others, which are the most likely ones in order."""
    texts = [tokenizer.decode([token_id], skip_special=False, at_start=False) for token_id in entry.token_ids]
    found = {entry.token_ids[0]: Logprob(entry.logprobs[0], entry.rank, texts[0])}
    for rank, (token_id, logprob, text) in enumerate(
        zip(entry.token_ids[1:], entry.logprobs[1:], texts[1:], strict=True), 1
    ):
        found.setdefault(token_id, Logprob(logprob, rank, text))
    return found
