"""Ctrl-C between any two lines of the engine: a trace function raises it where a signal handler would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pelton.cache
import pelton.engine
from pelton.engine.engine import Engine

_WATCHED = tuple(str(Path(package.__path__[0])) for package in (pelton.cache, pelton.engine))
T = TypeVar("T")


def interrupted(engine: Engine, call: Callable[[], T], at: int) -> T | None:
    """What `call` returns, or None if it is interrupted before its at-th line.

    Where the engine has nothing open, there is nothing to lose: between the last assignment of a call and its return
    no handler can run.
    """
    num_lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_lines
        if not frame.f_code.co_filename.startswith(_WATCHED):
            return None
        if event == "line" and engine._undo is not None:
            num_lines += 1
            if num_lines == at:
                raise KeyboardInterrupt
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(outer)
