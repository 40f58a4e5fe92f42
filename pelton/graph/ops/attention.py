"""Rotary positions, the write of keys and values to the cache, and causal attention over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from pelton.graph.graph import TOKENS, CacheLayer, Shape, StateLayer, Value, columns, is_matrix
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.step import StepContext


class Rotary(Protocol):
    """See RotarySpec in models/spec.py."""

    @property
    def dim(self) -> int: ...
    @property
    def inv_freq(self) -> tuple[float, ...]: ...
    @property
    def attention_factor(self) -> float: ...


def rope(x: Value, positions: Value, *, heads: int, head_dim: int, rotary: Rotary, name: str) -> Value:
    """Turns the first `rotary.dim` dimensions of each head by position (arXiv:2104.09864), rotate-half pairing.

    x: [tokens, heads * head_dim]. positions: [tokens] int32. Returns the shape of x.
    """
    attributes = {
        "heads": heads,
        "head_dim": head_dim,
        "inv_freq": tuple(rotary.inv_freq),
        "attention_factor": rotary.attention_factor,
    }
    assert rotary.dim == 2 * len(rotary.inv_freq), f"{name}: {len(rotary.inv_freq)} frequencies for {rotary.dim} dims"
    return x.graph.record(OPS["rope"], name, (x, positions), attributes).output


def attention(
    q: Value, k: Value, v: Value, *, cache: CacheLayer, num_heads: int, scale: float, window: int | None, name: str
) -> Value:
    """Writes k and v to the cache, then softmax(scale * q·K, causal) V over everything cached of each sequence.

    q: [tokens, num_heads * head_dim]. k, v: [tokens, num_kv_heads * head_dim], as they are to be cached: rounded to the
    cache's dtype before they are used. Query head h reads KV head h // (num_heads / num_kv_heads).
    window: tokens seen, the query's own included; None sees all. Returns the shape of q.
    """
    q.graph.record(OPS["cache_write"], f"{name}.cache_write", (k, v), {"cache": cache})
    attributes = {"cache": cache, "num_heads": num_heads, "scale": scale, "window": window}
    return q.graph.record(OPS["attention"], name, (q,), attributes).output


class Rope(Op):
    name = "rope"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        x, positions = inputs
        heads, head_dim = attributes["heads"], attributes["head_dim"]
        assert is_matrix(x), f"{x.name} is not a matrix"
        assert columns(x) == heads * head_dim, f"{x.name} has not {heads} heads of {head_dim}"
        assert positions.shape == x.shape[:1], f"{positions.name} has not one position per row of {x.name}"
        assert 2 * len(attributes["inv_freq"]) <= head_dim, f"{x.name}: more rotated dimensions than {head_dim}"
        return [(x.shape, "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        x, positions = inputs
        half = len(attributes["inv_freq"])
        cos, sin = self._angles(torch, positions, attributes)
        parts = x.reshape(x.shape[0], attributes["heads"], attributes["head_dim"])
        first, second, rest = parts[..., :half], parts[..., half : 2 * half], parts[..., 2 * half :]
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
        return (turned.reshape(x.shape),)

    def _angles(self, torch: Any, positions: Any, attributes: dict[str, Any]) -> tuple[Any, Any]:
        """cos and sin, [tokens, 1, dim / 2]: of the float32 product position * inv_freq, which is part of the meaning
        (models are trained with it), taken to float64."""
        inv_freq = torch.tensor(attributes["inv_freq"], dtype=torch.float32)
        angle = (positions.to(torch.float32)[:, None, None] * inv_freq).to(torch.float64)
        return angle.cos() * attributes["attention_factor"], angle.sin() * attributes["attention_factor"]

    def examples(self) -> Iterator[Example]:
        for heads, head_dim, dim, factor in ((3, 64, 64, 1.0), (1, 256, 256, 1.0), (2, 80, 32, 1.0), (2, 20, 20, 1.25)):
            yield Example(
                name=f"heads{heads}_dim{head_dim}_rotated{dim}",
                inputs=(ExampleInput("values", (heads * head_dim,)), ExampleInput("positions")),
                attributes={
                    "heads": heads,
                    "head_dim": head_dim,
                    "inv_freq": tuple(10000.0 ** (-2 * index / dim) for index in range(dim // 2)),
                    "attention_factor": factor,
                },
                sequences=((3, 0), (1, 8191), (2, 130)),
            )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """Two products and a sum of numbers no larger than |first| + |second|, with cos and sin right to 4 roundings
        of one (and of the factor): 8 in all. The rest passes through unchanged."""
        x, _ = inputs
        half = len(attributes["inv_freq"])
        parts = x.abs().reshape(x.shape[0], attributes["heads"], attributes["head_dim"])
        both = parts[..., :half] + parts[..., half : 2 * half]
        bound = torch.cat((both, both, torch.zeros_like(parts[..., 2 * half :])), dim=-1).reshape(x.shape)
        return (bound * (8 * attributes["attention_factor"] * FLOAT32_EPSILON),)


class CacheWrite(Op):
    """Has no output: its effect is on the cache, and the order of nodes is the order of effects."""

    name = "cache_write"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        cache: CacheLayer = attributes["cache"]
        for value in inputs:
            expected = (TOKENS, cache.num_kv_heads * cache.head_dim)
            assert value.shape == expected, f"{value.name} is {value.shape}, the cache holds {expected}"
        return []

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        cache: CacheLayer = attributes["cache"]
        keys, values = (x.reshape(x.shape[0], cache.num_kv_heads, cache.head_dim) for x in inputs)
        for index, sequence in enumerate(step.sequences):
            step.cache.write(cache, index, sequence.context, keys[sequence.rows], values[sequence.rows])
        return ()

    def examples(self) -> Iterator[Example]:
        for kv_heads, head_dim in ((1, 64), (3, 20)):
            cache = CacheLayer(0, 0, kv_heads, head_dim)
            kv = ExampleInput("values", (kv_heads * head_dim,))
            yield Example(
                name=f"kv_heads{kv_heads}_dim{head_dim}",
                inputs=(kv, kv),
                attributes={"cache": cache},
                sequences=((1, 0), (5, 14), (1, 31)),
                cache=cache,
            )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        return ()


class Attention(Op):
    name = "attention"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        (q,) = inputs
        cache: CacheLayer = attributes["cache"]
        heads = attributes["num_heads"]
        assert q.shape == (TOKENS, heads * cache.head_dim), f"{q.name} has not {heads} heads of {cache.head_dim}"
        assert heads % cache.num_kv_heads == 0, f"{heads} heads don't divide among {cache.num_kv_heads} KV heads"
        window = attributes["window"]
        assert window is None or window >= 1, f"{q.name}: a window of {window}"
        assert window == q.graph.cache_groups[cache.group].window, f"{q.name}: window {window} is not its group's"
        return [(q.shape, "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        (q,) = inputs
        outputs = []
        for index, sequence in enumerate(step.sequences):
            scores, values = self._scores(torch, step, index, q[sequence.rows], attributes)
            outputs.append(torch.einsum("hqt,thd->qhd", scores.softmax(dim=-1), values))
        return (torch.cat(outputs).reshape(q.shape),)

    def position_products(self, *inputs: Value, **attributes: Any) -> int:
        """One with the key and one with the value, in each dimension of each head."""
        return int(2 * attributes["num_heads"] * attributes["cache"].head_dim)

    def _scores(self, torch: Any, step: StepContext, index: int, q: Any, attributes: dict[str, Any]) -> tuple[Any, Any]:
        """Masked scores [heads, rows, cached tokens] and values [cached tokens, heads, head_dim] of one sequence."""
        cache: CacheLayer = attributes["cache"]
        sequence = step.sequences[index]
        num_tokens = sequence.context + sequence.num_rows
        repeats = attributes["num_heads"] // cache.num_kv_heads
        keys, values = (
            part.to(q.dtype).repeat_interleave(repeats, dim=1) for part in step.cache.read(cache, index, num_tokens)
        )
        queries = q.reshape(sequence.num_rows, attributes["num_heads"], cache.head_dim)
        scores = torch.einsum("qhd,thd->hqt", queries, keys) * attributes["scale"]
        own = torch.arange(sequence.context, num_tokens)[:, None]
        other = torch.arange(num_tokens)[None, :]
        visible = other <= own
        if attributes["window"] is not None:
            visible &= other > own - attributes["window"]
        return scores.masked_fill(~visible, float("-inf")), values

    def examples(self) -> Iterator[Example]:
        shapes = ((3, 1, 64, None), (4, 4, 32, None), (4, 1, 256, 7), (9, 3, 64, 40), (2, 1, 20, None))
        for heads, kv_heads, head_dim, window in shapes:
            cache = CacheLayer(0, 0, kv_heads, head_dim)
            yield Example(
                name=f"heads{heads}_kv_heads{kv_heads}_dim{head_dim}_window{window}",
                inputs=(ExampleInput("values", (heads * head_dim,), 2.0),),
                attributes={"cache": cache, "num_heads": heads, "scale": head_dim**-0.5, "window": window},
                sequences=((1, 0), (5, 14), (1, 300), (17, 0), (2, 511)),
                cache=cache,
            )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """A score is off by (head_dim + 3) roundings of scale * sum |q||k|; exp turns the largest such error of a row
        into a relative one of every weight, twice (numerator and sum). Exponent, sum and product over T tokens add
        T + 16 roundings of sum p|v|, merged splits included."""
        (q,) = inputs
        head_dim = attributes["cache"].head_dim
        bounds = []
        for index, sequence in enumerate(step.sequences):
            rows = q[sequence.rows]
            scores, values = self._scores(torch, step, index, rows, attributes)
            magnitude, _ = self._scores(torch, _Magnitude.of(step), index, rows.abs(), attributes)
            error = 2 * (head_dim + 3) * magnitude.amax(dim=-1).transpose(0, 1)[..., None]
            weighted = torch.einsum("hqt,thd->qhd", scores.softmax(dim=-1), values.abs())
            bounds.append(weighted * (error + scores.shape[-1] + 16))
        return (torch.cat(bounds).reshape(q.shape) * FLOAT32_EPSILON,)


class _Magnitude:
    """The same cache with absolute values, for error bounds."""

    def __init__(self, step: StepContext) -> None:
        self._cache = step.cache

    @classmethod
    def of(cls, step: StepContext) -> StepContext:
        return StepContext(step.sequences, cls(step))

    def write(self, layer: CacheLayer, sequence: int, context: int, keys: Any, values: Any) -> None:
        raise AssertionError("an error bound writes nothing")

    def read(self, layer: CacheLayer, sequence: int, num_tokens: int) -> tuple[Any, Any]:
        keys, values = self._cache.read(layer, sequence, num_tokens)
        return keys.abs(), values.abs()

    def read_state(self, layer: StateLayer, sequence: int) -> Any:
        raise AssertionError("attention has no state")

    def write_state(self, layer: StateLayer, sequence: int, state: Any) -> None:
        raise AssertionError("an error bound writes nothing")
