"""Settings and sampling as command-line options, generated from where they are defined."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pelton.config import Settings, load_settings, options
from pelton.errors import UsageError
from pelton.sampling_params import SamplingParams
from pelton.setting_kinds import Kind

SAMPLING = {
    "temperature": (float, "0 always takes the most likely token"),
    "top_p": (float, "sample from the smallest set of tokens with this much probability"),
    "top_k": (int, "sample from this many most likely tokens"),
    "min_p": (float, "leave out tokens below this share of the best one's probability"),
    "repetition_penalty": (float, "above 1 makes tokens that are there already less likely"),
    "seed": (int, "the same seed, prompt and settings give the same answer"),
    "max_tokens": (int, "at most as many tokens of answer"),
    "stop": (str, "end the answer before this text; may be given several times"),
}


def add_settings(parser: argparse.ArgumentParser, *sections: str, is_short: bool = False) -> None:
    """An option for each setting of these sections, and --config.

    is_short: the help leaves those out that few need, and --help-all shows them.
    """
    group = parser.add_argument_group("settings")
    hidden: dict[argparse.Action, str] = {}
    for option in options(*sections):
        if option.section == "model":
            continue  # every command says itself how its model is given, and --config takes its description
        text = f"{option.help} (default: {_written(option.default, option.kind)})".replace("%", "%%")
        if not option.kind.metavar:
            action = group.add_argument(option.flag, action="store_const", const=True, help=text)
        else:
            action = group.add_argument(option.flag, metavar=option.kind.metavar, help=text)
        if is_short and option.is_advanced:
            hidden[action] = text
            action.help = argparse.SUPPRESS
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        action="append",
        help="a TOML file with any of these settings; or a config.json, or a directory with one, that describes the "
        "model in place of its own",
    )
    if hidden:
        group.add_argument("--help-all", action=_HelpAll, nargs=0, hidden=hidden, help="show every option and exit")


class _HelpAll(argparse.Action):
    """hidden: the help of options that --help leaves out."""

    def __init__(self, *, hidden: dict[argparse.Action, str], **given: Any) -> None:
        super().__init__(**given)
        self._hidden = hidden

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        for action, text in self._hidden.items():
            action.help = text
        parser.print_help()
        parser.exit()


def _written(default: Any, kind: Kind) -> str:
    """A default as its flag takes it."""
    match default:
        case None if kind.metavar.endswith("auto"):
            return "auto"
        case bool():
            return "on" if default else "off"
        case float():
            return f"{default:g}s"
        case _:
            return str(default or "none")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def settings_from(arguments: argparse.Namespace, *, model: str | None = None) -> Settings:
    """Raises UsageError on a value that can't be."""
    names = {option.name for option in options()}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if model is not None:
        given["model"] = model
    files: dict[bool, Path] = {}
    for path in getattr(arguments, "config", None) or ():
        describes_model = path.suffix == ".json" or path.is_dir()
        if describes_model in files:
            raise UsageError(f"`--config` names both `{files[describes_model]}` and `{path}`", "give one of a kind")
        files[describes_model] = path
    if True in files:
        given["model_config"] = files[True]
    return load_settings(given, files.get(False))


def add_sampling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    for name, (kind, text) in SAMPLING.items():
        action: Any = "append" if name == "stop" else "store"
        metavar = {float: "X", int: "N", str: "TEXT"}[kind]
        group.add_argument("--" + name.replace("_", "-"), type=kind, action=action, metavar=metavar, help=text)


def sampling_given(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the user asks for, by name. Raises UsageError on a value that can't be: before a model is loaded."""
    given = {name: value for name in SAMPLING if (value := getattr(arguments, name)) is not None}
    SamplingParams(**given)
    return given


def positive(text: str) -> int:
    """For argparse: a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number
