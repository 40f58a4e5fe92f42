"""`pelton explain MODEL`: facts of the files, the memory, each setting and kernel with its reason. Headers only."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from pelton.cli.options import add_json, add_settings, settings_from
from pelton.config import DEFAULT_MODEL
from pelton.platforms.discover import statuses
from pelton.sizes import format_bytes
from pelton.text.chat_template import has_chat_template
from pelton.text.gguf_vocabulary import NATIVE_MODELS
from pelton.text.pre_tokenizers import verification

if TYPE_CHECKING:
    from pelton.measure.rates import Prediction
    from pelton.runner.assembly import PreparedModel
    from pelton.weights.checkpoint import Checkpoint


_PROMPT_LENGTHS = (128, 512, 2048)  # tokens, of predictions
_STREAMS = (1, 8, 32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"which model ({DEFAULT_MODEL})")
    parser.add_argument("--tensors", action="store_true", help="list every tensor with its format and use")
    parser.add_argument("--nodes", action="store_true", help="list every node of the program, not only its kinds")
    add_json(parser)
    add_settings(parser, "engine", "store")


def run(arguments: argparse.Namespace) -> int:
    from pelton.runner.assembly import prepare

    model = prepare(settings_from(arguments, model=arguments.model))
    document = describe(model)
    if arguments.json:
        print(json.dumps(document, indent=1))
        return 0
    for title, lines in _sections(document, tensors=arguments.tensors, nodes=arguments.nodes):
        print(f"\n{title}")
        print("\n".join(f"  {line}" for line in lines))
    return 0


def describe(model: PreparedModel) -> dict[str, Any]:
    """Everything as plain data."""
    from pelton.measure.rates import predicted_speed

    plan, spec = model.plan, model.spec
    used: dict[str, str] = {}
    for source in model.resolution.sources.values():
        for piece in source.pieces:
            known = used.get(piece.tensor.name)
            used[piece.tensor.name] = source.parameter if known is None else f"{known}, {source.parameter}"
    matrices = [tensor for tensor in model.checkpoint.tensors.values() if len(tensor.shape) > 1]
    return {
        "model": {
            "name": model.name,
            "path": str(model.path),
            "kind": model.checkpoint.kind,
            "config": str(model.described.config) if model.described.config else None,
            "architecture": spec.architecture,
            "parameters": sum(_product(tensor.shape) for tensor in model.checkpoint.tensors.values()),
            "layers": len(spec.layers),
            "hidden_size": spec.hidden_size,
            "vocab_size": spec.vocab_size,
            "max_position": spec.max_position,
            "formats": dict(Counter(tensor.format for tensor in matrices)),
            "file_bytes": model.checkpoint.nbytes,
        },
        "tokenizer": _tokenizer(model.checkpoint),
        "extensions": [asdict(extension) for extension in statuses(own=False)],
        "platform": {"name": model.platform.name, **model.platform.facts()},
        "settings": [asdict(decision) for decision in plan.decisions.values()],
        "memory": [asdict(line) for line in plan.memory],
        "speed": _speed(predicted_speed(model, _PROMPT_LENGTHS, _STREAMS)),
        "reductions": list(plan.reductions),
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "format": tensor.format,
                "nbytes": tensor.nbytes,
                "use": used.get(tensor.name) or f"ignored: {model.resolution.ignored[tensor.name]}",
            }
            for tensor in model.checkpoint.tensors.values()
        ],
        "nodes": [asdict(row) for row in model.program.describe()],
    }


def _speed(prediction: Prediction) -> dict[str, Any]:
    return {"read_bytes_per_s": prediction.read_bytes_per_s, "rows": [asdict(row) for row in prediction.rows]}


def _tokenizer(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the files say of it; nothing is built.

    is_native: not by the `tokenizers` library. checked: of GGUF's pre types alone, a tokenizer.json says all.
    """
    if checkpoint.kind != "gguf":
        source = checkpoint.files[0].parent
        name = "tokenizer.json" if "tokenizer.json" in checkpoint.sidecars else None
        has_template = has_chat_template(source)
        return {
            "model": name,
            "is_native": False,
            "pre": None,
            "checked": None,
            "has_chat_template": has_template,
        }
    metadata = checkpoint.metadata
    pre = metadata.get("tokenizer.ggml.pre")
    return {
        "model": metadata.get("tokenizer.ggml.model"),
        "is_native": metadata.get("tokenizer.ggml.model") in NATIVE_MODELS,
        "pre": pre,
        "checked": verification(pre) if isinstance(pre, str) else None,
        "has_chat_template": has_chat_template(metadata),
    }


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _sections(document: dict[str, Any], *, tensors: bool, nodes: bool) -> list[tuple[str, list[str]]]:
    facts = document["model"]
    ignored = [row for row in document["tensors"] if row["use"].startswith("ignored")]
    sections = [
        (
            "MODEL",
            [
                facts["name"],
                *([] if facts["path"] == facts["name"] else [facts["path"]]),
                *([f"described by {facts['config']}, not by its own header"] if facts["config"] else []),
                f"{facts['architecture']}, {facts['layers']} layers, hidden {facts['hidden_size']}, "
                f"vocabulary {facts['vocab_size']}, context {facts['max_position']}",
                f"{facts['parameters'] / 1e6:.1f} M parameters in {format_bytes(facts['file_bytes'])}, matrices: "
                + ", ".join(f"{count} {name}" for name, count in facts["formats"].items()),
                *(f"not used: {row['name']} ({row['use'].removeprefix('ignored: ')})" for row in ignored),
            ],
        ),
        ("TEXT", _text(document["tokenizer"])),
        ("PLATFORM", [f"{name}: {text}" for name, text in document["platform"].items()]),
        ("SETTINGS", _aligned([(s["name"], _value(s), s["source"], s["reason"]) for s in document["settings"]])),
        ("MEMORY", _aligned([(m["name"], format_bytes(m["nbytes"]), m["detail"]) for m in document["memory"]])),
    ]
    speed = document["speed"]
    rates = [(row["name"], f"{row['tokens_per_s']:.0f} tokens/s", f"bound by {row['bound']}") for row in speed["rows"]]
    measured = (
        f"predicted: memory gives {speed['read_bytes_per_s'] / 1e9:.1f} GB/s, and the kernels were timed, just now"
    )
    sections.append(("SPEED", [*_aligned(rates), measured]))
    if document["extensions"]:
        found = [(e["group"], e["name"], e["value"], e["error"] or "usable") for e in document["extensions"]]
        sections.append(("EXTENSIONS", _aligned(found)))
    if document["reductions"]:
        sections.append(("REDUCED", document["reductions"]))
    if tensors:
        rows = [
            (t["name"], "x".join(map(str, t["shape"])), t["format"], format_bytes(t["nbytes"]), t["use"])
            for t in document["tensors"]
        ]
        sections.append(("TENSORS", _aligned(rows)))
    sections.append(("KERNELS", _nodes(document["nodes"]) if nodes else _kinds(document["nodes"])))
    return sections


def _text(tokenizer: dict[str, Any]) -> list[str]:
    kind = f"tokenizer: {tokenizer['model'] or 'none'}"
    if tokenizer["pre"] is not None:
        kind += f", words cut as `{tokenizer['pre']}` ({tokenizer['checked']})"
    if tokenizer["model"] is not None and not tokenizer["is_native"]:
        kind += ", by the `tokenizers` library: larger and slower to start than a native one"
    template = "yes" if tokenizer["has_chat_template"] else "none: the model continues texts (`pelton generate`)"
    return [kind, f"chat template: {template}"]


def _value(decision: dict[str, Any]) -> str:
    value = decision["value"]
    if decision["name"].endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "auto" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _kinds(rows: list[dict[str, Any]]) -> list[str]:
    """One line for nodes that differ only in their layer."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        formats = ", ".join(sorted({name for name in row["formats"] if name != "f32"}))
        counted[(row["kernel"], formats, "; ".join(row["reasons"]))] += 1
    return _aligned([(f"{count} x", *key) for key, count in counted.items()])


def _nodes(rows: list[dict[str, Any]]) -> list[str]:
    return _aligned(
        [(row["node"], row["kernel"], ", ".join(row["formats"]), "; ".join(row["reasons"])) for row in rows]
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
