"""Which architectures there are, and which one a checkpoint is. Others come by the entry point `pelton.models`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.graph.graph import Graph
from pelton.models.architecture import Architecture, CheckpointHeader
from pelton.models.gemma3 import Gemma3
from pelton.models.granite import Granite
from pelton.models.llama import Llama
from pelton.models.mistral import Mistral
from pelton.models.mixtral import Mixtral
from pelton.models.phi3 import Phi3
from pelton.models.qwen2 import Qwen2
from pelton.models.qwen3 import Qwen3
from pelton.models.qwen3_5 import Qwen3_5, Qwen3_5Text
from pelton.models.qwen3_5_moe import Qwen3_5Moe, Qwen3_5MoeText
from pelton.models.qwen3_moe import Qwen3Moe
from pelton.models.qwen3_next import Qwen3Next
from pelton.models.smollm3 import SmolLm3
from pelton.models.spec import ModelSpec

ARCHITECTURES: tuple[Architecture, ...] = (
    Llama(),
    Mistral(),
    Mixtral(),
    Qwen2(),
    Qwen3(),
    Qwen3_5(),
    Qwen3_5Text(),
    Qwen3_5Moe(),
    Qwen3_5MoeText(),
    Qwen3Next(),
    Qwen3Moe(),
    Gemma3(),
    Phi3(),
    SmolLm3(),
    Granite(),
)


# What is known of each family above, by kind of file; tests/models holds it to that.
CHECKED = {
    "gguf": "logits equal llama.cpp's, on a small model that its converter wrote",
    "safetensors": "logits equal transformers', on a small model that it made",
}


def architecture_of(
    checkpoint: CheckpointHeader, find_external: Callable[[], Iterable[Architecture]] = tuple
) -> Architecture:
    """The first of Pelton's own that the checkpoint names, else of other packages (asked only then: it takes time).

    Raises UnsupportedModelError with the known names and the nearest one.
    """
    asked = _asked(checkpoint)
    known: dict[str, Architecture] = {}
    for find in (lambda: ARCHITECTURES, find_external):
        for architecture in find():
            names = architecture.gguf_names if checkpoint.kind == "gguf" else architecture.config_names
            for name in names:
                known.setdefault(name, architecture)
        for name in asked:
            if name in known:
                return known[name]
    import difflib

    nearest = difflib.get_close_matches(asked[0], known, n=1, cutoff=0.5)
    hint = f"supported are {', '.join(sorted(known))}"
    raise UnsupportedModelError(
        f"the model's architecture is `{asked[0]}`, which Pelton does not know",
        hint + (f"; the nearest is `{nearest[0]}`" if nearest else ""),
    )


class Family(msgspec.Struct, frozen=True):
    """What people call it, and the names by which files of either kind are known to be of it."""

    title: str
    gguf: list[str]
    safetensors: list[str]


def families(architectures: Iterable[Architecture] = ARCHITECTURES) -> list[Family]:
    """By title, in the order of the registry."""
    found: dict[str, Family] = {}
    for architecture in architectures:
        family = found.setdefault(architecture.title, Family(architecture.title, [], []))
        family.gguf.extend(architecture.gguf_names)
        family.safetensors.extend(architecture.config_names)
    return list(found.values())


def family_table(found: Iterable[Family]) -> list[str]:
    """Lines of Markdown."""
    lines = ["| family | GGUF `general.architecture` | safetensors `architectures` |", "|---|---|---|"]
    for family in found:
        gguf, safetensors = (
            ", ".join(f"`{name}`" for name in names) or "-" for names in (family.gguf, family.safetensors)
        )
        lines.append(f"| {family.title} | {gguf} | {safetensors} |")
    return lines


def build_graph(architecture: Architecture, spec: ModelSpec) -> Graph:
    graph = Graph()
    architecture.build(spec, graph)
    return graph


def _asked(checkpoint: CheckpointHeader) -> list[str]:
    if checkpoint.kind == "gguf":
        name = checkpoint.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise CheckpointError("the GGUF header has no `general.architecture`")
        return [name]
    names = checkpoint.metadata.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise CheckpointError("config.json has no `architectures`")
    return names
