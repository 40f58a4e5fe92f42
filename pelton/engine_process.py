"""The engine's process: `python -m pelton.engine_process --channel FD`. It loads, serves one client, and ends with it.

A fresh interpreter with one inherited socket, never a fork: no lock, thread or event loop of the client is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

from pelton.config import load_settings, log_level
from pelton.engine.channel import ChannelClosedError, ChannelError, EngineChannel
from pelton.engine.engine import Engine
from pelton.engine.messages import Failed, Loading, Ready, Start, ToEngine
from pelton.engine.service import Service
from pelton.errors import PeltonError
from pelton.loaded_model import load_engine

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_OOM_SCORE = "500"  # of -1000 to 1000; 0 is what others have


def main() -> int:
    """Exit code 0 after Stop or when the client has gone, 1 after what was told as Failed."""
    # Ctrl-C and a service manager's SIGTERM reach the whole group. The client ends this process when it has drained.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description="The engine's process; `pelton serve` starts it.")
    parser.add_argument("--channel", type=int, required=True, metavar="FD", help="the inherited socket")
    connection = socket.socket(fileno=parser.parse_args().channel)
    connection.set_inheritable(False)
    os.dup2(2, 1)  # standard output is the client's alone
    faulthandler.enable()
    logging.basicConfig(level=log_level(), format="%(levelname)s: engine: %(message)s", stream=sys.stderr)
    _die_with_parent()
    _die_first()
    channel = EngineChannel(connection)
    try:
        return _run(channel)
    except ChannelClosedError:
        return 0
    except ChannelError as error:
        logger.error("%s", error)
        return 1
    finally:
        channel.close()


def _run(channel: EngineChannel) -> int:
    try:
        engine, early = _load(channel)
        with contextlib.closing(engine):
            Service(engine, channel).run(early)
    except ChannelError:
        raise
    except PeltonError as error:
        channel.send(Failed(type(error).__name__, error.message, error.hint))
        return 1
    except Exception as error:
        logger.exception("the engine failed")
        channel.send(Failed("PeltonError", f"the engine failed: {type(error).__name__}: {error}"))
        return 1
    return 0


def _load(channel: EngineChannel) -> tuple[Engine, list[ToEngine]]:
    """The engine, and what the client has said since Start."""
    messages: list[ToEngine] = []
    while not messages:
        messages = channel.receive(wait=True)
    start, *early = messages
    if not isinstance(start, Start):
        raise ChannelError(f"the first message is `{type(start).__name__}`, not `Start`")
    began_s = time.monotonic()
    settings = load_settings(start.settings)
    engine = load_engine(settings, lambda phase, facts: channel.send(Loading(phase, facts)))
    seconds = time.monotonic() - began_s
    channel.send(Ready(settings.model.model, engine.limits, engine.runner.cache_groups, seconds))
    return engine, early


def _die_with_parent() -> None:
    """Where the system can: a step that never ends would never notice that the client has gone."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _die_first() -> None:
    """Where memory runs out, the system ends this process rather than the client: it can be started again."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


if __name__ == "__main__":
    sys.exit(main())
