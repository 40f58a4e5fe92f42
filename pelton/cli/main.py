"""The `pelton` command: finds the subcommand, imports it alone, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import logging
import os
import sys
from collections.abc import Sequence

from pelton.errors import PeltonError, UsageError

# Command → (module, what it does). A module has `add_arguments(parser)` and `run(arguments) -> int`.
COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("pelton.cli.chat", "talk to a model, or answer one prompt"),
    "run": ("pelton.cli.run", "`chat` with the model first: pelton run MODEL [PROMPT]"),
    "generate": ("pelton.cli.generate", "continue a text as it stands, without a chat template"),
    "explain": ("pelton.cli.explain", "say what a model is and how it would run here, without loading it"),
    "models": ("pelton.cli.models", "list, pull, verify and remove models"),
    "doctor": ("pelton.cli.doctor", "check this machine: instructions, cores, memory, kernels"),
    "bench": ("pelton.cli.bench", "measure prefill and decode of a model here"),
    "version": ("pelton.cli.version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 error, 2 usage, 3 model, 4 memory, 5 network, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except PeltonError as error:
        _report(error, as_json="--json" in arguments)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; nothing is left to tell, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `pelton {nearest[0]}`?" if nearest else "`pelton --help` lists the commands"
        raise UsageError(f"`{name}` is not a command", hint)
    module_name, summary = COMMANDS[name]
    module = importlib.import_module(module_name)
    parser = argparse.ArgumentParser(prog=f"pelton {name}", description=_sentence(summary), allow_abbrev=False)
    module.add_arguments(parser)
    parsed = parser.parse_args(rest)
    _configure_logging()
    return int(module.run(parsed))


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: pelton COMMAND [ARGUMENTS]",
            "",
            "Runs large language models: fast on a CPU, the same answer every time.",
            "",
            *lines,
            "",
            "`pelton COMMAND --help` says more.",
        ]
    )


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _configure_logging() -> None:
    from pelton.config import log_level

    logging.basicConfig(level=log_level(), format="%(levelname)s: %(message)s", stream=sys.stderr)


def _report(error: PeltonError, *, as_json: bool) -> None:
    if as_json:
        described = {"type": type(error).__name__, "message": error.message, "hint": error.hint}
        print(json.dumps({"error": described}))
    else:
        print(f"error: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
