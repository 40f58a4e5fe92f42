"""Models of known shapes with random weights: speed depends on shapes, not on what a model knows.

    python -m bench.random_model SHAPE VOCABULARY.gguf OUTPUT.gguf [--layers N]

Shapes are below. The tokenizer is copied from any GGUF file with Qwen's vocabulary; where the shape's is larger, it is
filled up with tokens that are never used. --layers cuts the depth, for what would not fit into memory.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np

WEIGHT_DEVIATION = 0.02
UNUSED = 5  # the type of a token that no text has


@dataclass(frozen=True)
class Shape:
    """The sizes of one model, all as its GGUF file has them. interval: every how many layers one is full attention, the
    others recurrent; 1 for none."""

    architecture: str
    vocab: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int = 0
    experts: int = 0
    chosen: int = 0
    shared: int = 0
    interval: int = 1
    delta_heads: tuple[int, int] = (0, 0)  # of keys, of values; of 128 dimensions
    formats: str = "q4_k_m"
    more: dict[str, object] = field(default_factory=dict)


QWEN35 = {"rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 4}
SHAPES = {
    "qwen3-0.6b-q4_0": Shape("qwen3", 151936, 28, 1024, 16, 8, 128, 3072, formats="q4_0"),
    "qwen3-0.6b": Shape("qwen3", 151936, 28, 1024, 16, 8, 128, 3072),
    "qwen3-30b-a3b": Shape("qwen3moe", 151936, 48, 2048, 32, 4, 128, 768, experts=128, chosen=8),
    "qwen3.5-0.8b": Shape("qwen35", 248320, 24, 1024, 8, 2, 256, 3584, interval=4, delta_heads=(16, 16), more=QWEN35),
    "qwen3.5-27b": Shape("qwen35", 248320, 64, 5120, 24, 4, 256, 17408, interval=4, delta_heads=(16, 48), more=QWEN35),
    "qwen3.5-35b-a3b": Shape(
        "qwen35moe", 248320, 40, 2048, 16, 2, 256, 512, 256, 8, 512, 4, delta_heads=(16, 32), more=QWEN35
    ),
}
DELTA_DIM = 128
BLOCKS = {"Q4_0": (32, 18), "Q4_K": (256, 144), "Q6_K": (256, 210)}  # values, bytes
CONTEXT = 40960
ALIGNMENT = 32  # of tensors in a file that does not say


def half(value: float) -> np.ndarray:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def random_blocks(generator: np.random.Generator, rows: int, columns: int, kind: str) -> np.ndarray:
    """[rows, bytes]: codes are uniform, so their deviation is that of a uniform one, and scales are all alike."""
    values, nbytes = BLOCKS[kind]
    blocks = generator.integers(0, 256, (rows, columns // values, nbytes), dtype=np.uint8)
    if kind == "Q4_0":
        blocks[..., :2] = half(WEIGHT_DEVIATION / 4.6)
    elif kind == "Q4_K":  # d scale code - dmin min, each scale and min 32 of 6 bits
        unit = WEIGHT_DEVIATION / 4.6 / 32
        blocks[..., :2], blocks[..., 2:4] = half(unit), half(7.5 * unit)
        blocks[..., 4:12], blocks[..., 12:16] = 0xA0, 0
    else:
        blocks[..., 192:208] = 32
        blocks[..., 208:] = half(WEIGHT_DEVIATION / 18.5 / 32)
    return blocks.reshape(rows, -1)


class ModelFile:
    """One file in the making. Tensors are [experts, rows, columns], the first left out where there is one.

    is_hollow: all weights are zeros that take no room on the disk.
    """

    def __init__(self, output: Path, shape: Shape, *, is_hollow: bool) -> None:
        self.writer = gguf.GGUFWriter(output, shape.architecture)
        self.shape = shape
        self._output = output
        self._is_hollow = is_hollow
        self._num_bytes = 0  # of a hollow file's tensors
        self._generator = np.random.default_rng(7)

    def matrix(self, name: str, rows: int, columns: int, kind: str | None = None, experts: int = 0) -> None:
        kind = kind or ("Q4_0" if self.shape.formats == "q4_0" else "Q4_K")
        if self._is_hollow:
            values, nbytes = BLOCKS[kind]
            sizes = (*([experts] if experts else []), rows, columns // values * nbytes)
            self._add_hollow(f"{name}.weight", sizes, np.uint8, gguf.GGMLQuantizationType[kind])
            return
        data = random_blocks(self._generator, max(1, experts) * rows, columns, kind)
        if experts:
            data = data.reshape(experts, rows, -1)
        self.writer.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])

    def floats(self, name: str, *sizes: int, value: float | None = 1.0) -> None:
        if self._is_hollow:
            self._add_hollow(name, sizes, np.float32, gguf.GGMLQuantizationType.F32)
            return
        data = np.full(sizes, value, np.float32)
        if value is None:
            data = self._generator.normal(0, WEIGHT_DEVIATION, sizes).astype(np.float32)
        self.writer.add_tensor(name, data)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        if self._is_hollow:
            self.writer.write_ti_data_to_file()
        else:
            self.writer.write_tensors_to_file()
        self.writer.close()
        if self._is_hollow:
            header = self._output.stat().st_size
            os.truncate(self._output, gguf.GGUFWriter.ggml_pad(header, ALIGNMENT) + self._num_bytes)

    def _add_hollow(self, name: str, sizes: tuple[int, ...], dtype: type, kind: gguf.GGMLQuantizationType) -> None:
        nbytes = math.prod(sizes) * np.dtype(dtype).itemsize
        self.writer.add_tensor_info(name, sizes, np.dtype(dtype), nbytes, kind)
        self._num_bytes += gguf.GGUFWriter.ggml_pad(nbytes, ALIGNMENT)

    def finer(self, layer: int) -> str | None:
        """The format of the tensors to which Q4_K_M gives more bits, in layers that get them."""
        eighth = self.shape.layers // 8
        has_more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        return "Q6_K" if has_more and self.shape.formats == "q4_k_m" else None


def write(shape: Shape, vocabulary: Path, output: Path, *, is_hollow: bool = False) -> None:
    file = ModelFile(output, shape, is_hollow=is_hollow)
    describe(file.writer, shape)
    copy_tokenizer(vocabulary, file.writer, shape.vocab)
    file.matrix("token_embd", shape.vocab, shape.hidden, "Q4_0" if shape.formats == "q4_0" else "Q6_K")
    file.floats("output_norm.weight", shape.hidden)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        is_recurrent = (layer + 1) % shape.interval != 0
        (delta if is_recurrent else attention)(file, prefix, layer)
        (mixture if shape.experts else mlp)(file, prefix, layer)
        file.floats(f"{prefix}attn_norm.weight", shape.hidden)
        second = "post_attention_norm" if shape.interval > 1 else "ffn_norm"
        file.floats(f"{prefix}{second}.weight", shape.hidden)
    file.close()


def describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.chosen)
        writer.add_expert_feed_forward_length(shape.inner)
    if shape.shared:
        writer.add_expert_shared_feed_forward_length(shape.shared)
    if shape.interval > 1:
        keys, values = shape.delta_heads
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(DELTA_DIM)
        writer.add_ssm_group_count(keys)
        writer.add_ssm_time_step_rank(values)
        writer.add_ssm_inner_size(values * DELTA_DIM)
    for name, value in shape.more.items():
        add: Callable[[str, object], None] = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{shape.architecture}.{name}", value)


def attention(file: ModelFile, prefix: str, layer: int) -> None:
    shape = file.shape
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    has_gate = shape.interval > 1
    file.matrix(f"{prefix}attn_q", width * (2 if has_gate else 1), shape.hidden)
    file.matrix(f"{prefix}attn_k", kv_width, shape.hidden)
    file.matrix(f"{prefix}attn_v", kv_width, shape.hidden, file.finer(layer))
    file.matrix(f"{prefix}attn_output", shape.hidden, width)
    for name in ("attn_q_norm", "attn_k_norm"):
        file.floats(f"{prefix}{name}.weight", shape.head_dim)


def delta(file: ModelFile, prefix: str, layer: int) -> None:
    shape = file.shape
    keys, values = shape.delta_heads
    channels = (2 * keys + values) * DELTA_DIM
    file.matrix(f"{prefix}attn_qkv", channels, shape.hidden)
    file.matrix(f"{prefix}attn_gate", values * DELTA_DIM, shape.hidden)
    file.matrix(f"{prefix}ssm_out", shape.hidden, values * DELTA_DIM)
    for name in ("ssm_alpha", "ssm_beta"):
        file.matrix(f"{prefix}{name}", values, shape.hidden)
    file.floats(f"{prefix}ssm_a", values, value=-0.5)
    file.floats(f"{prefix}ssm_dt.bias", values, value=None)
    file.floats(f"{prefix}ssm_conv1d.weight", channels, 4, value=None)
    file.floats(f"{prefix}ssm_norm.weight", DELTA_DIM)


def mlp(file: ModelFile, prefix: str, layer: int, suffix: str = "", inner: int = 0) -> None:
    inner = inner or file.shape.inner
    file.matrix(f"{prefix}ffn_gate{suffix}", inner, file.shape.hidden)
    file.matrix(f"{prefix}ffn_up{suffix}", inner, file.shape.hidden)
    file.matrix(f"{prefix}ffn_down{suffix}", file.shape.hidden, inner, file.finer(layer))


def mixture(file: ModelFile, prefix: str, layer: int) -> None:
    shape = file.shape
    file.floats(f"{prefix}ffn_gate_inp.weight", shape.experts, shape.hidden, value=None)
    file.matrix(f"{prefix}ffn_gate_exps", shape.inner, shape.hidden, experts=shape.experts)
    file.matrix(f"{prefix}ffn_up_exps", shape.inner, shape.hidden, experts=shape.experts)
    file.matrix(f"{prefix}ffn_down_exps", shape.hidden, shape.inner, file.finer(layer), experts=shape.experts)
    if shape.shared:
        file.floats(f"{prefix}ffn_gate_inp_shexp.weight", 1, shape.hidden, value=None)
        mlp(file, prefix, layer, "_shexp", shape.shared)


def copy_tokenizer(vocabulary: Path, writer: gguf.GGUFWriter, vocab: int) -> None:
    reader = gguf.GGUFReader(vocabulary)
    for name, entry in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        contents = entry.contents()
        missing = vocab - len(contents) if isinstance(contents, list) else 0
        if name == "tokenizer.ggml.tokens":
            contents += [f"[unused{number}]" for number in range(missing)]
        elif name == "tokenizer.ggml.token_type":
            contents += [UNUSED] * missing
        kinds = [*entry.types, None]
        writer.add_key_value(name, contents, kinds[0], sub_type=kinds[-2] if len(kinds) > 2 else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.layers is not None:
        shape = replace(shape, layers=arguments.layers)
    write(shape, arguments.vocabulary, arguments.output)


if __name__ == "__main__":
    main()
