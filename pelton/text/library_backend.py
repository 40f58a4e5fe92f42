"""Token ids by the `tokenizers` library, for what has no native tokenizer: WordPiece and `tokenizer.json`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers


class LibraryBackend:
    """A Backend (pelton.text.tokenizer). Encoding releases the GIL."""

    native = False

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library
        self.num_tokens: int = library.get_vocab_size(with_added_tokens=True)

    @cached_property
    def _added(self) -> dict[int, tokenizers.AddedToken]:
        return self._library.get_added_tokens_decoder()

    @cached_property
    def added_tokens(self) -> dict[int, bool]:
        return {token_id: token.special for token_id, token in self._added.items()}

    @cached_property
    def _plain_library(self) -> tokenizers.Tokenizer:
        """The same model (shared, not copied) for text in which control tokens stay text.

        A second object because the library keeps this choice as a state of the object, and threads share ours. Control
        tokens that the model's own vocabulary holds need not be added for it to know their ids.
        """
        import tokenizers

        library = tokenizers.Tokenizer(self._library.model)
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            value = getattr(self._library, part)
            if value is not None:
                setattr(library, part, value)
        model = library.model
        library.add_tokens(
            [
                token
                for _, token in sorted(self._added.items())
                if not token.special or model.token_to_id(token.content) is None
            ]
        )
        library.encode_special_tokens = True
        return library

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        library = self._library if parse_special else self._plain_library
        return list(library.encode(text, add_special_tokens=add_special).ids)

    def token(self, token_id: int) -> str | None:
        return self._library.id_to_token(token_id) if token_id >= 0 else None
