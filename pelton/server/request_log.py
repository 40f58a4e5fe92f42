"""One line per finished HTTP request: who, where, how many tokens, how long, how it ended. It never knows a prompt
unless it is told to.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Generation:
    """One request to the engine, of which an HTTP request may come to several.

    finish_reasons:  one per choice that ended.
    started_s:       when it left the queue; it, first_token_s and finished_s are None until then. By time.monotonic.
    """

    arrived_s: float = field(default_factory=time.monotonic)
    started_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)


@dataclass
class RequestRecord:
    """What is known of one HTTP request so far. Its handler adds to it; the frame tells it once the answer is out.

    route:           the path of the table, not the one that was asked for, so that there are few of them.
    model:           set by the handler once it is known to be one of ours.
    ignored_params:  set by the handler: fields of the body that had no effect.
    status:          None until the answer began; 499 if the client left before.
    """

    request_id: str
    method: str
    route: str
    arrived_s: float = field(default_factory=time.monotonic)
    model: str | None = None
    ignored_params: tuple[str, ...] = ()
    generations: list[Generation] = field(default_factory=list)
    status: int | None = None
    error_code: str | None = None
