"""One sequence on its way through the engine: a few counters and its known tokens. It knows no text and no blocks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

import msgspec

from pelton.cache.groups import BLOCK_TOKENS
from pelton.cache.prefix import KeyChain
from pelton.engine.batch import SlotResult, TokenLogprobs
from pelton.sampling_params import SamplingParams

# "stop": an end-of-sequence token, a stop token or a stop string. "length": max_tokens or the end of the context.
# "abort": the client went away. "error": this request failed, the others are unharmed.
FinishReason = Literal["stop", "length", "abort", "error"]


class RequestTimes(msgspec.Struct, frozen=True):
    """When things happened to one choice, by the engine's clock (time.monotonic, the same in all processes).

    arrived_s:      it was added.          started_s:   it got its slot, the first time if it was preempted since.
    first_token_s:  None if it failed before.           finished_s:  the step that ended it was computed.
    num_preemptions:  how often it made room for others and was computed anew.
    """

    arrived_s: float
    started_s: float
    first_token_s: float | None
    finished_s: float
    num_preemptions: int = 0


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one choice of one request got in one step.

    token_ids:        new output tokens.
    logprobs:         one per new token, None if not wanted.
    prompt_logprobs:  for the next prompt positions in order, None if there are none in this step.
    finish_reason:    set in the last progress of a choice.
    stop_reason:      the stop token that ended it, None for end-of-sequence and all else.
    error:            why finish_reason is "error".
    times:            set in the last progress of a choice.
    num_cached_tokens:  prompt tokens that were found in the prefix cache when the choice started.
    """

    request_id: str
    choice: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    times: RequestTimes | None = None
    num_cached_tokens: int = 0


class Request:
    """One choice of one request.

    token_ids:     known tokens: the prompt, then the output.
    num_computed:  how many of them have their keys and values in the cache.
    slot:          the runner's slot; None while it waits.
    order:         (priority, arrival): who goes first; the highest is preempted first.
    cache_salt:    it shares cached prefixes only with those of equal salt.
    chain:         the keys of its full blocks; None without a prefix cache.
    awaited_key:   of a block that another is computing, while it waits for that.
    checkpoints:   numbers of blocks, ascending, behind which its recurrent layers' states are to be kept; its steps end
                   there.
    """

    __slots__ = (
        "arrived_s",
        "awaited_key",
        "cache_salt",
        "chain",
        "checkpoints",
        "choice",
        "eos_token_ids",
        "finish_reason",
        "first_token_s",
        "max_output",
        "num_cached_tokens",
        "num_computed",
        "num_preemptions",
        "num_prompt",
        "num_prompt_logprobs",
        "order",
        "request_id",
        "sampling",
        "seed",
        "slot",
        "started_s",
        "stop_reason",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        seed: int,
        order: tuple[int, int],
        max_output: int,
        eos_token_ids: tuple[int, ...] = (),
        choice: int = 0,
        cache_salt: str = "",
        arrived_s: float = 0.0,
    ) -> None:
        self.request_id = request_id
        self.choice = choice
        self.token_ids = list(prompt_token_ids)
        self.num_prompt = len(prompt_token_ids)
        self.sampling = sampling
        self.seed = seed
        self.order = order
        self.max_output = max_output
        self.eos_token_ids = eos_token_ids
        self.stop_token_ids = frozenset(sampling.stop_token_ids)
        self.num_computed = 0
        self.num_prompt_logprobs = 0
        self.slot: int | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        self.cache_salt = cache_salt
        self.chain: KeyChain | None = None
        self.awaited_key: bytes | None = None
        self.checkpoints: list[int] = []
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.arrived_s = arrived_s
        self.started_s: float | None = None
        self.first_token_s: float | None = None

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def remaining(self) -> int:
        """Known tokens that are still to compute: 1 while decoding, more during a prefill."""
        return len(self.token_ids) - self.num_computed

    @property
    def chunk_limit(self) -> int:
        """The most of the remaining tokens that one step may compute."""
        index = bisect_right(self.checkpoints, self.num_computed // BLOCK_TOKENS)
        if index == len(self.checkpoints):
            return self.remaining
        return min(self.remaining, self.checkpoints[index] * BLOCK_TOKENS - self.num_computed)

    @property
    def peak_tokens(self) -> int:
        """The most tokens that it will ever have in the cache. The last token drawn is never computed."""
        return self.num_prompt + self.max_output - 1

    @property
    def max_prefix_blocks(self) -> int:
        """How many of its blocks it may take from others: not that of its last known token, whose row draws the next;
        none while it owes the prompt's log-probabilities, which take every row."""
        return 0 if self.prompt_logprobs_from is not None else (len(self.token_ids) - 1) // BLOCK_TOKENS

    @property
    def prompt_logprobs_from(self) -> int | None:
        """First prompt position whose log-probability is still owed, None if none is.

        A row at position p predicts the token at p + 1, so the first token has none and the last prompt row is for
        the output. After a preemption only what has not been told yet is asked for. The first choice tells of the
        prompt, which all share.
        """
        if self.sampling.prompt_logprobs is None or self.choice or self.num_prompt_logprobs >= self.num_prompt - 1:
            return None
        return self.num_prompt_logprobs + 1

    def replay(self, output_token_ids: Sequence[int]) -> None:
        """Takes in what was said before the engine was started anew. It goes on from there, or has ended with it.

        Before the first output all of the prompt's log-probabilities have been told.
        """
        if output_token_ids:
            self.token_ids += output_token_ids
            self.num_prompt_logprobs = self.num_prompt - 1
            self._finish_after(output_token_ids[-1])

    def advance(self, num_tokens: int, result: SlotResult, now_s: float) -> Progress:
        """Takes a step's outcome in: num_tokens more are computed, and perhaps one more is known."""
        self.num_computed += num_tokens
        if result.prompt_logprobs:
            self.num_prompt_logprobs += len(result.prompt_logprobs)
        token_id = result.token_id
        if result.error is not None:
            self.finish_reason = "error"
            token_id = None
        elif token_id is not None:
            self.token_ids.append(token_id)
            if self.first_token_s is None:
                self.first_token_s = now_s
            self._finish_after(token_id)
        return Progress(
            self.request_id,
            self.choice,
            [] if token_id is None else [token_id],
            None if result.logprobs is None else [result.logprobs],
            result.prompt_logprobs or None,
            self.finish_reason,
            self.stop_reason,
            result.error,
            None if self.finish_reason is None else self._times(now_s),
            self.num_cached_tokens,
        )

    def roll_back(self, num_known: int, num_prompt_logprobs: int) -> None:
        """Forgets what a step brought that nobody was told of. It will be computed again, the same."""
        del self.token_ids[num_known:]
        self.num_prompt_logprobs = num_prompt_logprobs
        self.finish_reason = self.stop_reason = None
        if num_known == self.num_prompt:
            self.first_token_s = None

    def _times(self, now_s: float) -> RequestTimes:
        assert self.started_s is not None, "a request ends that has never run"
        return RequestTimes(self.arrived_s, self.started_s, self.first_token_s, now_s, self.num_preemptions)

    def _finish_after(self, token_id: int) -> None:
        num_output = self.num_output
        if num_output >= self.sampling.min_tokens:
            if token_id in self.eos_token_ids and not self.sampling.ignore_eos:
                self.finish_reason = "stop"
                return
            if token_id in self.stop_token_ids:
                self.finish_reason = "stop"
                self.stop_reason = token_id
                return
        if num_output >= self.max_output:
            self.finish_reason = "length"
