"""The same GGUF vocabularies made with the `tokenizers` library: what the native tokenizer is held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from pelton.text.library_backend import LibraryBackend
from pelton.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from pelton.text.tokenizer import SPACE_MARK
from tests.text.vocabularies import BYTE, CONTROL, UNKNOWN, USER_DEFINED


def reference(metadata: Mapping[str, Any]) -> LibraryBackend:
    """A backend for the metadata of `byte_level()` or `sentencepiece()` or of a real file."""
    tokens = list(metadata["tokenizer.ggml.tokens"])
    types = list(metadata["tokenizer.ggml.token_type"])
    ids = {text: token_id for token_id, text in enumerate(tokens)}
    kind = metadata["tokenizer.ggml.model"]
    if kind == "llama":
        library = _by_scores(metadata, tokens, types, ids)
    else:
        rule = PRE_TOKENIZERS["gemma4" if kind == "gemma4" else metadata["tokenizer.ggml.pre"]]
        library = _by_merges(rule, metadata["tokenizer.ggml.merges"], ids)
    library.add_tokens(
        [
            AddedToken(text, normalized=False, special=kind != USER_DEFINED)
            for text, kind in zip(tokens, types, strict=True)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
    )
    return LibraryBackend(library)


def _by_merges(rule: PreTokenizer, merges: list[str], ids: dict[str, int]) -> tokenizers.Tokenizer:
    pairs = [(merge[: merge.index(" ", 1)], merge[merge.index(" ", 1) + 1 :]) for merge in merges]
    library = tokenizers.Tokenizer(
        models.BPE(ids, pairs, ignore_merges=rule.ignore_merges, byte_fallback=not rule.byte_level)
    )
    steps: list[Any] = [
        pre_tokenizers.Split(
            tokenizers.Regex(pattern), "removed" if rule.drop_unmatched else "isolated", invert=rule.drop_unmatched
        )
        for pattern in rule.patterns
    ]
    if rule.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        library.decoder = decoders.ByteLevel()
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule.escape_spaces:
        library.normalizer = normalizers.Replace(" ", SPACE_MARK)
    return library


def _by_scores(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], ids: dict[str, int]
) -> tokenizers.Tokenizer:
    scores = list(metadata["tokenizer.ggml.scores"])
    pieces = {text for text, kind in zip(tokens, types, strict=True) if kind not in (CONTROL, UNKNOWN, BYTE)}
    merges = []
    for whole in sorted(pieces, key=lambda text: (-scores[ids[text]], ids[text])):
        cuts = [(whole[:cut], whole[cut:]) for cut in range(1, len(whole))]
        merges += [(left, right) for left, right in cuts if left in pieces and right in pieces]
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    library = tokenizers.Tokenizer(models.BPE(ids, merges, byte_fallback=True, unk_token=unknown, fuse_unk=True))
    escape = normalizers.Replace(" ", SPACE_MARK)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), escape]) if prefix else escape
    return library
