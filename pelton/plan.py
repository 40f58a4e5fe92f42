"""The start-up decision: settings, a model's header and a platform's facts in; every size with its reason out.

It reads no weights, allocates nothing and asks no machine: what it needs is in ModelFacts and PlatformFacts. Nothing
is made smaller silently: each reduction is one line that says from what to what and why, and an error if `strict`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from pelton.cache.groups import (
    BLOCK_TOKENS,
    MAX_POOL_BYTES,
    CacheGroupSpec,
    blocks_for,
    choose_slab_bytes,
    max_tokens_in,
    peak_blocks,
    peak_slabs,
)
from pelton.config import Settings
from pelton.engine.checkpoints import DEFAULT_CHECKPOINT_TOKENS
from pelton.engine.scheduler import EngineLimits
from pelton.engine.step_costs import MAX_STRETCH, StepCosts
from pelton.errors import MemoryPlanError, UsageError
from pelton.platforms.platform import PlatformFacts
from pelton.sizes import format_bytes

logger = logging.getLogger(__name__)

# Tokens of a step if nobody asks: enough rows to be bound by arithmetic rather than by reading the weights.
DEFAULT_BATCHED_TOKENS = 512
# Sequences at once if nobody asks, where the cache has room for as many of 512 tokens.
DEFAULT_MAX_NUM_SEQS = 32
_TOKENS_PER_SEQUENCE = 512
# The pool has room for all of them at this length if nobody asks: long ones share what short ones leave.
_CACHED_PER_SEQUENCE = 2048
# No plan without room for one conversation of a few turns.
_LEAST_CONTEXT = 256
_MIB = 1 << 20
# Kept states are at least so far apart: what they save is then worth a cut of the prompt.
_LEAST_CHECKPOINT_TOKENS = 256
_LATE_POSITION = 4000  # of a long prompt, to show what is left of a step there


class ModelFacts(msgspec.Struct, frozen=True):
    """What the plan must know of a model, all from headers.

    max_position:          longest context that it was made for.
    stretched_position:    longest that is served if it is asked for.
    trained_position:      above so many tokens its rotary embedding has other angles; None: it always has the same.
    weight_bytes:          packed size of its weights by stored format.
    cache_groups:          kv_dtype -> its cache groups with their block sizes.
    step_bytes:            memory of a step whatever its size: the head's tile of logits, constants.
    step_bytes_per_token:  memory of a step for each token that it computes.
    products_per_token:    multiplications of a prompt's token with weights.
    attention_per_position:  multiplications of a token in attention, for each position that it sees, in layers that
                           see them all.
    """

    name: str
    max_position: int
    vocab_size: int
    weight_bytes: Mapping[str, int]
    cache_groups: Mapping[str, tuple[CacheGroupSpec, ...]]
    step_bytes: int
    step_bytes_per_token: int
    products_per_token: int
    attention_per_position: int
    stretched_position: int | None = None
    trained_position: int | None = None


class Decision(msgspec.Struct, frozen=True):
    """One value with where it comes from ("default", "file", "environment", "user", "derived") and why."""

    name: str
    value: Any
    source: str
    reason: str


class MemoryLine(msgspec.Struct, frozen=True):
    """One row of the memory table. detail: how it comes about."""

    name: str
    nbytes: int
    detail: str


class Plan(msgspec.Struct, frozen=True):
    """What will be loaded and how.

    decisions:  every setting of the engine, by name.
    memory:     what the usable bytes go to; the last line is what stays free.
    reductions: one line for each size that was asked for and does not fit.
    """

    limits: EngineLimits
    kv_dtype: str
    activations: str
    threads: int
    level: str
    provider_order: tuple[str, ...] | None
    disabled_kernels: tuple[str, ...]
    decisions: Mapping[str, Decision]
    memory: tuple[MemoryLine, ...]
    usable_bytes: int
    reductions: tuple[str, ...]


def resolve(settings: Settings, model: ModelFacts, platform: PlatformFacts) -> Plan:
    """Decides everything. Reductions are logged as warnings and kept in the plan.

    Raises MemoryPlanError if the model does not fit, or under `strict` if a size does not; UsageError on an unknown
    or unusable level.
    """
    return _Resolver(settings, model, platform).plan()


class _Resolver:
    """Decides in the order in which sizes depend on each other: step, pool, context, sequences."""

    def __init__(self, settings: Settings, model: ModelFacts, platform: PlatformFacts) -> None:
        self.settings = settings.engine
        self.sources = settings.sources
        self.model = model
        self.platform = platform
        self.decisions: dict[str, Decision] = {}
        self.reductions: list[str] = []

    def plan(self) -> Plan:
        asked = self.settings
        level = self._level()
        threads = self._threads()
        kv_dtype = self._kv_dtype()
        if asked.provider_order is None:
            self._derive("provider_order", None, "the platform's own order")
        else:
            self._keep("provider_order")
        for name in ("activations", "disabled_kernels", "prefix_cache", "strict"):
            self._keep(name)

        self.groups = self.model.cache_groups[kv_dtype]
        self.slab_bytes = choose_slab_bytes(self.groups)
        batched_tokens = self._batched_tokens()
        room = self._room_for_cache(batched_tokens)
        max_model_len = self._max_model_len(room, batched_tokens)
        self._rotary(max_model_len)
        max_num_seqs = self._sequences_wanted(batched_tokens)
        kv_cache_bytes = self._kv_cache_bytes(room, max_model_len, max_num_seqs, batched_tokens)
        max_num_seqs = self._max_num_seqs(max_num_seqs, kv_cache_bytes, max_model_len, batched_tokens)
        limits = EngineLimits(
            max_model_len,
            max_num_seqs,
            batched_tokens,
            kv_cache_bytes,
            self.slab_bytes,
            self.model.vocab_size,
            self._step_costs(level),
            asked.prefix_cache,
            *self._checkpoints(kv_cache_bytes),
        )
        for line in self.reductions:
            logger.warning("%s", line)
        return Plan(
            limits=limits,
            kv_dtype=kv_dtype,
            activations=asked.activations,
            threads=threads,
            level=level,
            provider_order=asked.provider_order,
            disabled_kernels=asked.disabled_kernels,
            decisions=self.decisions,
            memory=self._memory_table(batched_tokens, kv_cache_bytes),
            usable_bytes=self.platform.usable_bytes,
            reductions=tuple(self.reductions),
        )

    # Decisions that no size depends on.

    def _level(self) -> str:
        levels = self.platform.levels
        usable = [name for name, reason in levels.items() if reason is None]
        asked = self.settings.level
        if asked is None:
            better = list(levels.items())[: list(levels).index(usable[0])]
            passed_over = "".join(f"; {name}: {reason}" for name, reason in better)
            return str(self._derive("level", usable[0], f"the best that is usable{passed_over}"))
        if asked not in levels:
            raise UsageError(f"`level` is `{asked}`, which this platform does not have", f"it has: {', '.join(levels)}")
        if levels[asked] is not None:
            raise UsageError(
                f"`level` is `{asked}`, which can't be used here: {levels[asked]}", f"usable are: {', '.join(usable)}"
            )
        return str(self._keep("level"))

    def _threads(self) -> int:
        asked = self.settings.threads
        facts = self.platform
        if asked is None:
            return int(self._derive("threads", facts.num_threads, facts.threads_reason))
        if asked > facts.max_threads:
            return self._adjust("threads", asked, facts.max_threads, f"only {facts.max_threads} can run at once")
        return int(self._keep("threads"))

    def _kv_dtype(self) -> str:
        if self.settings.kv_dtype == "auto":
            return str(self._derive("kv_dtype", "bf16", "the range of f32 in half its memory"))
        return str(self._keep("kv_dtype"))

    # Sizes.

    def _batched_tokens(self) -> int:
        asked = self.settings.max_num_batched_tokens
        wanted = asked or max(DEFAULT_BATCHED_TOKENS, self.settings.max_num_seqs or 0)
        # A step may take a quarter of what the weights leave, so that the cache gets most of it.
        most = (self._after_weights() // 4 - self.model.step_bytes) // max(1, self.model.step_bytes_per_token)
        value = max(1, min(wanted, most))
        if value < wanted:
            each = format_bytes(self.model.step_bytes_per_token)
            why = f"each takes {each} of buffers, which may have a quarter of what the weights leave"
            return self._adjust("max_num_batched_tokens", wanted, value, why, is_auto=asked is None)
        if asked is not None:
            return int(self._keep("max_num_batched_tokens"))
        reason = "rows enough to be bound by arithmetic rather than by reading weights"
        if value > DEFAULT_BATCHED_TOKENS:
            reason = "one token of each of `max_num_seqs` sequences"
        return int(self._derive("max_num_batched_tokens", value, reason))

    def _room_for_cache(self, batched_tokens: int) -> int:
        """Bytes left for the pool, in whole slabs. Raises MemoryPlanError if that is not enough for any answer."""
        room = max(0, self._after_weights() - self._step_bytes(batched_tokens))
        room = min(room, MAX_POOL_BYTES) // self.slab_bytes * self.slab_bytes
        least = min(_LEAST_CONTEXT, self.model.max_position, self.settings.max_model_len or _LEAST_CONTEXT)
        needed = self._cache_bytes(least, batched_tokens)
        if room < needed:
            facts, weights = self.platform, self._weight_bytes()
            total = weights + self._step_bytes(batched_tokens) + needed + self._headroom()
            other = total - weights
            raise MemoryPlanError(
                f"`{self.model.name}` needs {format_bytes(total)}: {format_bytes(weights)} of weights, "
                f"{format_bytes(self._step_bytes(batched_tokens))} for a step of `{batched_tokens}` tokens, "
                f"{format_bytes(needed)} of cache for the least context, `{least}` tokens, and "
                f"{format_bytes(self._headroom())} to spare; "
                f"{format_bytes(facts.usable_bytes)} are {facts.usable_reason}",
                f"free {format_bytes(total - facts.usable_bytes)} more, or take a model or quantisation with at most "
                f"{format_bytes(max(0, facts.usable_bytes - other))} of weights",
            )
        return room

    def _max_model_len(self, room: int, batched_tokens: int) -> int:
        asked, most = self.settings.max_model_len, self.model.max_position
        if asked is not None:
            most = self.model.stretched_position or most
        wanted = min(asked or most, most)
        given = self.settings.kv_cache_bytes
        pool_bytes = room if given is None else min(room, max(given, self._cache_bytes(BLOCK_TOKENS, batched_tokens)))
        fits = max_tokens_in(self.groups, self.slab_bytes, pool_bytes // self.slab_bytes, batched_tokens)
        value = min(wanted, fits)
        if value < wanted:
            why = f"{format_bytes(pool_bytes)} of cache hold one sequence of {fits} tokens"
            return self._adjust("max_model_len", asked or most, value, why, is_auto=asked is None)
        if asked is not None and asked > most:
            return self._adjust("max_model_len", asked, most, f"the model was made for {most}")
        if asked is not None:
            return int(self._keep("max_model_len"))
        return int(self._derive("max_model_len", value, "what the model was made for"))

    def _rotary(self, max_model_len: int) -> None:
        """Says which angles a model with several has. They are the same for all sequences, short ones too: what is
        kept of a text would be wrong if they changed as it grows."""
        trained = self.model.trained_position
        if trained is None:
            return
        if max_model_len > trained:
            why = f"`max_model_len` is above {trained}; `--max-model-len {trained}` gives the angles of short texts"
            self._derive("rotary", "long", why)
        else:
            self._derive("rotary", "short", f"`max_model_len` is not above {trained}")

    def _sequences_wanted(self, batched_tokens: int) -> int:
        return min(self.settings.max_num_seqs or DEFAULT_MAX_NUM_SEQS, batched_tokens)

    def _kv_cache_bytes(self, room: int, max_model_len: int, max_num_seqs: int, batched_tokens: int) -> int:
        one = self._cache_bytes(max_model_len, batched_tokens)
        asked = self.settings.kv_cache_bytes
        if asked is None:
            each = min(max_model_len, _CACHED_PER_SEQUENCE)
            many = max_num_seqs * self._cache_bytes(each, batched_tokens)
            half = room // 2 // self.slab_bytes * self.slab_bytes
            value, reason = min(
                (many, f"room for {max_num_seqs} sequences of {each} tokens"),
                (half, "half of what is left"),
            )
            if value < one:
                value, reason = one, f"one sequence of {max_model_len} tokens"
            return int(self._derive("kv_cache_bytes", value, reason))
        if asked > room:
            return self._adjust("kv_cache_bytes", asked, room, "it is all that weights and step leave")
        if asked < one:
            return self._adjust("kv_cache_bytes", asked, one, "the least that holds one sequence")
        value = asked // self.slab_bytes * self.slab_bytes
        return int(self._keep("kv_cache_bytes", value, f"as asked, in whole slabs of {self.slab_bytes} bytes"))

    def _max_num_seqs(self, wanted: int, kv_cache_bytes: int, max_model_len: int, batched_tokens: int) -> int:
        asked = self.settings.max_num_seqs
        if asked is None:
            each = min(max_model_len, _TOKENS_PER_SEQUENCE)
            sequence = sum(group.block_bytes * peak_blocks(group, each, batched_tokens) for group in self.groups)
            fits = kv_cache_bytes // sequence
            reason = f"the cache holds {fits} of {each} tokens; at most {wanted} unless asked for"
            return int(self._derive("max_num_seqs", max(1, min(wanted, fits)), reason))
        least = sum(group.block_bytes * peak_blocks(group, 1, batched_tokens) for group in self.groups)
        fits = max(1, kv_cache_bytes // least)
        if fits < asked:
            return self._adjust("max_num_seqs", asked, min(fits, wanted), f"the cache has {fits} blocks of tokens")
        if wanted < asked:
            return self._adjust("max_num_seqs", asked, wanted, f"a step computes {batched_tokens} tokens")
        return int(self._keep("max_num_seqs"))

    def _checkpoints(self, kv_cache_bytes: int) -> tuple[int, int]:
        """(tokens between two states of recurrent layers that are kept, what unused ones may take)."""
        states = sum(group.block_bytes * group.num_states for group in self.groups)
        asked = self.settings
        if not states or not asked.prefix_cache:
            why = "the model has no recurrent layers" if not states else "`prefix_cache` is off"
            for name, value in (("checkpoint_tokens", DEFAULT_CHECKPOINT_TOKENS), ("checkpoint_bytes", kv_cache_bytes)):
                self._derive(name, value, f"without effect: {why}")
            return DEFAULT_CHECKPOINT_TOKENS, kv_cache_bytes
        if asked.checkpoint_tokens is None:
            each = sum(group.block_bytes for group in self.groups if group.kind == "full")
            fair = blocks_for(-(-states * BLOCK_TOKENS // each)) * BLOCK_TOKENS if each else DEFAULT_CHECKPOINT_TOKENS
            value = max(_LEAST_CHECKPOINT_TOKENS, fair)
            reason = f"one takes {format_bytes(states)}, as keys and values of {fair} tokens do"
            tokens = int(self._derive("checkpoint_tokens", value, reason))
        else:
            value = blocks_for(asked.checkpoint_tokens) * BLOCK_TOKENS
            tokens = int(self._keep("checkpoint_tokens", value, f"as asked, in whole blocks of {BLOCK_TOKENS}"))
        if asked.checkpoint_bytes is None:
            half = kv_cache_bytes // 2
            reason = f"half of the cache: {max(1, half // states)} states of {format_bytes(states)}"
            return tokens, int(self._derive("checkpoint_bytes", half, reason))
        return tokens, int(self._keep("checkpoint_bytes"))

    def _step_costs(self, level: str) -> StepCosts:
        """How far prefills may hold up decodes: from how many rows' products take as long as reading the weights."""
        model, platform = self.model, self.platform
        read_rows = self._weight_bytes() * platform.products_per_byte[level] / model.products_per_token
        half_position = model.products_per_token / max(1.0, model.attention_per_position * platform.attention_cost)
        costs = StepCosts(read_rows, half_position)
        allowance = costs.prefill_allowance(costs.row(0))
        first, late = (int(allowance / costs.row(position)) for position in (0, _LATE_POSITION))
        self._derive(
            "prefill_beside_decode",
            max(1, first),
            f"a step takes at most {MAX_STRETCH:g}x one stream's decode ({read_rows + 1:.0f} rows); "
            f"{max(1, late)} at position {_LATE_POSITION}",
        )
        return costs

    # Arithmetic.

    def _weight_bytes(self) -> int:
        return sum(self.model.weight_bytes.values())

    def _headroom(self) -> int:
        """For Python, the tokenizer, the allocator and neighbours: a twentieth, from 128 MiB to 1 GiB."""
        return max(128 * _MIB, min(1024 * _MIB, self.platform.usable_bytes // 20))

    def _after_weights(self) -> int:
        return self.platform.usable_bytes - self._headroom() - self._weight_bytes()

    def _step_bytes(self, batched_tokens: int) -> int:
        return self.model.step_bytes + batched_tokens * self.model.step_bytes_per_token

    def _cache_bytes(self, num_tokens: int, batched_tokens: int) -> int:
        """What one sequence needs, in whole slabs."""
        return peak_slabs(self.groups, self.slab_bytes, num_tokens, batched_tokens) * self.slab_bytes

    def _memory_table(self, batched_tokens: int, kv_cache_bytes: int) -> tuple[MemoryLine, ...]:
        lines = [
            MemoryLine(f"weights {name}", nbytes, "packed")
            for name, nbytes in sorted(self.model.weight_bytes.items(), key=lambda item: -item[1])
        ]
        per_token = ", ".join(
            f"{format_bytes(group.block_bytes * group.num_states)} per sequence"
            if group.num_states
            else f"{format_bytes(group.block_bytes // BLOCK_TOKENS)} per token"
            + (f" of the last {group.window}" if group.window else "")
            for group in self.groups
        )
        lines.append(MemoryLine("KV cache", kv_cache_bytes, per_token))
        step_bytes = self._step_bytes(batched_tokens)
        lines.append(MemoryLine("step", step_bytes, f"buffers of {batched_tokens} tokens, a tile of logits"))
        lines.append(MemoryLine("headroom", self._headroom(), "Python, tokenizer, neighbours"))
        free = self.platform.usable_bytes - sum(line.nbytes for line in lines)
        return (*lines, MemoryLine("free", free, f"of {format_bytes(self.platform.usable_bytes)}"))

    # Records.

    def _derive(self, name: str, value: Any, reason: str) -> Any:
        self.decisions[name] = Decision(name, value, "derived", reason)
        return value

    def _keep(self, name: str, value: Any = None, reason: str | None = None) -> Any:
        """The setting as it was given."""
        source = self.sources[name]
        value = getattr(self.settings, name) if value is None else value
        default_reason = "unless asked otherwise" if source == "default" else "as asked"
        self.decisions[name] = Decision(name, value, source, reason or default_reason)
        return value

    def _adjust(self, name: str, asked: int, fitting: int, why: str, *, is_auto: bool = False) -> int:
        """A size that does not fit. is_auto: nobody asked for it, so `strict` has nothing against another."""
        if self.settings.strict and not is_auto:
            flag = "--" + name.replace("_", "-")
            raise MemoryPlanError(f"`{name}` is `{asked}`; what fits is `{fitting}`: {why}", f"`{flag} {fitting}` fits")
        self.reductions.append(f"{name} {asked} -> {fitting}: {why}")
        return int(self._derive(name, fitting, f"{fitting} of {asked}: {why}"))
