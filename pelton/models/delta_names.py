"""How checkpoints name the tensors of Gated DeltaNet layers, and in which order these hold their rows."""

from __future__ import annotations

from functools import cache

from pelton.errors import CheckpointError
from pelton.models.architecture import Binding, CheckpointHeader
from pelton.models.names import layer_prefix
from pelton.models.spec import GatedDeltaSpec, ModelSpec

# Parameter → tensor. The projections of safetensors' joint form are told apart below.
VECTORS = {
    "gguf": {"decay": "ssm_a", "dt_bias": "ssm_dt.bias", "norm.weight": "ssm_norm.weight"},
    "safetensors": {
        "decay": "linear_attn.A_log",
        "dt_bias": "linear_attn.dt_bias",
        "norm.weight": "linear_attn.norm.weight",
    },
}
CONVOLUTION = {"gguf": "ssm_conv1d.weight", "safetensors": "linear_attn.conv1d.weight"}
OUTPUT = {"gguf": "ssm_out.weight", "safetensors": "linear_attn.out_proj.weight"}
SEPARATE = {
    "gguf": {"qkv": "attn_qkv", "z": "attn_gate", "beta": "ssm_beta", "alpha": "ssm_alpha"},
    "safetensors": {
        "qkv": "linear_attn.in_proj_qkv",
        "z": "linear_attn.in_proj_z",
        "beta": "linear_attn.in_proj_b",
        "alpha": "linear_attn.in_proj_a",
    },
}
JOINT_GATES = {"gguf": "ssm_ba", "safetensors": "linear_attn.in_proj_ba"}
JOINT_QKVZ = "linear_attn.in_proj_qkvz"


def delta_bindings(spec: ModelSpec, kind: str, root: str, *, has_joint_projections: bool) -> list[Binding]:
    """root: as of decoder_bindings.

    has_joint_projections: the file is Qwen3-Next's. Per key head, one tensor then holds beta and alpha of its value
    heads; another one, in safetensors only, q, k, its v and its z."""
    bindings = []
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mixer, GatedDeltaSpec):
            parameter, tensor = f"layers.{index}.delta", layer_prefix(kind, index, root)
            bindings += _layer(layer.mixer, kind, parameter, tensor, has_joint_projections)
    return bindings


def check_convolutions(spec: ModelSpec, checkpoint: CheckpointHeader, root: str) -> None:
    """Raises CheckpointError if a kernel is not [channels, (1,) taps]: it is read as one vector, of any shape."""
    for index, layer in enumerate(spec.layers):
        tensor = checkpoint.tensors.get(f"{layer_prefix(checkpoint.kind, index, root)}.{CONVOLUTION[checkpoint.kind]}")
        if isinstance(layer.mixer, GatedDeltaSpec) and tensor is not None:
            mixer = layer.mixer
            channels = 2 * mixer.num_key_heads * mixer.key_head_dim + mixer.num_value_heads * mixer.value_head_dim
            if tuple(tensor.shape) not in ((channels, 1, mixer.conv_kernel), (channels, mixer.conv_kernel)):
                raise CheckpointError(
                    f"the convolution of layer `{index}` has shape {list(tensor.shape)}; it must have `{channels}` "
                    f"channels of `{mixer.conv_kernel}` taps",
                    hint="the model's metadata and its tensors disagree",
                )


def _layer(mixer: GatedDeltaSpec, kind: str, parameter: str, tensor: str, is_joint: bool) -> list[Binding]:
    bindings = [Binding(f"{parameter}.{name}", f"{tensor}.{stored}") for name, stored in VECTORS[kind].items()]
    bindings.append(Binding(f"{parameter}.o.weight", f"{tensor}.{OUTPUT[kind]}"))
    bindings.append(Binding(f"{parameter}.conv.weight", f"{tensor}.{CONVOLUTION[kind]}", _taps_order(mixer)))
    for name, stored in SEPARATE[kind].items():
        order = None
        if is_joint and name in ("beta", "alpha"):
            stored, order = JOINT_GATES[kind], _gate_order(mixer, name)
        elif is_joint and kind == "safetensors":
            stored, order = JOINT_QKVZ, _joint_order(mixer, name)
        bindings.append(Binding(f"{parameter}.{name}.weight", f"{tensor}.{stored}.weight", order))
    return bindings


@cache
def _taps_order(mixer: GatedDeltaSpec) -> tuple[int, ...]:
    """The file has the taps of a channel side by side, the kernel channels."""
    channels = 2 * mixer.num_key_heads * mixer.key_head_dim + mixer.num_value_heads * mixer.value_head_dim
    taps = mixer.conv_kernel
    return tuple(channel * taps + tap for tap in range(taps) for channel in range(channels))


@cache
def _gate_order(mixer: GatedDeltaSpec, name: str) -> tuple[int, ...]:
    """Rows of beta or alpha in [key heads, 2, value heads of each]."""
    repeats = mixer.num_value_heads // mixer.num_key_heads
    which = ("beta", "alpha").index(name)
    return tuple((2 * head + which) * repeats + i for head in range(mixer.num_key_heads) for i in range(repeats))


@cache
def _joint_order(mixer: GatedDeltaSpec, name: str) -> tuple[int, ...]:
    """Rows of q, then k, then v, or of z, in [key heads, q | k | v of its value heads | z of these]."""
    keys = mixer.key_head_dim
    values = mixer.num_value_heads // mixer.num_key_heads * mixer.value_head_dim
    stride = 2 * keys + 2 * values
    parts = {"qkv": ((0, keys), (keys, keys), (2 * keys, values)), "z": ((2 * keys + values, values),)}
    return tuple(
        head * stride + start + i
        for start, count in parts[name]
        for head in range(mixer.num_key_heads)
        for i in range(count)
    )
