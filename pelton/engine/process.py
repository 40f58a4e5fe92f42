"""One life of the engine process, from asyncio: started, spoken to, and reaped. What it is told is not its matter."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import cast

from pelton.engine.channel import ChannelClosedError, ChannelError, FrameReader, frame
from pelton.engine.messages import Stop, ToClient, ToEngine
from pelton.errors import EngineDeadError

# A fresh interpreter that finds the same modules as this one, and none in the directory that it happens to run in.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from pelton.engine_process import main; sys.exit(main())"
_EXIT_TIMEOUT_S = 2.0  # of a process whose end of the connection is closed already
_POLL_S = 0.005


class EngineProcess(asyncio.Protocol):
    """The process and the connection to it. Nothing is left of either when `ended` is done."""

    def __init__(self, on_message: Callable[[ToClient], None], on_writable: Callable[[], None]) -> None:
        """on_writable: what was sent so far has been read, after a time in which it was not (`is_writable`)."""
        self._on_message = on_message
        self._on_writable = on_writable
        self._reader: FrameReader[ToClient] = FrameReader(ToClient)
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reaper: asyncio.Task[None] | None = None
        self.is_writable = True
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why, in words

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Raises EngineDeadError if the system does not let it.

        Must run in the thread that outlives the process: its death is the process's, where the system arranges that.
        """
        ours, theirs = socket.socketpair()
        program = _PROGRAM.format(path=sys.path)
        command = [sys.executable, "-P", "-c", program, "--channel", str(theirs.fileno())]
        try:
            with theirs:
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException as error:
            ours.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            if isinstance(error, OSError):
                raise EngineDeadError(f"the engine process can't be started: {error.strerror}") from error
            raise

    def send(self, message: ToEngine) -> None:
        """A message to a process that has ended is dropped: `ended` tells."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    async def stop(self, timeout_s: float) -> None:
        """Ends it after the step that runs, by force after timeout_s."""
        if self._transport is None or self.ended.done():
            return
        self.send(Stop())
        try:
            await asyncio.wait_for(asyncio.shield(self.ended), timeout_s)
        except TimeoutError:
            self.kill()
            await asyncio.shield(self.ended)
        except asyncio.CancelledError:
            self.kill()
            raise

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except ChannelError as error:
            self._end(error)

    def eof_received(self) -> None:
        self._end(self._reader.end())

    def connection_lost(self, error: Exception | None) -> None:
        self._end(self._reader.end())

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._on_writable()

    def _end(self, error: ChannelError) -> None:
        if self._reaper is None:
            assert self._transport is not None
            self._transport.abort()
            self._reaper = asyncio.get_running_loop().create_task(self._reap(error))

    async def _reap(self, error: ChannelError) -> None:
        """Waits until the process is gone. One that broke the connection, or lives on without it, is killed."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (_EXIT_TIMEOUT_S if isinstance(error, ChannelClosedError) else 0.0)
        while self._process.poll() is None and loop.time() < deadline_s:
            await asyncio.sleep(_POLL_S)
        self.kill()
        while self._process.poll() is None:  # a matter of the system alone
            await asyncio.sleep(_POLL_S)
        how = _describe(self._process.returncode)
        why = how if isinstance(error, ChannelClosedError) else f"{error.message} ({how})"
        if not self.ended.done():
            self.ended.set_result(why)


def _describe(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it was killed by signal {-code}"
