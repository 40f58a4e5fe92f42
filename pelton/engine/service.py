"""The loop of the engine process: messages in, a step, a report out. It knows no runner, no text and no sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pelton.engine.batch import Batch, CacheGroupSpec, Runner, StepResult
from pelton.engine.channel import ChannelClosedError, ChannelError, EngineChannel
from pelton.engine.engine import Engine
from pelton.engine.messages import (
    AbortRequest,
    AddRequest,
    EndTokens,
    Resume,
    StepFailed,
    StepReport,
    Stop,
    ToEngine,
)
from pelton.engine.request import Progress
from pelton.errors import PeltonError

logger = logging.getLogger(__name__)


# In a row. A request that makes each of its steps fail is found in three; more is not any request's fault.
MAX_FAILED_STEPS = 4


class Service:
    """Serves one client until it stops or goes."""

    def __init__(self, engine: Engine, channel: EngineChannel) -> None:
        self._engine = engine
        self._channel = channel
        engine.runner = _AnnouncingRunner(engine.runner, self._tell_started)
        self._untold: list[Progress] = []  # of requests that were refused
        self._is_told = True  # the client knows the present state
        self._has_failed = False  # and the client has not said Resume yet
        self._num_failed_steps = 0

    def run(self, messages: Sequence[ToEngine] = ()) -> None:
        """Returns on Stop, and when the client has gone. messages: what it has said so far.

        Raises ChannelError if the connection breaks, and what the runner raises if it does so again and again.
        """
        try:
            while True:
                for message in messages:
                    if isinstance(message, Stop):
                        return
                    self._take(message)
                self._step()
                messages = self._channel.receive(wait=not self._engine.has_work)
        except ChannelClosedError:
            return

    def _take(self, message: ToEngine) -> None:
        match message:
            case Resume():
                self._has_failed = False
            case EndTokens():
                self._engine.eos_token_ids = tuple(message.token_ids)
            case AddRequest() if not self._has_failed:
                self._add(message)
            case AbortRequest() if not self._has_failed:
                self._engine.abort(message.request_id, message.choice)
                self._is_told = False

    def _add(self, message: AddRequest) -> None:
        """A request that is refused has ended with an error. The client has checked it: this is a second look."""
        self._is_told = False
        try:
            self._engine.add(
                message.request_id,
                message.prompt_token_ids,
                message.sampling,
                priority=message.priority,
                seed=message.seed,
                cache_salt=message.cache_salt,
                output_token_ids=message.output_token_ids,
            )
        except PeltonError as error:
            for choice in range(message.sampling.n):
                self._untold.append(
                    Progress(message.request_id, choice, [], finish_reason="error", error=error.message)
                )

    def _step(self) -> None:
        """One step if there is work, and a report if there is anything to tell."""
        progress, self._untold = self._untold, []
        if self._engine.has_work:
            self._is_told = False
            try:
                progress += self._engine.step()
            except ChannelError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever a runner raises)
                self._fail(error)
            else:
                self._num_failed_steps = 0
        if not self._is_told:
            self._channel.send(StepReport(progress, self._engine.stats(), self._engine.take_started()))
            self._is_told = True

    def _fail(self, error: Exception) -> None:
        """Leaves it to the client whom to fail and whom to give anew."""
        self._num_failed_steps += 1
        if self._num_failed_steps >= MAX_FAILED_STEPS:
            raise error
        logger.error("a step failed", exc_info=error)
        self._engine.abort_all()
        self._engine.take_started()
        self._has_failed = True
        self._channel.send(StepFailed(f"{type(error).__name__}: {error}"))

    def _tell_started(self) -> None:
        started = self._engine.take_started()
        if started:
            self._channel.send(StepReport([], self._engine.stats(), started))


class _AnnouncingRunner:
    """A runner that lets it be told who starts before it computes."""

    def __init__(self, runner: Runner, announce: Callable[[], None]) -> None:
        self._runner = runner
        self._announce = announce

    @property
    def cache_groups(self) -> list[CacheGroupSpec]:
        return self._runner.cache_groups

    def step(self, batch: Batch) -> StepResult:
        if batch.new:
            self._announce()
        return self._runner.step(batch)

    def close(self) -> None:
        self._runner.close()
