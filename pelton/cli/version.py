"""`pelton version`."""

from __future__ import annotations

import argparse
import json

from pelton.cli.options import add_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from pelton import __version__

    print(json.dumps({"version": __version__}) if arguments.json else __version__)
    return 0
