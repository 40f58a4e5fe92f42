"""Builds a Tokenizer from GGUF metadata; it does not read files and knows no model.

Checked against the vocabularies and token ids that come with llama.cpp. Where llama.cpp and the tokenizer that a model
was trained with differ, the latter wins: bytes without a token don't part the merges around them, and control tokens
are never made by merges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pelton import _native
from pelton.errors import TokenizerError, UnsupportedModelError
from pelton.text.gguf_vocabulary import (
    BYTE,
    CONTROL,
    NATIVE_MODELS,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    number_list,
    read_facts,
    read_flag,
    read_token_id,
    read_vocabulary,
    string_array,
)
from pelton.text.library_backend import LibraryBackend
from pelton.text.native_backend import NativeBackend
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

logger = logging.getLogger(__name__)

# Matching a word of WordPiece takes time quadratic in its length: the limit is BERT's, and a defence.
_MAX_WORD_CHARACTERS = 100
_SUPPORTED_MODELS = (*NATIVE_MODELS, "bert")


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
    vocabulary = read_vocabulary(metadata)
    if kind == "llama":
        return _build_sentencepiece(metadata, vocabulary)
    if kind == "bert":
        return _build_wordpiece(metadata, vocabulary)
    return _build_bpe(metadata, vocabulary, "gemma4" if kind == "gemma4" else metadata.get("tokenizer.ggml.pre"))


def _build_bpe(metadata: Mapping[str, object], vocabulary: Vocabulary, name: object) -> Tokenizer:
    rule, unverified = _choose_rule(name)
    style = PieceStyle.BYTE_CHARACTERS if rule.byte_level else PieceStyle.SPACE_MARKS
    facts = read_facts(metadata, vocabulary, style, add_bos=rule.add_bos, unverified=unverified)
    if rule.byte_level:
        lost = bytes(byte for character, byte in byte_of_character().items() if character not in vocabulary)
        facts = replace(facts, lost_bytes=lost)
    if name == "gemma4" and not facts.add_bos and facts.bos_token_id is not None:
        logger.warning("tokenizer: the file asks for no BOS, but Gemma 4 was trained with one before every text: added")
        facts = replace(facts, add_bos=True)
    return _byte_pair_tokenizer(
        metadata, vocabulary, facts, rule, merges=string_array(metadata, "tokenizer.ggml.merges")
    )


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


def _build_sentencepiece(metadata: Mapping[str, object], vocabulary: Vocabulary) -> Tokenizer:
    """SentencePiece joins the adjacent pair whose result has the best score, of a whole stretch of text at once.

    Control, unknown and byte tokens are no pieces: text makes none.
    """
    scores = number_list(metadata, "tokenizer.ggml.scores", len(vocabulary))
    add_space_prefix = read_flag(metadata, "add_space_prefix", True)
    facts = read_facts(
        metadata,
        vocabulary,
        PieceStyle.SPACE_MARKS,
        add_bos=True,
        bos=1,
        eos=2,
        add_space_prefix=add_space_prefix,
    )
    rule = PreTokenizer((), byte_level=False, escape_spaces=True)
    return _byte_pair_tokenizer(
        metadata,
        vocabulary,
        facts,
        rule,
        scores=scores,
        no_pieces=vocabulary.of_type(CONTROL, UNKNOWN, BYTE),
        unknown_id=read_token_id(metadata, "unknown", vocabulary) or 0,
    )


def _byte_pair_tokenizer(
    metadata: Mapping[str, object],
    vocabulary: Vocabulary,
    facts: TokenizerFacts,
    rule: PreTokenizer,
    *,
    merges: _native.Strings | None = None,
    scores: Sequence[float] = (),
    no_pieces: Sequence[int] = (),
    unknown_id: int | None = None,
) -> Tokenizer:
    """merges: best first; None: scores of each token, of which text makes no no_pieces.

    Added tokens are cut out first, and each stretch of text between them gets its own space prefix, as in llama.cpp.
    """
    strips = _strip_rules(metadata)
    controls = _added_tokens(vocabulary)
    try:
        native = _native.BytePairTokenizer(
            vocabulary.native,
            added=[(token_id, control, *strips(vocabulary.text(token_id))) for token_id, control in controls.items()],
            patterns=rule.patterns,
            merges=merges,
            scores=scores,
            no_pieces=no_pieces,
            byte_level=rule.byte_level,
            space_prefix=facts.add_space_prefix,
            escape_spaces=rule.escape_spaces,
            drop_unmatched=rule.drop_unmatched,
            ignore_merges=rule.ignore_merges,
            byte_fallback=not rule.byte_level,
            unknown_id=unknown_id,
        )
    except ValueError as error:
        raise TokenizerError(f"`tokenizer.ggml.merges` does not fit the vocabulary: {error}") from error
    return Tokenizer(NativeBackend(vocabulary.native, native, facts, controls), facts)


def _added_tokens(vocabulary: Vocabulary) -> dict[int, bool]:
    """Ids of what stands outside the merges, and whether it is a control token."""
    added = vocabulary.of_type(UNKNOWN, CONTROL, USER_DEFINED)
    return {token_id: vocabulary.types[token_id] != USER_DEFINED for token_id in added}


def _build_wordpiece(metadata: Mapping[str, object], vocabulary: Vocabulary) -> Tokenizer:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    # The file marks what starts a word; the library marks what continues one.
    spelled = [
        text if kind in (CONTROL, UNKNOWN, USER_DEFINED) else text[1:] if text.startswith(SPACE_MARK) else "##" + text
        for text, kind in zip(vocabulary.texts(), vocabulary.types, strict=True)
    ]
    ids = dict(zip(spelled, range(len(spelled)), strict=True))
    if len(ids) != len(spelled):
        raise TokenizerError("two tokens of the WordPiece vocabulary are spelled alike")
    vocabulary = Vocabulary(_native.Vocabulary(_native.Strings(tuple(spelled))), vocabulary.types)
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
    """Add what stands outside the words: control and user-defined tokens, the start and the end."""
    from tokenizers import AddedToken, processors

    strips = _strip_rules(metadata)
    added = []
    for token_id, is_control in _added_tokens(vocabulary).items():
        text = vocabulary.text(token_id)
        lstrip, rstrip = strips(text)
        added.append(AddedToken(text, lstrip=lstrip, rstrip=rstrip, normalized=False, special=is_control))
    backend.add_tokens(added)
    first, last = facts.bos_token_id if facts.add_bos else None, facts.eos_token_id
    around = [("BOS", first), ("EOS", last)]
    backend.post_processor = processors.TemplateProcessing(
        single=[name for name, token_id in (around[0], ("$A", 0), around[1]) if token_id is not None],
        special_tokens=[(name, token_id) for name, token_id in around if token_id is not None],
    )
    return Tokenizer(LibraryBackend(backend), facts)


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
