"""Builds a Tokenizer from GGUF metadata; it does not read files and knows no model.

Checked against the vocabularies and token ids that come with llama.cpp. Where llama.cpp and the tokenizer that a model
was trained with differ, the latter wins: bytes without a token don't part the merges around them, and control tokens
are never made by merges.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

from pelton import _native
from pelton.errors import TokenizerError, UnsupportedModelError
from pelton.text.gguf_vocabulary import (
    BYTE,
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    number_list,
    read_facts,
    read_flag,
    read_token_id,
    read_vocabulary,
    string_list,
)
from pelton.text.pre_tokenizers import DEFAULT_NAME, PRE_TOKENIZERS, PreTokenizer, verification
from pelton.text.tokenizer import (
    SPACE_MARK,
    PieceStyle,
    Tokenizer,
    TokenizerFacts,
    byte_of_character,
    library_errors,
)

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import decoders, models

logger = logging.getLogger(__name__)

# Matching a word of WordPiece takes time quadratic in its length: the limit is BERT's, and a defence.
_MAX_WORD_CHARACTERS = 100
_SUPPORTED_MODELS = ("gpt2", "gemma4", "whitespace", "llama", "bert")


def tokenizer_from_metadata(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer that the `tokenizer.ggml.*` keys describe.

    Raises TokenizerError for a missing or malformed vocabulary, UnsupportedModelError for an unknown model type.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str):
        raise TokenizerError("the file has no tokenizer: `tokenizer.ggml.model` is missing")
    if kind not in _SUPPORTED_MODELS:
        raise UnsupportedModelError(
            f"tokenizer model `{kind}` is not supported",
            f"supported are {', '.join(f'`{name}`' for name in _SUPPORTED_MODELS)}",
        )
    with _no_garbage_collection():
        vocabulary = read_vocabulary(metadata)
        if kind == "llama":
            return _build_sentencepiece(metadata, vocabulary)
        if kind == "bert":
            return _build_wordpiece(metadata, vocabulary)
        return _build_bpe(metadata, vocabulary, "gemma4" if kind == "gemma4" else metadata.get("tokenizer.ggml.pre"))


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Half a million tuples, none of them garbage, would make the collector walk all of them several times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _build_bpe(metadata: Mapping[str, object], vocabulary: Vocabulary, name: object) -> Tokenizer:
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers

    rule, unverified = _choose_rule(name)
    merges = _split_merges(string_list(metadata, "tokenizer.ggml.merges"))
    backend = tokenizers.Tokenizer(
        _make_bpe(vocabulary.ids, merges, ignore_merges=rule.ignore_merges, byte_fallback=not rule.byte_level)
    )
    behaviour = "removed" if rule.drop_unmatched else "isolated"
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(tokenizers.Regex(pattern), behaviour, invert=rule.drop_unmatched)
        for pattern in rule.patterns
    ]
    if rule.byte_level:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        backend.decoder = decoders.ByteLevel()
    else:
        backend.decoder = _space_mark_decoder(strip=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule.escape_spaces:
        backend.normalizer = normalizers.Replace(" ", SPACE_MARK)
    style = PieceStyle.BYTE_CHARACTERS if rule.byte_level else PieceStyle.SPACE_MARKS
    facts = read_facts(metadata, vocabulary, style, add_bos=rule.add_bos, unverified=unverified)
    if rule.byte_level:
        lost = bytes(byte for character, byte in byte_of_character().items() if character not in vocabulary.ids)
        facts = replace(facts, lost_bytes=lost)
    if name == "gemma4" and not facts.add_bos and facts.bos_token_id is not None:
        logger.warning("tokenizer: the file asks for no BOS, but Gemma 4 was trained with one before every text: added")
        facts = replace(facts, add_bos=True)
    return _finish(backend, metadata, vocabulary, facts)


def _choose_rule(name: object) -> tuple[PreTokenizer, str | None]:
    """The pre-tokenizer of that name, and why its token ids may be wrong (None: they have been checked)."""
    if isinstance(name, str) and name in PRE_TOKENIZERS:
        unchecked = verification(name) == "unverified"
        reason = f"pre type `{name}` has not been checked against a vocabulary" if unchecked else None
        return PRE_TOKENIZERS[name], reason
    said = "the file names no pre type" if name is None else f"pre type `{name}` is unknown"
    reason = f"{said}; words are cut as for `{DEFAULT_NAME}`, which may not be what the model was trained with"
    logger.warning("tokenizer: %s: answers may be much worse than the model's", reason)
    return PRE_TOKENIZERS[DEFAULT_NAME], reason


def _split_merges(merges: list[str]) -> list[tuple[str, str]]:
    pairs = [(left, right) for left, _, right in [merge.partition(" ") for merge in merges]]
    for index, (left, right) in enumerate(pairs):
        if not left or " " in right:
            # A token may itself start with a space: the separator is the first space after its first character.
            position = merges[index].find(" ", 1)
            pairs[index] = merges[index][:position], merges[index][position + 1 :]
    return pairs


def _make_bpe(
    ids: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
    unknown: str | None = None,
) -> models.BPE:
    from tokenizers import models

    with library_errors("`tokenizer.ggml.merges` does not fit the vocabulary"):
        return models.BPE(
            ids,
            merges,
            ignore_merges=ignore_merges,
            byte_fallback=byte_fallback,
            unk_token=unknown,
            fuse_unk=unknown is not None,
        )


def _build_sentencepiece(metadata: Mapping[str, object], vocabulary: Vocabulary) -> Tokenizer:
    import tokenizers
    from tokenizers import normalizers

    scores = number_list(metadata, "tokenizer.ggml.scores", len(vocabulary.tokens))
    unknown = read_token_id(metadata, "unknown", vocabulary) or 0
    backend = tokenizers.Tokenizer(
        _make_bpe(
            vocabulary.ids,
            _merges_from_scores(vocabulary, scores),
            byte_fallback=True,
            unknown=vocabulary.tokens[unknown],
        )
    )
    add_space_prefix = read_flag(metadata, "add_space_prefix", True)
    escape = normalizers.Replace(" ", SPACE_MARK)
    # Added tokens are cut out first, and each stretch of text between them gets its own prefix, as in llama.cpp.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), escape]) if add_space_prefix else escape
    backend.decoder = _space_mark_decoder(strip=add_space_prefix)
    facts = read_facts(
        metadata,
        vocabulary,
        PieceStyle.SPACE_MARKS,
        add_bos=True,
        bos=1,
        eos=2,
        add_space_prefix=add_space_prefix,
    )
    return _finish(backend, metadata, vocabulary, facts)


def _merges_from_scores(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, best score first.

    SentencePiece joins the adjacent pair whose result has the best score. Of the pairs that make one piece only one can
    ever be adjacent: as long as no merge crosses the ends of a stretch of text, its merges go as if it stood alone. So
    the order among the pairs of one piece is free. Control, unknown and byte tokens are no pieces: text makes none.
    """
    no_pieces = (CONTROL, UNKNOWN, BYTE)
    is_piece = [kind not in no_pieces for kind in vocabulary.types]
    pieces = list(compress(vocabulary.tokens, is_piece))
    return _native.piece_merges(pieces, list(compress(scores, is_piece)))


