"""Every error that Pelton raises for a user's mistake or a broken input; it knows nothing of what raises them.

PeltonError                      exit code 1
├── UsageError                   2   an argument or a setting that can't be
├── ModelError                   3   the model's files
│   ├── ModelNotFoundError           no such path, package or repository
│   ├── CheckpointError              truncated, malformed, inconsistent, or tensors missing or left over
│   ├── UnsupportedModelError        an architecture, tensor type or tokenizer that Pelton does not know
│   ├── TokenizerError
│   └── ChatTemplateError
├── MemoryPlanError              4   does not fit, with what would
├── DownloadError                5   network, offline mode, checksum
├── RequestError                 1   one request is refused; nothing else is lost
│   └── ContextLengthError
├── OverloadError                1   the engine can't take this request now; a later try may succeed
│   ├── QueueFullError
│   └── QueueTimeoutError
├── EngineDeadError              1   the engine's process ended
│   └── QuarantineError                  while it ran this request, again and again: not to be tried once more
└── KernelError                  1   a provider, kernel or level can't do what was asked
"""

from __future__ import annotations


class PeltonError(Exception):
    """Base of all errors that a user may see.

    message: what was asked and what holds, values in backticks.
    hint:    what to do about it, or None.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if self.hint is None:
            return self.message
        return f"{self.message}\nhint: {self.hint}"


class UsageError(PeltonError):
    exit_code = 2


class ModelError(PeltonError):
    exit_code = 3


class ModelNotFoundError(ModelError):
    pass


class CheckpointError(ModelError):
    pass


class UnsupportedModelError(ModelError):
    pass


class TokenizerError(ModelError):
    pass


class ChatTemplateError(ModelError):
    pass


class MemoryPlanError(PeltonError):
    exit_code = 4


class DownloadError(PeltonError):
    exit_code = 5


class RequestError(PeltonError):
    pass


class ContextLengthError(RequestError):
    pass


class OverloadError(PeltonError):
    """retry_after_s: when a try is likely to succeed, from how fast requests have been leaving."""

    def __init__(self, message: str, hint: str | None = None, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint)
        self.retry_after_s = retry_after_s


class QueueFullError(OverloadError):
    pass


class QueueTimeoutError(OverloadError):
    pass


class EngineDeadError(PeltonError):
    pass


class QuarantineError(EngineDeadError):
    pass


class KernelError(PeltonError):
    pass
