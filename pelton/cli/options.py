"""Settings and sampling as command-line options, generated from where they are defined."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pelton.config import Settings, load_settings, options
from pelton.sampling_params import SamplingParams

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


def add_settings(parser: argparse.ArgumentParser, *sections: str) -> None:
    """An option for each setting of these sections, and --config."""
    group = parser.add_argument_group("settings")
    for option in options(*sections):
        if option.name == "model":
            continue  # every command says itself how its model is given
        default = "auto" if option.default is None else option.default
        text = f"{option.help} (default: {default or 'none'})".replace("%", "%%")
        if not option.kind.metavar:
            group.add_argument(option.flag, action="store_const", const=True, help=text)
        else:
            group.add_argument(option.flag, metavar=option.kind.metavar, help=text)
    group.add_argument("--config", metavar="FILE", type=Path, help="a TOML file with any of these settings")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def settings_from(arguments: argparse.Namespace, *, model: str | None = None) -> Settings:
    """Raises UsageError on a value that can't be."""
    names = {option.name for option in options()}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if model is not None:
        given["model"] = model
    return load_settings(given, getattr(arguments, "config", None))


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