def _space_mark_decoder(*, strip: bool) -> decoders.Decoder:
    from tokenizers import decoders

    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)


def _build_wordpiece(metadata: Mapping[str, object], vocabulary: Vocabulary) -> Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    # The file marks what starts a word; the library marks what continues one.
    spelled = [
        text if kind in (CONTROL, UNKNOWN, USER_DEFINED) else text[1:] if text.startswith(SPACE_MARK) else "##" + text
        for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    ids = dict(zip(spelled, range(len(spelled)), strict=True))
    if len(ids) != len(spelled):
        raise TokenizerError("two tokens of the WordPiece vocabulary are spelled alike")
    vocabulary = Vocabulary(spelled, vocabulary.types, ids)
    unknown = read_token_id(metadata, "unknown", vocabulary)
    if unknown is None:
        raise TokenizerError("the file has no `tokenizer.ggml.unknown_token_id`, which WordPiece needs")
    with library_errors("`tokenizer.ggml.tokens` is no WordPiece vocabulary"):
        backend = tokenizers.Tokenizer(
            models.WordPiece(ids, unk_token=spelled[unknown], max_input_chars_per_word=_MAX_WORD_CHARACTERS)
        )
    lowercase = read_flag(metadata, "normalizer.lowercase", True)
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=read_flag(metadata, "normalizer.strip_accents", lowercase)
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    # What stands around every text: older files leave it to the names. The key is spelled so in every file.
    start = read_token_id(metadata, "cls", vocabulary, ids.get("[CLS]"))
    separator = read_token_id(metadata, "seperator", vocabulary, ids.get("[SEP]"))
    if separator is None:
        raise TokenizerError("the file has no `tokenizer.ggml.seperator_token_id`, which ends every text of BERT")
    facts = read_facts(metadata, vocabulary, PieceStyle.WORD_PARTS, add_bos=True, bos=start)
    return _finish(backend, metadata, vocabulary, replace(facts, eos_token_id=separator, add_eos=True))


def _finish(
    backend: tokenizers.Tokenizer, metadata: Mapping[str, object], vocabulary: Vocabulary, facts: TokenizerFacts
) -> Tokenizer:
    """Add what stands outside the merges: control and user-defined tokens, BOS and EOS."""
    from tokenizers import AddedToken, processors

    strips = _strip_rules(metadata)
    added = []
    for token_id in vocabulary.of_type(UNKNOWN, CONTROL, USER_DEFINED):
        text = vocabulary.tokens[token_id]
        lstrip, rstrip = strips(text)
        special = vocabulary.types[token_id] != USER_DEFINED
        added.append(AddedToken(text, lstrip=lstrip, rstrip=rstrip, normalized=False, special=special))
    backend.add_tokens(added)
    first, last = facts.bos_token_id if facts.add_bos else None, facts.eos_token_id if facts.add_eos else None
    if first is not None or last is not None:
        names = ("BOS" if first is not None else None, "$A", "EOS" if last is not None else None)
        backend.post_processor = processors.TemplateProcessing(
            single=[name for name in names if name is not None],
            special_tokens=[
                (name, token_id) for name, token_id in (("BOS", first), ("EOS", last)) if token_id is not None
            ],
        )
    return Tokenizer(backend, facts)


def _strip_rules(metadata: Mapping[str, object]) -> Callable[[str], tuple[bool, bool]]:
    """Which added tokens swallow the spaces before and after them: the file does not say, the model's name does."""
    name = str(metadata.get("general.name", "")).lower()
    pre = metadata.get("tokenizer.ggml.pre")
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code"):
        return lambda text: (text == "<mask>", False)
    if "modern-bert" in name:
        return lambda text: (text == "[MASK]", False)
    if "phi-3" in name or "phi3" in name:
        return lambda text: (False, text not in ("<unk>", "<s>", "<|endoftext|>"))
    return lambda text: (False, False)
