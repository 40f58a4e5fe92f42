"""Under which key a block's content is found again: a chain of keyed hashes over all that it depends on.

    root    = H(adapter, salt)
    key[i]  = H(key[i - 1], the 16 token ids of block i)        H = BLAKE2b keyed with a secret of this process

Two blocks with one key hold the same tokens after the same tokens. The secret is random, so nobody outside can look
for two prompts whose keys collide; with 256 bits none will by chance. It knows no blocks and no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

from pelton.cache.groups import BLOCK_TOKENS

_KEY_BYTES = 32
_TOKENS = Struct(f"<{BLOCK_TOKENS}I")  # fixed width: no two lists of ids have one spelling


class KeyChain:
    """The keys of one sequence's full blocks, made as its tokens become known."""

    __slots__ = ("_root", "_secret", "keys")

    def __init__(self, secret: bytes, salt: str, adapter: str | None = None) -> None:
        """Only sequences of equal salt and adapter share keys. The secret is the model's too: one process has one."""
        self._secret = secret
        kind = b"\0" if adapter is None else b"\1" + blake2b(adapter.encode("utf-8", "surrogatepass")).digest()
        self._root = blake2b(kind + salt.encode("utf-8", "surrogatepass"), key=secret, digest_size=_KEY_BYTES).digest()
        self.keys: list[bytes] = []

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """The keys of at least the first num_blocks blocks; those that are missing are made from token_ids."""
        keys = self.keys
        parent = keys[-1] if keys else self._root
        for index in range(len(keys), num_blocks):
            start = index * BLOCK_TOKENS
            content = parent + _TOKENS.pack(*token_ids[start : start + BLOCK_TOKENS])
            parent = blake2b(content, key=self._secret, digest_size=_KEY_BYTES).digest()
            keys.append(parent)
        return keys
