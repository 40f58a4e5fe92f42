"""A model's header gives the same spec from either kind of file, and a clear error where it can't be meant."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.models.names import half_order
from pelton.models.registry import ARCHITECTURES, architecture_of, build_graph
from pelton.models.spec import AttentionSpec, LayerSpec
from tests.models.fake_checkpoint import FakeCheckpoint, FakeTensor

LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
LLAMA_GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e5,
    "llama.context_length": 8192,
}
GEMMA_GGUF: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.embedding_length": 640,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.sliding_window": 512,
    "gemma3.feed_forward_length": 2048,
    "gemma3.block_count": 12,
    "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
    "gemma3.rope.freq_base": 1e6,
    "gemma3.context_length": 32768,
}
TABLE = {"token_embd.weight": FakeTensor((100, 576))}


def test_both_kinds_of_file_give_one_spec() -> None:
    from_config = FakeCheckpoint("safetensors", LLAMA_CONFIG)
    from_gguf = FakeCheckpoint("gguf", LLAMA_GGUF, TABLE)
    llama = architecture_of(from_config)
    assert architecture_of(from_gguf) is llama
    assert llama.spec(from_config) == llama.spec(from_gguf)


def test_gemma_layers_alternate_between_window_and_full() -> None:
    checkpoint = FakeCheckpoint("gguf", GEMMA_GGUF, TABLE)
    spec = architecture_of(checkpoint).spec(checkpoint)
    windows = [layer.mixer.window for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]
    assert windows == [512, 512, 512, 512, 512, None] * 2
    graph = build_graph(architecture_of(checkpoint), spec)
    assert [(group.window, len(group.layers)) for group in graph.cache_groups] == [(512, 10), (None, 2)]


def test_layers_may_all_differ() -> None:
    checkpoint = FakeCheckpoint("safetensors", LLAMA_CONFIG)
    llama = architecture_of(checkpoint)
    spec = llama.spec(checkpoint)
    whole = spec.layers[0]
    assert isinstance(whole.mixer, AttentionSpec)
    narrow = LayerSpec(replace(whole.mixer, num_kv_heads=1), None)
    spec = replace(spec, layers=(whole, narrow, LayerSpec(None, whole.feed_forward)))
    graph = build_graph(llama, spec)
    assert {layer.num_kv_heads for layer in graph.cache_groups[0].layers} == {3, 1}
    bound = {binding.parameter for kind in ("gguf", "safetensors") for binding in llama.bindings(spec, kind)}
    assert bound == set(graph.parameters)
    assert not any(name.startswith("layers.2.attention") for name in graph.parameters)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_every_parameter_is_bound_once(architecture: Any, kind: str) -> None:
    checkpoint = FakeCheckpoint("safetensors", {**LLAMA_CONFIG, "sliding_window": 8})
    spec = architecture.spec(checkpoint)
    bindings = architecture.bindings(spec, kind)
    assert sorted(b.parameter for b in bindings) == sorted(build_graph(architecture, spec).parameters)
    assert len({b.tensor for b in bindings}) == len(bindings)


def test_half_order_undoes_the_pairing_of_neighbours() -> None:
    paired = [0, 2, 1, 3, 4, 6, 5, 7]  # two heads of four: rows (0, 2), (1, 3) were made neighbours
    assert [paired[row] for row in half_order(2, 4)] == list(range(8))


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        architecture_of(FakeCheckpoint("gguf", {"general.architecture": "qwen3moe"}))
    assert "`qwen3moe`" in caught.value.message
    assert caught.value.hint is not None
    assert "gemma3, llama, qwen3" in caught.value.hint
    assert "nearest is `qwen3`" in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", "576"),
        ("hidden_size", None),
        ("num_hidden_layers", 1 << 40),
        ("num_attention_heads", True),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", -1.0),
        ("rope_scaling", 7),
        ("tie_word_embeddings", "yes"),
    ],
)
def test_impossible_value_is_named(key: str, value: Any) -> None:
    checkpoint = FakeCheckpoint("safetensors", {**LLAMA_CONFIG, key: value})
    with pytest.raises(CheckpointError, match=key):
        architecture_of(checkpoint).spec(checkpoint)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 2), (9, 2), (3, 9)])
def test_heads_that_do_not_divide_among_kv_heads_are_refused(heads: int, kv_heads: int) -> None:
    with pytest.raises(CheckpointError, match=f"`{heads}` heads don't divide among `{kv_heads}` KV heads"):
        AttentionSpec(heads, kv_heads, 64, None, 1.0)
