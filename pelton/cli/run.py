"""`pelton run MODEL [PROMPT]`: chat with the model named first."""

from __future__ import annotations

import argparse

from pelton.cli.chat import add_chat_arguments, add_prompt
from pelton.cli.chat import run as chat

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="file, directory, org/repo or pypi:package")
    add_prompt(parser)
    add_chat_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return chat(arguments)
