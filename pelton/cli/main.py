"""The `pelton` command: finds the subcommand, imports it alone, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from pelton.errors import PeltonError, UsageError

# Command → (module, what it does). A module has `add_arguments(parser)` and `run(arguments) -> int`.
COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("pelton.cli.chat", "talk to a model, or answer one prompt"),
    "run": ("pelton.cli.run", "`chat` with the model first: pelton run MODEL [PROMPT]"),
    "serve": ("pelton.cli.serve", "answer many over HTTP, in OpenAI's dialect"),
    "generate": ("pelton.cli.generate", "continue a text as it stands, without a chat template"),
    "explain": ("pelton.cli.explain", "say what a model is and how it would run here, without loading it"),
    "models": ("pelton.cli.models", "list, pull, verify and remove models"),
    "doctor": ("pelton.cli.doctor", "check this machine: instructions, cores, memory, kernels"),
    "bench": ("pelton.cli.bench", "measure a model here, or a server under load"),
    "version": ("pelton.cli.version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 error, 2 usage, 3 model, 4 memory, 5 network, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except PeltonError as error:
        _report(error, as_json="--json" in arguments)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()  # whoever read it has gone
        return 1
    except OSError as error:
        # Such as a disk that filled up under our output. What is known of a file is a PeltonError by now.
        _drop_output()
        _report(PeltonError(str(error)), as_json=False)
        return 1


def _prepare_output() -> None:
    """Text that the terminal's encoding lacks is shown as `?`; an output or error stream that is closed takes
    everything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Open to the end of the process.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Nothing more is told on standard output, not even at exit."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # standard output is no file: nothing can break it
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        name = "version"
    parser, run = command(name)
    _configure_logging()
    try:
        parsed, unknown = parser.parse_known_args(rest)
    except SystemExit as end:  # how argparse leaves after --help
        return int(end.code or 0)
    if unknown:
        raise _unknown_arguments(parser, unknown)
    return run(parsed)


def command(name: str) -> tuple[argparse.ArgumentParser, Callable[[argparse.Namespace], int]]:
    """A command's parser, and what runs it. Raises UsageError with the nearest name if there is none of that name."""
    if name not in COMMANDS:
        import difflib

        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean `pelton {nearest[0]}`?" if nearest else "`pelton --help` lists the commands"
        raise UsageError(f"`{name}` is not a command", hint)
    module_name, summary = COMMANDS[name]
    module = importlib.import_module(module_name)
    parser = _Parser(prog=f"pelton {name}", description=_sentence(summary), allow_abbrev=False)
    module.add_arguments(parser)
    return parser, module.run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"`{self.prog} --help` lists what it takes")


def _unknown_arguments(parser: argparse.ArgumentParser, unknown: list[str]) -> UsageError:
    """Of the first one: what follows it is often its value."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    name = unknown[0].partition("=")[0]
    if not name.startswith("-"):
        return UsageError(f"`{name}` is one argument too many", f"quote texts with spaces; see `{parser.prog} --help`")
    import difflib

    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{nearest[0]}`?" if nearest else f"`{parser.prog} --help` lists what it takes"
    return UsageError(f"`{parser.prog}` has no option `{name}`", hint)


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
            "`pelton help COMMAND` says more.",
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
