"""Options as other servers spell them: taken where they mean what one of ours means, answered where they do not."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from pelton.errors import UsageError

logger = logging.getLogger(__name__)

# Spelling → the name of our setting: llama-server's, vLLM's, and ours without the unit.
_SAME = {
    "-m": "model",
    "-a": "served_model_name",
    "--alias": "served_model_name",
    "-c": "max_model_len",
    "--ctx-size": "max_model_len",
    "-np": "max_num_seqs",
    "--parallel": "max_num_seqs",
    "-b": "max_num_batched_tokens",
    "--batch-size": "max_num_batched_tokens",
    "-t": "threads",
    "--ctx": "max_model_len",
    "--kv-cache": "kv_cache_bytes",
    "--queue-timeout": "queue_timeout_s",
    "--request-timeout": "request_timeout_s",
    "--drain-timeout": "drain_timeout_s",
    "--max-num-queued-reqs": "max_queue",
    "--download-dir": "cache_dir",
    "--allowed-origins": "cors_origin",
}
# Spelling → why there is nothing to set.
_WITHOUT_EFFECT = {
    "--gpu-memory-utilization": "`--kv-cache-bytes` says how much memory the cache gets",
    "--swap-space": "what does not fit is computed anew, nothing is swapped",
    "--dtype": "weights are used as they are stored",
    "--quantization": "it is read from the model's files",
    "--tensor-parallel-size": "one process uses all cores",
    "-tp": "one process uses all cores",
    "-ngl": "the model runs on the CPU",
    "--n-gpu-layers": "the model runs on the CPU",
}
_WITHOUT_EFFECT_OR_VALUE = {
    "--trust-remote-code": "no code of a model's files is ever run",
    "--enforce-eager": "a program is compiled in milliseconds",
    "--enable-prefix-caching": "prefixes are cached unless `--prefix-cache off` is given",
    "--enable-chunked-prefill": "prompts are computed in chunks always",
}


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """None of them is shown by --help."""
    for spelling, name in _SAME.items():
        parser.add_argument(spelling, action=_Same, dest=name, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for flags, arguments in ((_WITHOUT_EFFECT, None), (_WITHOUT_EFFECT_OR_VALUE, 0)):
        for spelling, reason in flags.items():
            parser.add_argument(spelling, action=_WithoutEffect, nargs=arguments, const=reason, help=argparse.SUPPRESS)
    parser.add_argument("--api-key", action=_Refused, help=argparse.SUPPRESS)


class _Same(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        ours = "MODEL" if self.dest == "model" else "--" + self.dest.replace("_", "-")
        logger.warning("`%s` is `%s` here", option_string, ours)
        setattr(namespace, self.dest, values)


class _WithoutEffect(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        logger.warning("`%s` has no effect: %s", option_string, self.const)


class _Refused(argparse.Action):
    """A key among the arguments is seen by everyone who can list this machine's processes."""

    def __call__(self, *_: Any) -> None:
        raise UsageError(
            "`--api-key` would show the key to every user of this machine",
            "set PELTON_API_KEY, or write it into a file and name that with --api-key-file",
        )
