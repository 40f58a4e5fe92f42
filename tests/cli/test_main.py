"""The command itself: what there is, help, mistakes, exit codes. The golden list makes every change deliberate."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from pelton.cli import entry
from pelton.cli.main import COMMANDS, command
from pelton.errors import (
    ContextLengthError,
    DownloadError,
    MemoryPlanError,
    ModelNotFoundError,
    PeltonError,
    UsageError,
)
from tests.cli.conftest import Pelton

ROOT = Path(__file__).resolve().parents[2]
SAMPLING = "--temperature --top-p --top-k --min-p --repetition-penalty --seed --max-tokens --stop"
ENGINE = (
    "--max-model-len --kv-cache-bytes --kv-dtype --activations --max-num-seqs --max-num-batched-tokens --prefix-cache "
    "--checkpoint-tokens --checkpoint-bytes "
    "--threads --level --provider-order --disabled-kernels --strict"
)
STORE = "--cache-dir --offline --config"
SERVER = (
    "--host --port --api-key-file --no-auth --served-model-name --max-queue --queue-timeout-s --stall-timeout-s "
    "--request-timeout-s "
    "--max-tokens-default --drain-timeout-s --cors-origin --strict-params --always-include-usage --log-format "
    "--log-prompts --metrics --engine --ping-interval-s --max-connections --max-connection-requests "
    "--max-header-bytes --max-headers --max-url-bytes --max-body-bytes --header-timeout-s --body-timeout-s "
    "--write-timeout-s --keep-alive-timeout-s"
)
# As other servers spell them; no help names them.
FOREIGN = (
    "-m -a --alias -c --ctx-size -np --parallel -b --batch-size -t --ctx --kv-cache --queue-timeout --request-timeout "
    "--drain-timeout --max-num-queued-reqs --download-dir --allowed-origins --gpu-memory-utilization --swap-space "
    "--dtype --quantization --tensor-parallel-size -tp -ngl --n-gpu-layers --trust-remote-code --enforce-eager "
    "--enable-prefix-caching --enable-chunked-prefill --api-key"
)
# A flag that has been released is not taken away: this list only grows.
SURFACE = {
    "chat": f"prompt --model --system --stats --json {SAMPLING} {ENGINE} {STORE}",
    "run": f"model prompt --system --stats --json {SAMPLING} {ENGINE} {STORE}",
    "serve": f"model {SERVER} {ENGINE} {STORE} --help-all {FOREIGN}",
    "generate": f"prompt --model --json {SAMPLING} {ENGINE} {STORE}",
    "explain": f"model --tensors --nodes --json {ENGINE} {STORE}",
    "models": f"action name --supported --update --json {STORE}",
    "doctor": "--tokenizers --json",
    "bench": "kind",
    "bench latency": f"model --pp --tg --repeat --profile --json {ENGINE} {STORE}",
    "bench throughput": f"model --num-prompts --input-tokens --output-tokens --repeat --json {ENGINE} {STORE}",
    "bench serve": "url --model --concurrency --rate --requests --input-tokens --output-tokens --dialect --prompts "
    "--timeout --slo-ttft-ms --slo-tpot-ms --seed --json",
    "version": "--json",
}


def test_commands_and_options_are_those_that_are_promised() -> None:
    found: dict[str, argparse.ArgumentParser] = {}
    for name in COMMANDS:
        found[name] = command(name)[0]
        found |= {f"{name} {kind}": parser for kind, parser in subcommands(found[name]).items()}
    assert list(found) == list(SURFACE)
    for name, parser in found.items():
        options = [action.option_strings[0] if action.option_strings else action.dest for action in parser._actions]
        assert options == ["-h", *SURFACE[name].split()], name


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


@pytest.mark.parametrize("name", SURFACE)
def test_help_of_each_command_names_its_options(pelton: Pelton, name: str) -> None:
    by_flag, by_word = pelton(*name.split(), "--help"), pelton("help", *name.split())
    assert (by_flag.code, by_flag.err) == (0, "")
    assert by_flag.out == by_word.out
    shown = SURFACE[name].removesuffix(FOREIGN)
    by_flag = pelton(name, "--help-all") if "--help-all" in shown else by_flag
    assert all(option in by_flag.out for option in shown.split() if option.startswith("--"))


def test_the_help_of_serve_is_short(pelton: Pelton) -> None:
    described = [line for line in pelton("serve", "--help").out.splitlines() if line.startswith("  --")]
    assert len(described) <= 25 + len(["--config", "--help-all"])


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0), (["-h"], 0), (["help"], 0)])
def test_the_overview_lists_the_commands(pelton: Pelton, arguments: list[str], code: int) -> None:
    outcome = pelton(*arguments)
    assert outcome.code == code
    assert all(f"\n  {name}" in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_is_told(pelton: Pelton, arguments: list[str]) -> None:
    import pelton as package

    assert pelton(*arguments).out == f"{package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["cht"], "`cht` is not a command", "did you mean `pelton chat`?"),
        (["zzz"], "`zzz` is not a command", "`pelton --help` lists"),
        (["help", "dokter"], "`dokter` is not a command", "did you mean `pelton doctor`?"),
        (["chat", "hi", "--temprature", "0"], "no option `--temprature`", "did you mean `--temperature`?"),
        (["chat", "hi", "--temprature=0"], "no option `--temprature`", "did you mean `--temperature`?"),
        (["chat", "why", "is"], "`is` is one argument too many", "quote"),
        (["chat", "hi", "--max-tokens", "many"], "invalid int value: 'many'", "pelton chat --help"),
        (["chat", "hi", "--max-tokens", "0"], "`max_tokens` is `0`", None),
        (["chat", "hi", "--temperature", "nan"], "`temperature` is", None),
        (["generate", "hi", "--top-p", "2"], "`top_p` is `2.0`", None),
        (["generate", "hi", "--kv-cache-bytes", "lots"], "`kv_cache_bytes` is `lots`", None),
        (["generate", "hi", "--config", "/nonexistent.toml"], "`/nonexistent.toml` can't be read", None),
        (["chat"], "there is no prompt", "pelton chat"),
        (["generate"], "there is no text", "pelton generate"),
        (["run"], "required: model", "pelton run --help"),
        (["models", "rm"], "needs the name of a model", None),
        (["models", "frobnicate"], "invalid choice: 'frobnicate'", None),
        (["models", "ls", "x"], "takes no names", None),
        (["models", "--update"], "belongs to `pelton models pull`", None),
        (["models", "pull", "./x.gguf"], "is a local path", None),
        (["bench", "latency", "--pp", "0"], "invalid positive value: '0'", None),
        (["run", "hf://", "hi"], "`hf://` is not the name of a model", "pypi:package"),
    ],
)
def test_mistakes_of_usage_say_what_and_what_instead(
    pelton: Pelton, arguments: list[str], message: str, hint: str | None
) -> None:
    outcome = pelton(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    if hint is not None:
        assert hint in outcome.err.partition("hint: ")[2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PeltonError("x"), 1),
        (ContextLengthError("x"), 1),
        (UsageError("x"), 2),
        (ModelNotFoundError("x"), 3),
        (MemoryPlanError("x"), 4),
        (DownloadError("x"), 5),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    pelton: Pelton, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    monkeypatch.setattr("pelton.cli.version.run", raising(error))
    assert pelton("version").code == code


def test_ctrl_c_while_it_imports_ends_it_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "pelton.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "pelton.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert entry.main() == 130


def test_the_installed_command_begins_where_imports_are_guarded() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"pelton": f"{entry.__name__}:{entry.main.__name__}"}


def test_an_error_under_json_is_a_document(pelton: Pelton) -> None:
    outcome = pelton("run", "./missing.gguf", "hi", "--json")
    assert outcome.code == 3
    assert outcome.document["error"]["type"] == "ModelNotFoundError"
    assert "./missing.gguf" in outcome.document["error"]["message"]


def test_a_reader_that_leaves_early_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pelton.cli.main", "doctor", "--tokenizers"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, b"")


def test_help_imports_no_model_code() -> None:
    code = "import sys; from pelton.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stderr.split())
    assert not loaded & {"pelton._native", "tokenizers", "minijinja", "torch", "numpy", "msgspec", "rich"}


def test_the_version_as_a_document(pelton: Pelton) -> None:
    assert set(json.loads(pelton("version", "--json").out)) == {"version"}


def raising(error: BaseException) -> Callable[..., int]:
    def run(*arguments: object) -> int:
        raise error

    return run


def test_the_log_level_is_checked(pelton: Pelton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_LOG_LEVEL", "loud")
    assert pelton("version").code == 2


def test_a_closed_error_stream_takes_everything() -> None:
    """What is meant for it must neither end the command nor land among the answers."""
    command_line = [sys.executable, "-m", "pelton.cli.main", "no-such-command"]
    process = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command_line], stdout=subprocess.PIPE, check=False)
    assert (process.returncode, process.stdout) == (2, b"")


def test_supported_families_are_listed(pelton: Pelton) -> None:
    shown = pelton("models", "--supported").out
    assert "| Qwen3 | `qwen3` | `Qwen3ForCausalLM` |" in shown.splitlines()
    assert "gguf: logits equal llama.cpp's, on a small model that its converter wrote" in shown.splitlines()
    listed = json.loads(pelton("models", "--supported", "--json").out)["families"]
    assert {"family": "Gemma 3, text", "gguf": ["gemma3"], "safetensors": ["Gemma3ForCausalLM"]} in listed
    assert pelton("models", "pull", "--supported").code == 2
