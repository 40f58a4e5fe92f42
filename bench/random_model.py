"""A model of the shape of Qwen3-0.6B with random Q4_0 weights: speed depends on shapes, not on what a model knows.

    python -m bench.random_model VOCABULARY.gguf OUTPUT.gguf

The tokenizer is copied from any GGUF file with Qwen's vocabulary of 151,936 tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 28, 1024, 3072, 16, 8, 128
CONTEXT = 40960
WEIGHT_DEVIATION = 0.02


def random_q4_0(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """[rows, columns / 32 blocks of 18 bytes]: codes are uniform over 16 steps, so their deviation is 4.6 steps."""
    blocks = generator.integers(0, 256, (rows, columns // 32, 18), dtype=np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(WEIGHT_DEVIATION / 4.6).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def write(vocabulary: Path, output: Path) -> None:
    generator = np.random.default_rng(7)
    writer = gguf.GGUFWriter(output, "qwen3")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    num_tokens = copy_tokenizer(vocabulary, writer)

    def matrix(name: str, rows: int, columns: int) -> None:
        data = random_q4_0(generator, rows, columns)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def norm(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, np.float32))

    matrix("token_embd.weight", num_tokens, HIDDEN)
    norm("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        for name, rows, columns in (
            ("attn_q", HEADS * HEAD_DIM, HIDDEN),
            ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
            ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN),
            ("attn_output", HIDDEN, HEADS * HEAD_DIM),
            ("ffn_gate", FFN, HIDDEN),
            ("ffn_up", FFN, HIDDEN),
            ("ffn_down", HIDDEN, FFN),
        ):
            matrix(f"{prefix}{name}.weight", rows, columns)
        for name, size in (
            ("attn_norm", HIDDEN),
            ("ffn_norm", HIDDEN),
            ("attn_q_norm", HEAD_DIM),
            ("attn_k_norm", HEAD_DIM),
        ):
            norm(f"{prefix}{name}.weight", size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_tokenizer(vocabulary: Path, writer: gguf.GGUFWriter) -> int:
    """Returns how many tokens it has."""
    reader = gguf.GGUFReader(vocabulary)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kinds = [*field.types, None]
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-2] if len(kinds) > 2 else None)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    write(arguments.vocabulary, arguments.output)


if __name__ == "__main__":
    main()
