"""Behind which tokens of a request the states of recurrent layers are kept, for others to start there. Arithmetic only.

A state is kept where a step ends, so a prompt is cut there, and a cut costs about a reading of the weights. So few
places are chosen, those where other prompts are likely to part from this one:

    behind the first message       others have the same instructions
    behind the last message        the next turn of the conversation goes on from there
    behind the prompt              it may be asked again
    where the cache has seen it    another prompt was the same up to there: a third may be
    every so many tokens           all else, for as much memory as the keys and values in between take
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pelton.cache.groups import BLOCK_TOKENS

DEFAULT_CHECKPOINT_TOKENS = 1024
_LEAST_BLOCKS = 8  # between two, and before the first: less is not worth a cut


def checkpoint_blocks(
    token_ids: Sequence[int],
    num_prompt: int,
    message_ends: Collection[int],
    *,
    num_usable: int,
    num_present: int,
    spacing: int,
) -> list[int]:
    """In ascending order, numbers of leading blocks behind which states are to be kept.

    message_ends: tokens that end a message. num_usable, num_present: as of PrefixMatch; nothing is kept at or before
    the former. spacing: tokens between two that have no other reason, a multiple of 16.
    """
    most = (len(token_ids) - 1) // BLOCK_TOKENS
    every = spacing // BLOCK_TOKENS
    wanted = {num_present, (num_prompt - 1) // BLOCK_TOKENS, *range(every, most + 1, every)}
    wanted.update((position + 1) // BLOCK_TOKENS for position in _ends(token_ids, num_prompt, message_ends))
    chosen: list[int] = []
    last = num_usable
    for number in sorted(wanted):
        if number <= most and number - last >= min(_LEAST_BLOCKS, every):
            chosen.append(number)
            last = number
    return chosen


def _ends(token_ids: Sequence[int], num_prompt: int, message_ends: Collection[int]) -> list[int]:
    """Positions of the first and the last token of the prompt that ends a message."""
    for first in range(num_prompt):
        if token_ids[first] in message_ends:
            last = next(position for position in range(num_prompt - 1, -1, -1) if token_ids[position] in message_ends)
            return [first, last]
    return []
