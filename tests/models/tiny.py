"""Small models with random weights: made with the reference library, saved as safetensors, or written as GGUF."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
)

Array = np.ndarray[Any, Any]

VOCAB_SIZE = 200
_SIZES = {
    # hidden, intermediate, layers, heads, kv heads, head_dim
    "llama": (576, 320, 2, 9, 3, 64),
    "llama-256": (256, 512, 2, 4, 2, 64),
    "qwen3": (96, 160, 2, 4, 2, 80),
    "qwen3-256": (256, 256, 2, 4, 2, 64),
    "gemma3": (128, 96, 7, 2, 1, 256),
    "gemma3-256": (256, 256, 7, 4, 1, 64),
    "mistral": (96, 160, 2, 6, 2, 16),
    "mixtral": (96, 64, 2, 6, 2, 16),
    "qwen2": (96, 160, 2, 6, 2, 16),
    "qwen3_moe": (96, 160, 3, 4, 2, 32),
    "phi3": (96, 160, 2, 6, 2, 16),
    "phi3-long": (96, 160, 2, 6, 2, 16),
    "smollm3": (96, 160, 4, 6, 2, 16),
    "granite": (96, 160, 3, 6, 2, 16),
    "qwen3_5": (96, 160, 4, 4, 2, 40),
    "qwen3_5_moe": (96, 160, 4, 4, 2, 32),
    "qwen3_next": (96, 160, 4, 4, 2, 32),
}
LLAMA3_SCALING = {
    "rope_theta": 10000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG_FACTORS = {
    "rope_theta": 10000.0,
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8],
    "long_factor": [1.2, 1.5, 2.1, 3.4, 6.0, 11.0, 20.0, 38.0],
}
LONG_TRAINED = 48  # tokens that the short ones are for
DELTA_SIZES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
SHARED_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
NAMES = tuple(_SIZES)
HYBRID_NAMES = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


def make(name: str, *, is_tied: bool = True, **more: Any) -> PreTrainedModel:
    """float32, weights large enough that every part of a layer shows in the logits, and no number that is a reader's
    default. more: of the configuration."""
    hidden, intermediate, layers, heads, kv_heads, head_dim = _SIZES[name]
    common: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-3,
        "tie_word_embeddings": is_tied,
        "attn_implementation": "eager",
        "experts_implementation": "eager",
        **more,
    }
    config = _config(name.split("-")[0], head_dim, common)
    if name == "phi3-long":
        common["original_max_position_embeddings"] = LONG_TRAINED
        config = Phi3Config(**common, sliding_window=24, pad_token_id=0, rope_parameters=dict(LONG_FACTORS))
    torch.manual_seed(11)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("proj.bias"):  # zeros, of a new model
                parameter.normal_(std=0.3)
    vary_norms(model)
    return model


def _config(family: str, head_dim: int, common: dict[str, Any]) -> PreTrainedConfig:
    if family == "gemma3":
        bases = {"full_attention": _rotary(5e5), "sliding_attention": _rotary(2e4)}
        return Gemma3TextConfig(**common, sliding_window=24, query_pre_attn_scalar=head_dim, rope_parameters=bases)
    own: dict[str, dict[str, Any]] = {
        "llama": {"rope_parameters": dict(LLAMA3_SCALING)},
        "mistral": {"sliding_window": 20},
        "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None},
        "qwen3_moe": {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
        "phi3": {"sliding_window": 24, "partial_rotary_factor": 0.75, "pad_token_id": 0},
        "qwen3_5": {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 20,
            "linear_value_head_dim": 13,
            "linear_conv_kernel_dim": 3,
        },
        "qwen3_5_moe": {**DELTA_SIZES, **SHARED_EXPERTS},
        "qwen3_next": {**DELTA_SIZES, **SHARED_EXPERTS, "mlp_only_layers": [1]},
        "smollm3": {"no_rope_layers": [1, 0, 1, 0], "pad_token_id": 0},
        "granite": {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.17,
            "residual_multiplier": 0.3,
            "logits_scaling": 3.0,
        },
    }
    classes = {
        "llama": LlamaConfig,
        "mistral": MistralConfig,
        "mixtral": MixtralConfig,
        "qwen2": Qwen2Config,
        "qwen3": Qwen3Config,
        "qwen3_moe": Qwen3MoeConfig,
        "phi3": Phi3Config,
        "qwen3_5": Qwen3_5TextConfig,
        "qwen3_5_moe": Qwen3_5MoeTextConfig,
        "qwen3_next": Qwen3NextConfig,
        "smollm3": SmolLM3Config,
        "granite": GraniteConfig,
    }
    rotary = _rotary(5e4)
    if family == "phi3":
        rotary["partial_rotary_factor"] = 0.75
    if family in HYBRID_NAMES:
        rotary["partial_rotary_factor"] = 0.5
    return classes[family](**{**common, "rope_parameters": rotary, **own.get(family, {})})


def vary_norms(model: PreTrainedModel) -> None:
    """A new model's are all alike, so that nothing would show which is which."""
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("norm.weight"):
                parameter.add_(0.1 * torch.randn_like(parameter))


