"""What the HTTP side and the engine process tell each other, as typed msgpack; it knows no sockets.

    client ──► engine     Start, EndTokens, then AddRequest and AbortRequest in any number, then Stop
    engine ──► client     Loading*, then Ready, then StepReport*; Failed in place of any of them, and then the end

A step that failed is told as StepFailed: the engine has dropped its requests, and drops what comes until the client,
which knows them all, says Resume and gives them anew.

Every message is one frame of channel.py. A message that does not decode to its type ends the connection: both ends are
this program, so it is a fault and not an input.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.request import Progress
from pelton.engine.scheduler import EngineLimits
from pelton.sampling_params import SamplingParams


class Start(msgspec.Struct, frozen=True, tag=True):
    """The first message. settings: every setting by name, as `pelton.config.load_settings` takes them."""

    settings: dict[str, Any]


class EndTokens(msgspec.Struct, frozen=True, tag=True):
    """The tokens that end an answer. The client's tokenizer knows them: the engine process needs none of its own."""

    token_ids: list[int]


class AddRequest(msgspec.Struct, frozen=True, tag=True):
    """Queues a request that the client has checked (engine/admission.py).

    seed:              resolved by the client, so that the same request can be given anew.
    output_token_ids:  per choice, what was already said before the engine was started again; empty for a new request.
    cache_salt:        requests share cached prefixes only with those of equal salt.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    seed: int
    priority: int = 0
    cache_salt: str = ""
    output_token_ids: list[list[int]] = []


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """choice: None for all of them. A request that is not there is no error: it may just have ended."""

    request_id: str
    choice: int | None = None


class Resume(msgspec.Struct, frozen=True, tag=True):
    """The answer to StepFailed: what follows is meant for the engine as it is now, without requests."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Ends the process after the step that runs. What is unfinished is dropped."""


class Loading(msgspec.Struct, frozen=True, tag=True):
    """A phase of the start has begun: "reading headers", "reading weights", "warming up".

    facts: lines for people about what is loaded, once they are known.
    """

    phase: str
    facts: list[str] = []


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests. cache_groups and limits: what admission needs to know."""

    model_name: str
    limits: EngineLimits
    cache_groups: list[CacheGroupSpec]
    load_seconds: float


class EngineStats(msgspec.Struct, frozen=True):
    """Counters of one engine since its start (`num_..._total`) and its state after a step.

    kv_cache_usage:          share of the pool that running requests hold, 0 to 1.
    prefix_..._tokens_total: prompt tokens that were looked up in the prefix cache, and those found there.
    prefix_lookups_total:    by outcome, see LOOKUP_OUTCOMES in scheduler.py.
    step_tokens:             tokens computed in this step.
    step_seconds:            of this step, in the runner; step_seconds_total: of all of them.
    schedule_seconds_total:  in the scheduler and the cache, between the steps.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_steps_total: int = 0
    num_preemptions_total: int = 0
    prefix_queried_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    prefix_lookups_total: dict[str, int] = {}
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    cache_repairs_total: int = 0
    step_tokens: int = 0
    step_seconds: float = 0.0
    step_seconds_total: float = 0.0
    schedule_seconds_total: float = 0.0


class StepReport(msgspec.Struct, frozen=True, tag=True):
    """What a step came to, or what changed between steps. stats.num_steps_total tells one from the other.

    started: requests of which a choice got its slot for the first time, told before the step in which it computes: so
    it is known who ran when the process dies.
    """

    progress: list[Progress]
    stats: EngineStats
    started: list[str] = []


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """The runner raised. error: what, for the log."""

    error: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine can't go on. kind: the name of a class of pelton.errors, "PeltonError" for what it did not foresee."""

    kind: str
    message: str
    hint: str | None = None


ToEngine = Start | EndTokens | AddRequest | AbortRequest | Resume | Stop
ToClient = Loading | Ready | StepReport | StepFailed | Failed
