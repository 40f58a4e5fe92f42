"""A model's header gives the same spec from either kind of file, and a clear error where it can't be meant."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.models.delta_names import delta_bindings
from pelton.models.names import half_order
from pelton.models.registry import ARCHITECTURES, architecture_of, build_graph
from pelton.models.spec import AttentionSpec, GatedDeltaSpec, LayerSpec, ModelSpec
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
EXPERTS_CONFIG = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 32,
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
    files = [FakeCheckpoint(kind, {}) for kind in ("gguf", "safetensors")]
    bound = {binding.parameter for file in files for binding in llama.bindings(spec, file)}
    assert bound == set(graph.parameters)
    assert not any(name.startswith("layers.2.attention") for name in graph.parameters)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_every_parameter_is_bound_once(architecture: Any, kind: str) -> None:
    checkpoint = FakeCheckpoint("safetensors", {**LLAMA_CONFIG, **EXPERTS_CONFIG, "sliding_window": 8})
    spec = architecture.spec(checkpoint)
    bindings = architecture.bindings(spec, FakeCheckpoint(kind, {}))
    graph = build_graph(architecture, spec)
    assert {b.parameter for b in bindings} == set(graph.parameters)
    assert len({(b.parameter, b.parameter_row) for b in bindings}) == len(bindings)
    assert len({(b.tensor, b.tensor_row, b.row_order) for b in bindings}) == len(bindings)


def test_half_order_undoes_the_pairing_of_neighbours() -> None:
    paired = [0, 2, 1, 3, 4, 6, 5, 7]  # two heads of four: rows (0, 2), (1, 3) were made neighbours
    assert [paired[row] for row in half_order(2, 4)] == list(range(8))


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        architecture_of(FakeCheckpoint("gguf", {"general.architecture": "qwen3mou"}))
    assert "`qwen3mou`" in caught.value.message
    assert caught.value.hint is not None
    assert "gemma3, granite, llama, " in caught.value.hint
    assert "nearest is `qwen3moe`" in caught.value.hint


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


HYBRID_CONFIG: dict[str, Any] = {
    **LLAMA_CONFIG,
    **EXPERTS_CONFIG,
    "num_hidden_layers": 8,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
}
HYBRIDS = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
)


@pytest.mark.parametrize("name", HYBRIDS)
def test_every_fourth_layer_of_a_hybrid_is_full_and_the_others_share_a_group_of_states(name: str) -> None:
    checkpoint = FakeCheckpoint("safetensors", {**HYBRID_CONFIG, "architectures": [name]})
    architecture = architecture_of(checkpoint)
    spec = architecture.spec(checkpoint)
    assert [isinstance(layer.mixer, AttentionSpec) for layer in spec.layers] == [False, False, False, True] * 2
    groups = build_graph(architecture, spec).cache_groups
    assert [(len(group.layers), len(group.state_layers)) for group in groups] == [(0, 6), (2, 0)]


def test_nested_and_flat_configurations_old_and_new_give_one_spec() -> None:
    """Of transformers 4 (rope_theta beside the sizes) and 5 (rope_parameters)."""
    flat = {key: value for key, value in HYBRID_CONFIG.items() if key not in ("architectures", "rope_theta")}
    old = {**flat, "rope_theta": 1e7, "partial_rotary_factor": 0.5}
    new = {**flat, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}}
    architecture = architecture_of(FakeCheckpoint("safetensors", {"architectures": ["Qwen3_5ForCausalLM"]}))
    forms = [old, new, {"text_config": old}, {"text_config": new, "tie_word_embeddings": True}]
    specs = [architecture.spec(FakeCheckpoint("safetensors", form)) for form in forms]
    assert specs[0].layers[3].mixer.rotary.dim == 32  # type: ignore[union-attr]
    assert all(spec == specs[0] for spec in specs[1:])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("linear_num_value_heads", 5),
        ("linear_key_head_dim", 0),
        ("layer_types", ["full_attention"]),
        ("layer_types", ["sliding_attention"] * 8),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("num_experts_per_tok", 9),
        ("text_config", "none"),
    ],
)
def test_impossible_value_of_a_hybrid_is_refused(key: str, value: Any) -> None:
    checkpoint = FakeCheckpoint(
        "safetensors", {**HYBRID_CONFIG, "architectures": ["Qwen3_5MoeForCausalLM"], key: value}
    )
    with pytest.raises((CheckpointError, UnsupportedModelError), match=f"{key}|value heads don't|experts"):
        architecture_of(checkpoint).spec(checkpoint)


def test_joint_rows_are_taken_apart() -> None:
    """Two key heads of one dimension, two value heads of two for each: q k v v v v z z z z."""
    mixer = GatedDeltaSpec(2, 4, 1, 2)
    spec = ModelSpec("", 1, 1, (LayerSpec(mixer, None),), 0.0, 1, True)
    bound = {b.parameter: b for b in delta_bindings(spec, "safetensors", "model", has_joint_projections=True)}
    assert bound["layers.0.delta.qkv.weight"].row_order == (0, 10, 1, 11, 2, 3, 4, 5, 12, 13, 14, 15)
    assert bound["layers.0.delta.z.weight"].row_order == (6, 7, 8, 9, 16, 17, 18, 19)
    assert bound["layers.0.delta.beta.weight"].row_order == (0, 1, 4, 5)
    assert bound["layers.0.delta.alpha.weight"].row_order == (2, 3, 6, 7)
