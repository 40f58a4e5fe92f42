"""A result says with which command it was made: the whole of it, and nothing of the machine's folders."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.machine import command_of


def test_a_recorded_command_has_every_option_and_no_folders_of_the_machine() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--peer-python")
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--output", type=Path)
    given = ["/models/a b.gguf", "--peer-python", "peer/bin/python", "--output", "bench/results/x"]
    assert command_of("bench.compare", parser.parse_args(given), ["model"]) == (
        "python -m bench.compare 'a b.gguf' --peer-python peer/bin/python --prefill 128 512 --output bench/results/x"
    )
