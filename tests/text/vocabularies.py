"""Tiny vocabularies as GGUF metadata: enough of each kind to see every rule at work."""

from __future__ import annotations

from pelton.text.tokenizer import byte_of_character

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def byte_level(merges: str = "h e,l l,he ll,hell o,Ġ w", **settings: object) -> dict[str, object]:
    """GPT-2 style: 256 bytes, the merges, then `<s>`, `</s>` (control) and `<think>` (user-defined)."""
    tokens = list(byte_of_character())
    pairs = merges.split(",") if merges else []
    tokens += [pair.replace(" ", "") for pair in pairs]
    types = [NORMAL] * len(tokens) + [CONTROL, CONTROL, USER_DEFINED]
    tokens += ["<s>", "</s>", "<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": pairs,
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
        **{f"tokenizer.ggml.{name}": value for name, value in settings.items()},
    }


def sentencepiece(**settings: object) -> dict[str, object]:
    """Llama style: unknown, BOS, EOS, 256 bytes, then pieces with falling scores."""
    pieces = ["he", "ll", "hell", "hello", "▁hello", "▁w", "or", "wor", "▁wor", *"▁helowrd"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        **{f"tokenizer.ggml.{name}": value for name, value in settings.items()},
    }


def wordpiece() -> dict[str, object]:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hello", "▁wor", "ld", "▁!"]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 4],
        "tokenizer.ggml.unknown_token_id": 1,
    }
