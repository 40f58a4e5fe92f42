"""Which description of a model counts: a config.json that was asked for, one beside the file, or the file's own header.

What a description says and nobody reads is refused where it changes answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from pelton.errors import CheckpointError, ModelError, UnsupportedModelError
from pelton.models.architecture import Architecture, CheckpointHeader
from pelton.models.registry import architecture_of
from pelton.models.spec import ModelSpec

logger = logging.getLogger(__name__)
Part = TypeVar("Part", bound=msgspec.Struct)

# Keys that change answers, and the values that don't. A family that reads one knows it.
_CHANGING: dict[str, dict[str, tuple[Any, ...]]] = {
    "safetensors": {
        "alibi": (False,),
        "attention_chunk_size": (),
        "attention_multiplier": (),
        "attn_logit_softcapping": (),
        "clip_qkv": (),
        "dim_model_base": (),
        "embedding_multiplier": (1,),
        "final_logit_softcapping": (),
        "lm_head_bias": (False,),
        "logit_scale": (1,),
        "logits_scaling": (1,),
        "mlp_bias": (False,),
        "n_group": (1,),
        "qk_layernorm": (False,),
        "residual_multiplier": (1,),
        "routed_scaling_factor": (1,),
        "scale_depth": (),
        "scale_emb": (1,),
        "scoring_func": ("softmax",),
        "use_qk_norm": (False,),
        "use_sliding_window": (False,),
    },
    "gguf": {
        "attention.causal": (True,),
        "attention.clamp_kqv": (0,),
        "attention.max_alibi_bias": (0,),
        "attention.scale": (0,),
        "attn_logit_softcapping": (0,),
        "embedding_scale": (0, 1),
        "expert_gating_func": (0, 1),  # softmax
        "expert_group_count": (0, 1),
        "expert_weights_scale": (0, 1),
        "final_logit_softcapping": (0,),
        "leading_dense_block_count": (0,),
        "logit_scale": (0, 1),
        "residual_scale": (0, 1),
        "rope.scaling.attn_factor": (0, 1),
        "use_parallel_residual": (False,),
    },
}
# Of a spec: what the tensors of the file say, and what a description may say otherwise. All else must agree.
_OF_THE_FILE = {
    "vocab_size",
    "is_head_tied",
    "has_bias",
    "has_qkv_bias",
    "has_output_bias",
    "is_tiled",
    "has_log_decay",
}
_OF_THE_DESCRIPTION = {"architecture", "norm_eps", "max_position", "embedding_scale", "last_norm_factor"}
_OF_THE_DESCRIPTION |= {"rotary", "scale", "window", "num_chosen", "is_normalised"}


class ConfigFile(Protocol):
    """A config.json: see pelton.weights.description.Description."""

    @property
    def path(self) -> Path: ...
    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def is_explicit(self) -> bool: ...


class Described(msgspec.Struct, frozen=True):
    """architecture: what reads the file. config: what describes it in place of its own header, if anything does."""

    architecture: Architecture
    spec: ModelSpec
    config: Path | None = None


def describe(
    checkpoint: CheckpointHeader,
    config: ConfigFile | None = None,
    find_external: Callable[[], Iterable[Architecture]] = tuple,
) -> Described:
    """What the model is.

    config: describes it in place of its header. One that nobody asked for and that does not fit is left out, with a
    warning. Raises CheckpointError or UnsupportedModelError, which name a config of another family, a size that config
    and file disagree on, and a key that changes answers and is not known.
    """
    own = architecture_of(checkpoint, find_external)
    if config is None:
        return Described(own, _spec_of(own, checkpoint))
    try:
        return _described(own, checkpoint, config, find_external)
    except ModelError as error:
        if config.is_explicit:
            raise
        logger.warning("`%s` beside the model is not used: %s", config.path, error.message)
        return Described(own, _spec_of(own, checkpoint))


def _described(
    own: Architecture,
    checkpoint: CheckpointHeader,
    config: ConfigFile,
    find_external: Callable[[], Iterable[Architecture]],
) -> Described:
    is_gguf = checkpoint.kind == "gguf"
    header = _Header("safetensors", config.values, {} if is_gguf else checkpoint.tensors)
    named = architecture_of(header, find_external)
    if is_gguf:
        is_of_family = not {*own.gguf_names}.isdisjoint((*named.gguf_names, *named.stored_as))
    else:
        is_of_family = named.title == own.title
    if not is_of_family:
        raise CheckpointError(
            f"`{config.path}` describes a model of another family, {named.title} "
            f"(`{_first_of(config.values.get('architectures'))}`); the model's files are {own.title}",
            "give the config.json of this model, or none",
        )
    described = _spec_of(named, header)
    if not is_gguf:
        return Described(named, described, config.path)
    return Described(own, _merged(described, own.spec(checkpoint), "", config.path), config.path)


def _first_of(names: Any) -> Any:
    return names[0] if isinstance(names, list) and names else names


def _spec_of(architecture: Architecture, checkpoint: CheckpointHeader) -> ModelSpec:
    read: set[str] = set()
    header = _Header(checkpoint.kind, _Recorded(checkpoint.metadata, read), checkpoint.tensors, checkpoint.read_vector)
    spec = architecture.spec(header)
    metadata = checkpoint.metadata
    prefix, source = "", "config.json"
    if checkpoint.kind == "gguf":
        prefix, source = f"{metadata['general.architecture']}.", "the GGUF header"
    inner = metadata.get("text_config")
    for part in (metadata, inner if isinstance(inner, Mapping) else {}):
        for key, neutral in _CHANGING[checkpoint.kind].items():
            value = part.get(prefix + key)
            if value is not None and value not in neutral and prefix + key not in read:
                raise UnsupportedModelError(
                    f"{source} has `{prefix}{key}` = `{value}`, which {architecture.title} models here don't know",
                    "leaving it out would change answers",
                )
    return spec


def _merged(described: Part, stored: Part, place: str, path: Path) -> Part:
    """described, as it is in the file that says `stored`. place: of these parts in the model, for errors."""
    changes: dict[str, Any] = {}
    for name in described.__struct_fields__:
        wanted, found = getattr(described, name), getattr(stored, name)
        if name in _OF_THE_FILE:
            changes[name] = found
        elif name == "layers" and len(wanted) == len(found):
            pairs = enumerate(zip(wanted, found, strict=True))
            changes[name] = tuple(_merged(*pair, f"layer {index}: ", path) for index, pair in pairs)
        elif name in _OF_THE_DESCRIPTION or wanted == found:
            continue
        elif type(wanted) is type(found) and isinstance(wanted, msgspec.Struct):
            changes[name] = _merged(wanted, found, f"{place}{name}: ", path)
        else:
            raise CheckpointError(
                f"`{path}` and the model's file disagree on {place}{name}: `{_shown(wanted)}` and `{_shown(found)}`",
                "give the config.json of this model, or none",
            )
    return replace(described, **changes)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)}"
    return type(value).__name__ if isinstance(value, msgspec.Struct) else str(value)


class _Header:
    """A checkpoint's header with other metadata."""

    def __init__(
        self,
        kind: str,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, Any],
        read_vector: Callable[[str], Sequence[float]] | None = None,
    ) -> None:
        self.kind = kind
        self.metadata = metadata
        self.tensors = tensors
        self._read_vector = read_vector

    def read_vector(self, name: str) -> Sequence[float]:
        assert self._read_vector is not None, f"a config.json alone has no `{name}`"
        return self._read_vector(name)


class _Recorded(Mapping[str, Any]):
    """The same, and what was read of it or of objects in it."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        self._values = values
        self._read = read

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        value = self._values[key]
        return _Recorded(value, self._read) if isinstance(value, Mapping) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
