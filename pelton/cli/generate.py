"""`pelton generate PROMPT`: continues a text as it stands, without a chat template."""

from __future__ import annotations

import argparse
import sys

from pelton.cli.answering import piped_text, show
from pelton.cli.options import add_json, add_sampling, add_settings, sampling_given, settings_from
from pelton.config import DEFAULT_MODEL
from pelton.errors import UsageError
from pelton.sampling_params import SamplingParams

# Where neither the user nor the model says.
DEFAULTS = {"temperature": 0.7, "top_p": 0.95, "max_tokens": 256}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="the text to continue; without it, or `-`, what is piped in")
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"file, directory, org/repo or pypi:package ({DEFAULT_MODEL})"
    )
    add_json(parser)
    add_sampling(parser)
    add_settings(parser, "engine", "store")


def run(arguments: argparse.Namespace) -> int:
    prompt = piped_text() if arguments.prompt in (None, "-") else arguments.prompt
    if not prompt:
        raise UsageError("there is no text to continue", 'give one: pelton generate "Once upon a time"')
    given = sampling_given(arguments)

    from pelton.llm import LLM

    with LLM.from_settings(settings_from(arguments, model=arguments.model)) as llm:
        sampling = SamplingParams(**{**DEFAULTS, **llm.recommended_sampling, **given})
        answer = show(llm.stream(prompt, sampling), quietly=arguments.json)
    if arguments.json:
        print(answer.to_json())
    else:
        print()
        if sys.stderr.isatty():
            print(f"({answer.statistics()})", file=sys.stderr)
    return 130 if answer.finish_reason == "interrupted" else 0