def _rotary(base: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base}


def logits(model: PreTrainedModel, token_ids: list[int]) -> Array:
    """[tokens, vocab] in float64, the model's weights widened exactly."""
    with torch.no_grad():
        out = _widened(model)(torch.tensor([token_ids])).logits[0]
    return np.asarray(out.numpy())


def _widened(model: PreTrainedModel) -> PreTrainedModel:
    """In float64. Recurrent layers compute in float32 whatever they are given, so of a hybrid model the library's own
    source is taken with the other type in its place."""
    if not hasattr(model.config, "linear_num_key_heads"):
        return model.double()
    library = inspect.getmodule(type(model))
    assert library is not None, f"{type(model)} is of no module"
    wide = types.ModuleType(f"{library.__name__}_wide")
    wide.__package__, wide.__file__ = library.__package__, library.__file__
    sys.modules[wide.__name__] = wide
    source = inspect.getsource(library).replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    exec(compile(source, str(library.__file__), "exec"), wide.__dict__)
    widened: PreTrainedModel = getattr(wide, type(model).__name__)(model.config).double().eval()
    widened.load_state_dict(model.state_dict())
    return widened


def write_gguf(model: PreTrainedModel, path: Path, convert: Callable[[str, Array], tuple[Any, Any, Array]]) -> None:
    """Writes the model and sets its weights to what the file says.

    convert: (tensor name, float32 matrix) -> (raw data, its type, the matrix that the data stands for).
    """
    config = model.config
    family = config.model_type.removesuffix("_text")
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if family == "gemma3":
        bases = config.rope_parameters
        writer.add_rope_freq_base(bases["full_attention"]["rope_theta"])
        writer.add_float32("gemma3.rope.freq_base_swa", bases["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config.sliding_window)
    else:
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    state = model.state_dict()
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = gguf_name(name, family)
        values = tensor.numpy().astype(np.float32)
        if values.ndim == 1:
            added = 1.0 if family == "gemma3" else 0.0
            writer.add_tensor(stored, values + np.float32(added))
            tensor.copy_(torch.from_numpy(values + np.float32(added) - np.float32(added)))
            continue
        order = rotated_neighbours(name, config) if family == "llama" else None
        written = values if order is None else values[order]
        data, kind, meant = convert(stored, written)
        writer.add_tensor(stored, data, raw_dtype=kind)
        tensor.copy_(torch.from_numpy(meant if order is None else meant[np.argsort(order)]))
    if family == "llama" and config.rope_parameters.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_NORMS = {
    "llama": {"post_attention_layernorm": "ffn_norm"},
    "qwen3": {"post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}


def gguf_name(name: str, family: str) -> str:
    stem, _, suffix = name.rpartition(".")
    known = {**_GGUF_NAMES, **_GGUF_NORMS[family]}
    if stem in known:
        return f"{known[stem]}.{suffix}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{known[rest]}.{suffix}"


def rotated_neighbours(name: str, config: Any) -> Array | None:
    """Rows in the order in which neighbours are rotated together, as the converter stores Llama's q and k."""
    for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if part in name:
            rows = np.arange(heads * config.head_dim).reshape(heads, 2, config.head_dim // 2)
            return np.asarray(rows.swapaxes(1, 2).reshape(-1))
    return None


def _divisors(config: Any) -> Array:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    dim = config.head_dim
    plain = config.rope_parameters["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
    return np.asarray(plain / scaled.numpy(), dtype=np.float32)


def save(model: PreTrainedModel, directory: Path, dtype: torch.dtype) -> None:
    """As safetensors; rounds the model's weights to what the files say. Buffers, such as frequencies, stay exact."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    model.save_pretrained(directory, state_dict=state)
