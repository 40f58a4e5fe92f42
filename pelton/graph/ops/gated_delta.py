"""Gated DeltaNet (arXiv:2412.06464): a causal convolution, the gated delta rule over a recurrent state, a gated norm.

One operation, since nothing between its parts is of use to anyone else, and a layer's step is one pass over its state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pelton.graph.graph import TOKENS, Parameter, Shape, StateLayer, Value
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.step import StepContext

LANES = 16  # value columns that stand together in a state
L2_EPSILON = 1e-6  # part of the meaning: the reference's l2norm


class DeltaSizes(msgspec.Struct, frozen=True):
    """Of one layer; see GatedDeltaSpec in models/spec.py.

    has_log_decay: the decay parameter holds log(rate); otherwise it holds -rate.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    is_tiled: bool
    has_log_decay: bool

    @property
    def key_columns(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_columns(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_columns(self) -> int:
        """Of all queries, then all keys, then all values."""
        return 2 * self.key_columns + self.value_columns

    @property
    def head_channels(self) -> int:
        """What a value head sees of the convolution: its query, its key, its value."""
        return 2 * self.key_head_dim + self.value_head_dim

    @property
    def window_floats(self) -> int:
        return -(-(self.conv_kernel - 1) * self.head_channels // LANES) * LANES

    @property
    def num_stripes(self) -> int:
        return -(-self.value_head_dim // LANES)

    @property
    def head_floats(self) -> int:
        """Of one value head's state: the last conv_kernel - 1 inputs of its channels, oldest first, filled up to whole
        vectors; then the memory as stripes of 16 value columns, each [key_head_dim, 16]. So a head needs nothing of
        another one, and a stripe, a few KiB in a row, stays in the nearest cache while tokens pass."""
        return self.window_floats + self.num_stripes * self.key_head_dim * LANES

    @property
    def state_floats(self) -> int:
        return self.num_value_heads * self.head_floats

    def key_head(self, value_head: int) -> int:
        repeats = self.num_value_heads // self.num_key_heads
        return value_head % self.num_key_heads if self.is_tiled else value_head // repeats

    def channels(self, value_head: int) -> list[int]:
        """Columns of the convolution that this head sees."""
        key = self.key_head(value_head) * self.key_head_dim
        value = 2 * self.key_columns + value_head * self.value_head_dim
        return [
            *range(key, key + self.key_head_dim),
            *range(self.key_columns + key, self.key_columns + key + self.key_head_dim),
            *range(value, value + self.value_head_dim),
        ]


class DeltaParameters(msgspec.Struct, frozen=True):
    """conv: [conv_kernel * conv_columns], the taps one after the other, oldest first. decay, dt_bias: [value heads].
    norm: [value_head_dim]."""

    conv: Parameter
    decay: Parameter
    dt_bias: Parameter
    norm: Parameter


def gated_delta(
    mixed: Value,
    gate: Value,
    beta: Value,
    alpha: Value,
    parameters: DeltaParameters,
    *,
    sizes: DeltaSizes,
    state: StateLayer,
    eps: float,
    name: str,
) -> Value:
    """For each value head, with q, k, v = silu(causal convolution of mixed), q and k divided by their lengths:

        S = e^g S;  S = S + k (sigmoid(beta) (v - k S));  out = rms_norm(q S / sqrt(key_head_dim)) * silu(gate)

    with g = -rate * softplus(alpha + dt_bias). mixed: [tokens, conv_columns], queries, keys, values. gate: [tokens,
    value_columns]. beta, alpha: [tokens, value heads]. S is [key_head_dim, value_head_dim] of float32 and lives from
    step to step. Returns [tokens, value_columns].
    """
    inputs = (mixed, gate, beta, alpha, parameters.conv, parameters.decay, parameters.dt_bias, parameters.norm)
    return mixed.graph.record(OPS["gated_delta"], name, inputs, {"sizes": sizes, "state": state, "eps": eps}).output


class GatedDelta(Op):
    name = "gated_delta"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        sizes: DeltaSizes = attributes["sizes"]
        mixed, gate, beta, alpha, conv, decay, dt_bias, norm = inputs
        heads = sizes.num_value_heads
        expected = {
            mixed: (TOKENS, sizes.conv_columns),
            gate: (TOKENS, sizes.value_columns),
            beta: (TOKENS, heads),
            alpha: (TOKENS, heads),
            conv: (sizes.conv_kernel * sizes.conv_columns,),
            decay: (heads,),
            dt_bias: (heads,),
            norm: (sizes.value_head_dim,),
        }
        for value, shape in expected.items():
            assert value.shape == shape, f"{value.name} is {value.shape}, not {shape}"
        assert heads % sizes.num_key_heads == 0, f"{heads} value heads for {sizes.num_key_heads} key heads"
        assert attributes["state"].num_floats == sizes.state_floats, f"{mixed.name}: a state of another size"
        return [(gate.shape, "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        sizes: DeltaSizes = attributes["sizes"]
        mixed, gate, beta, alpha, *_, norm = inputs
        outputs = []
        for index, sequence in enumerate(step.sequences):
            rows = tuple(x[sequence.rows] for x in (mixed, gate, beta, alpha))
            before = _state_before(torch, step, index, mixed, attributes)
            run = _Run(torch, rows, inputs[4:], before, attributes)
            step.cache.write_state(attributes["state"], index, run.state_after)
            mean_square = run.mixed_out.square().mean(dim=-1, keepdim=True)
            normed = run.mixed_out * (mean_square + attributes["eps"]).rsqrt() * norm
            shaped = rows[1].reshape(normed.shape)
            outputs.append((normed * torch.nn.functional.silu(shaped)).reshape(-1, sizes.value_columns))
        return (torch.cat(outputs),)

    def examples(self) -> Iterator[Example]:
        shapes = (
            # key heads, value heads, key and value head dims, kernel, tiled, log decay
            (2, 2, 32, 32, 4, False, True),
            (2, 6, 16, 32, 4, False, True),
            (2, 4, 128, 128, 4, True, False),
            (1, 3, 20, 13, 3, True, True),
            (1, 1, 1, 1, 2, False, False),
        )
        for shape in shapes:
            sizes = DeltaSizes(*shape)
            yield self._example(sizes, "steps", ((1, 0), (5, 14), (1, 300), (37, 0), (2, 3)))
        yield self._example(DeltaSizes(2, 4, 64, 64, 4, True, False), "long", ((150, 0), (70, 20)))

    def _example(self, sizes: DeltaSizes, suffix: str, sequences: tuple[tuple[int, int], ...]) -> Example:
        state = StateLayer(0, 0, sizes.state_floats)
        heads = sizes.num_value_heads
        kind = "tiled" if sizes.is_tiled else "grouped"
        return Example(
            name=f"heads{sizes.num_key_heads}-{heads}_dims{sizes.key_head_dim}-{sizes.value_head_dim}_{kind}_{suffix}",
            inputs=(
                ExampleInput("values", (sizes.conv_columns,)),
                ExampleInput("values", (sizes.value_columns,), 2.0),
                ExampleInput("values", (heads,)),
                ExampleInput("values", (heads,), 3.0),
                ExampleInput("weight", (sizes.conv_kernel * sizes.conv_columns,), 0.5),
                ExampleInput("weight", (heads,), 1.0 if sizes.has_log_decay else 0.02),
                ExampleInput("weight", (heads,)),
                ExampleInput("weight", (sizes.value_head_dim,)),
            ),
            attributes={"sizes": sizes, "state": state, "eps": 1e-6},
            sequences=sequences,
            state=state,
        )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """See `_Run.output_error` for the recurrence. The norm passes an error e of its input x on as r e, r being its
        factor, and as r |x| times the relative error of r, at most r |e| / sqrt(n) and n / 2 + 8 roundings; silu adds
        16 of |gate|. The products of errors are left to the factor of two."""
        sizes: DeltaSizes = attributes["sizes"]
        mixed, gate, beta, alpha, *_, norm = inputs
        bounds = []
        for index, sequence in enumerate(step.sequences):
            rows = tuple(x[sequence.rows] for x in (mixed, gate, beta, alpha))
            before = _state_before(torch, step, index, mixed, attributes)
            run = _Run(torch, rows, inputs[4:], before, attributes)
            error = run.output_error
            inverse = (run.mixed_out.square().mean(dim=-1, keepdim=True) + attributes["eps"]).rsqrt()
            of_inverse = inverse * error.norm(dim=-1, keepdim=True) / sizes.value_head_dim**0.5
            roundings = (sizes.value_head_dim / 2 + 24) * FLOAT32_EPSILON
            scale = inverse * norm.abs() * rows[1].reshape(error.shape).abs()
            bounds.append(2 * scale * (error + run.mixed_out.abs() * (of_inverse + roundings)))
        return (torch.cat(bounds).reshape(gate.shape),)


def _state_before(torch: Any, step: StepContext, index: int, like: Any, attributes: Mapping[str, Any]) -> Any:
    """[state floats] of a sequence. A new one has seen zeros."""
    state: StateLayer = attributes["state"]
    if step.sequences[index].context == 0:
        return torch.zeros(state.num_floats, dtype=like.dtype)
    return step.cache.read_state(state, index).to(like.dtype)


class _Run:
    """The tokens of one sequence in a step, one after the other, in the dtype of the inputs.

    mixed_out:     [tokens, value heads, value_head_dim], before the norm.
    output_error:  the same shape: how far float32 may be from it.
    state_after:   [state floats].
    """

    def __init__(self, torch: Any, rows: Any, parameters: Any, before: Any, attributes: Mapping[str, Any]) -> None:
        self._sizes: DeltaSizes = attributes["sizes"]
        self._torch = torch
        mixed, _, beta, alpha = rows
        conv, decay, dt_bias, _ = parameters
        self._convolve(mixed, conv, before)
        rate = decay.exp() if self._sizes.has_log_decay else -decay
        shifted = alpha + dt_bias
        self._log_decay = -rate * torch.nn.functional.softplus(shifted)
        self._log_error = self._log_decay.abs() * 12 + rate.abs() * (alpha.abs() + dt_bias.abs())
        self._beta = torch.sigmoid(beta)
        self._recur(before)

    def _convolve(self, mixed: Any, conv: Any, before: Any) -> None:
        """Sets q, k, v [tokens, value heads, dim], their errors in roundings, and the inputs to keep."""
        torch, sizes = self._torch, self._sizes
        channels = torch.tensor([sizes.channels(head) for head in range(sizes.num_value_heads)])
        kept = sizes.conv_kernel - 1
        windows = before.reshape(sizes.num_value_heads, -1)[:, : kept * sizes.head_channels]
        old = windows.reshape(sizes.num_value_heads, kept, sizes.head_channels).transpose(0, 1)
        inputs = torch.cat((old, mixed[:, channels]))  # [kept + tokens, heads, channels]
        taps = conv.reshape(sizes.conv_kernel, -1)[:, channels]
        count = len(mixed)
        terms = [taps[tap] * inputs[tap : tap + count] for tap in range(sizes.conv_kernel)]
        parts = (sizes.key_head_dim, sizes.key_head_dim, sizes.value_head_dim)
        q, k, self._v = torch.nn.functional.silu(sum(terms)).split(parts, dim=-1)
        # 5 roundings of the sum, whose slope in silu is at most 1.1, and 16 of silu.
        errors = (sum(term.abs() for term in terms) * 24).split(parts, dim=-1)
        inverse = [(x.square().sum(dim=-1, keepdim=True) + L2_EPSILON).rsqrt() for x in (q, k)]
        self._q = q * inverse[0] * sizes.key_head_dim**-0.5
        self._k = k * inverse[1]
        self._q_error, self._k_error = (
            2 * error.norm(dim=-1, keepdim=True) * factor + sizes.key_head_dim / 2 + 10
            for error, factor in zip(errors, inverse, strict=False)
        )
        self._v_error = errors[2]
        self._window = inputs[count:].transpose(0, 1)

    def _recur(self, before: Any) -> None:
        """The delta rule, and beside it how far each column of S may be off, as the length of a vector: the rule only
        shrinks an error (|k| <= 1, beta <= 1), and each token adds its own."""
        torch, sizes = self._torch, self._sizes
        heads, stripes = sizes.num_value_heads, sizes.num_stripes
        memory = before.reshape(heads, -1)[:, sizes.window_floats :]
        memory = memory.reshape(heads, stripes, sizes.key_head_dim, LANES).transpose(1, 2)
        memory = memory.reshape(heads, sizes.key_head_dim, -1)[..., : sizes.value_head_dim]
        error = torch.zeros_like(memory[:, 0])
        outputs, errors = [], []
        sum_roundings = sizes.key_head_dim + 8
        for t in range(len(self._q)):
            q, k, v = self._q[t], self._k[t], self._v[t]
            beta, decay = self._beta[t][:, None], self._log_decay[t].exp()[:, None]
            length = memory.norm(dim=1)
            memory = memory * decay[..., None]
            change = beta * (v - torch.einsum("hk,hkv->hv", k, memory))
            memory = memory + k[..., None] * change[:, None]
            outputs.append(torch.einsum("hk,hkv->hv", q, memory))
            kept = decay * length
            fresh = beta * (kept + v.abs()) * (2 * self._k_error[t] + sum_roundings + 12) + beta * self._v_error[t]
            fresh = fresh + kept * (2 * self._log_error[t][:, None] + 12)
            error = decay * error + fresh * FLOAT32_EPSILON
            own = (self._q_error[t] + sum_roundings) * (kept + change.abs() + memory.norm(dim=1))
            errors.append(q.norm(dim=-1, keepdim=True) * (error + own * FLOAT32_EPSILON))
        self.mixed_out, self.output_error = torch.stack(outputs), torch.stack(errors)
        self.state_after = self._packed(memory)

    def _packed(self, memory: Any) -> Any:
        torch, sizes = self._torch, self._sizes
        heads, stripes = sizes.num_value_heads, sizes.num_stripes
        pad = torch.nn.functional.pad
        window = self._window.reshape(heads, -1)
        window = pad(window, (0, sizes.window_floats - window.shape[1]))
        wide = pad(memory, (0, stripes * LANES - sizes.value_head_dim))
        striped = wide.reshape(heads, sizes.key_head_dim, stripes, LANES).transpose(1, 2)
        return torch.cat((window, striped.reshape(heads, -1)), dim=1).reshape(-1)
