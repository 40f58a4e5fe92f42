"""The loop of the engine process: messages in, a step, a report out. It knows no runner, no text and no sockets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pelton.engine.channel import ChannelClosedError, EngineChannel
from pelton.engine.engine import Engine
from pelton.engine.messages import AbortRequest, AddRequest, EndTokens, Start, StepReport, Stop, ToEngine
from pelton.engine.request import Progress
from pelton.engine.suspects import Suspects
from pelton.errors import PeltonError

logger = logging.getLogger(__name__)


class Service:
    """Serves one client until it stops or goes."""

    def __init__(self, engine: Engine, channel: EngineChannel) -> None:
        self._engine = engine
        self._channel = channel
        self._suspects = Suspects()
        self._untold: list[Progress] = []  # of requests that ended outside a step
        self._is_told = True  # the client knows the present state

    def run(self, messages: Sequence[ToEngine] = ()) -> None:
        """Returns on Stop, and when the client has gone. messages: what it has said so far.

        Raises ChannelError if the connection breaks.
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
            case AddRequest():
                self._add(message)
            case AbortRequest():
                self._engine.abort(message.request_id, message.choice)
            case EndTokens():
                self._engine.eos_token_ids = tuple(message.token_ids)
            case Start() | Stop():
                raise AssertionError("a running engine is started again")
        self._is_told = False

    def _add(self, message: AddRequest) -> None:
        """A request that is refused has ended with an error. The client has checked it: this is a second look."""
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
            self._fail(message.request_id, message.sampling.n, str(error))

    def _fail(self, request_id: str, num_choices: int, why: str) -> None:
        for choice in range(num_choices):
            self._untold.append(Progress(request_id, choice, [], finish_reason="error", error=why))
        self._is_told = False

    def _step(self) -> None:
        """One step if there is work, and a report if there is anything to tell."""
        progress: list[Progress] = []
        if self._engine.has_work:
            progress = self._engine.step()
            self._is_told = False
        if self._is_told:
            return
        progress, self._untold = progress + self._untold, []
        self._channel.send(StepReport(progress, self._engine.stats(), self._engine.take_started()))
        self._is_told = True
