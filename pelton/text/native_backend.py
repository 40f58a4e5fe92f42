"""Token ids by the native byte-pair tokenizer, with BOS and EOS around them."""

from __future__ import annotations

from collections.abc import Mapping

from pelton import _native
from pelton.text.tokenizer import TokenizerFacts


class NativeBackend:
    """A Backend (pelton.text.tokenizer). Encoding releases the GIL."""

    native = True

    def __init__(
        self,
        vocabulary: _native.Vocabulary,
        tokenizer: _native.BytePairTokenizer,
        facts: TokenizerFacts,
        added_tokens: Mapping[int, bool],
    ) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self.num_tokens = len(vocabulary)
        self.added_tokens = added_tokens
        self._before = [facts.bos_token_id] if facts.add_bos and facts.bos_token_id is not None else []
        self._after = [facts.eos_token_id] if facts.add_eos and facts.eos_token_id is not None else []

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = self._tokenizer.encode(text, parse_special)
        return [*self._before, *ids, *self._after] if add_special else ids

    def token(self, token_id: int) -> str | None:
        return self._vocabulary.text(token_id)
