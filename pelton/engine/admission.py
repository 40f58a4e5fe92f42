"""Whether a request can ever be served, told before it is queued. Pure: both sides of the process border ask it.

It knows the sizes that the engine runs with, not what runs now: a request that passes may have to wait, and will end.
"""

from __future__ import annotations

from collections.abc import Sequence

from pelton.cache.groups import CacheGroupSpec, peak_slabs
from pelton.engine.scheduler import EngineLimits
from pelton.errors import ContextLengthError, RequestError
from pelton.sampling_params import SamplingParams


def check_request(
    limits: EngineLimits,
    cache_groups: Sequence[CacheGroupSpec],
    prompt_token_ids: Sequence[int],
    sampling: SamplingParams,
) -> None:
    """Raises ContextLengthError or RequestError, with the numbers, for what an engine of these sizes can never do."""
    _check_tokens(limits, prompt_token_ids, sampling)
    num_prompt = len(prompt_token_ids)
    if num_prompt >= limits.max_model_len:
        raise ContextLengthError(
            f"the prompt has `{num_prompt}` tokens; the context holds `{limits.max_model_len}`, "
            "of which at least one is the answer's",
            f"shorten the prompt to at most {limits.max_model_len - 1} tokens, or raise `max_model_len`",
        )
    num_output = max_output(limits, num_prompt, sampling)
    # The last token drawn is never computed.
    needed = peak_slabs(cache_groups, limits.slab_bytes, num_prompt + num_output - 1, limits.max_num_batched_tokens)
    num_slabs = limits.kv_cache_bytes // limits.slab_bytes
    if needed > num_slabs:
        raise RequestError(
            f"`{num_prompt}` prompt tokens and up to `{num_output}` more need `{needed * limits.slab_bytes}` bytes of "
            f"KV cache; the pool has `{num_slabs * limits.slab_bytes}`",
            "lower `max_tokens`, or raise `kv_cache_bytes`",
        )


def max_output(limits: EngineLimits, num_prompt: int, sampling: SamplingParams) -> int:
    """The most tokens that a request can be answered with."""
    room = limits.max_model_len - num_prompt
    return room if sampling.max_tokens is None else min(sampling.max_tokens, room)


def _check_tokens(limits: EngineLimits, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> None:
    if not prompt_token_ids:
        raise RequestError("the prompt has no tokens")
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= limits.vocab_size:
        raise RequestError(f"the prompt has token ids outside `[0, {limits.vocab_size})`, the model's vocabulary")
    for name, named in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        for token in named:
            if not isinstance(token, int) or not 0 <= token < limits.vocab_size:
                raise RequestError(f"`{name}` names token `{token}`; there are `{limits.vocab_size}` tokens")
