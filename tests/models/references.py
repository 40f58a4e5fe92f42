"""A checkpoint run by its ops' references on tensors, if wanted with rounded activations: the noise that is allowed.

The model file and the weights are Pelton's own here, so that nothing of these logits says whether they are right; but
their difference, with and without a rounding, says what that rounding costs in this very model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pelton.graph.kernel import CompileSettings, Group, Kernel
from pelton.graph.op import OPS
from pelton.graph.program import compile
from pelton.graph.step import StepContext
from pelton.platforms.torch import TorchPlatform
from pelton.platforms.torch.kernels import ReferenceKernel, ReferenceProvider
from pelton.platforms.torch.program import TorchProgram
from pelton.quant.detect import scheme_of
from pelton.runner.assembly import PreparedModel
from pelton.weights.load import Piece, Source
from tests.platforms.steps import one_sequence

Array = np.ndarray[Any, Any]
Rounding = Callable[[Any], Any]

_POOL_BYTES = 1 << 26
_KV_DTYPES = {torch.float32: "f32", torch.float64: "f64"}


def exact_activations(x: Any) -> Any:
    """As the exact mode quantises what products with integer formats read."""
    (values,) = OPS["quantise"].reference(torch, StepContext((), None), x, mode="exact")  # type: ignore[arg-type]
    return values


def float16_activations(x: Any) -> Any:
    return x.to(torch.float16).to(x.dtype)


def noise(prepared: PreparedModel, token_ids: Sequence[int], rounding: Rounding | None = None) -> Array:
    """[tokens, vocab]: what logits in float32, with what products read rounded as given, differ from those in float64
    without."""
    rounded = reference_logits(prepared, token_ids, torch.float32, rounding)
    return rounded - reference_logits(prepared, token_ids, torch.float64)


def reference_logits(
    prepared: PreparedModel, token_ids: Sequence[int], dtype: torch.dtype, rounding: Rounding | None = None
) -> Array:
    """[tokens, vocab] in float64, computed in `dtype`."""
    settings = CompileSettings(
        formats={name: source.format for name, source in prepared.resolution.sources.items()},
        max_tokens=len(token_ids),
        max_context=len(token_ids),
        kv_dtype=_KV_DTYPES[dtype],
    )
    compiled = compile(prepared.graph, _Platform(dtype, rounding), settings)
    parameters = {
        name: torch.from_numpy(_values(source)).to(dtype) for name, source in prepared.resolution.sources.items()
    }
    program = TorchProgram(compiled, parameters, _POOL_BYTES)
    step = {**one_sequence(compiled, token_ids), "logit_rows": range(len(token_ids))}
    logits = program.run(**step)[prepared.graph.outputs["logits"].name]
    return np.asarray(logits.double().numpy())


def _values(source: Source) -> Array:
    """float32, as the parameter is meant."""
    values = np.concatenate([_rows(piece) for piece in source.pieces])
    values = values * np.float32(source.factor)
    return values + np.float32(1) if source.add_one else values


def _rows(piece: Piece) -> Array:
    tensor = piece.tensor
    raw = np.fromfile(tensor.file, np.uint8, tensor.nbytes, offset=tensor.offset)
    k = tensor.shape[-1]
    values = scheme_of(tensor.format, tensor.name).unpack(np, raw, int(np.prod(tensor.shape)) // k, k)
    values = np.asarray(values).reshape(-1) if len(tensor.shape) == 1 else np.asarray(values).reshape(-1, k)
    if piece.row_order is not None:
        rows = values if piece.num_rows <= len(values) else values.reshape(-1)  # a vector out of a matrix
        return np.asarray(rows[list(piece.row_order)])
    return np.asarray(values[piece.tensor_row : piece.tensor_row + piece.num_rows])


class _Platform(TorchPlatform):
    def __init__(self, dtype: torch.dtype, rounding: Rounding | None) -> None:
        super().__init__(dtype)
        if rounding is not None:
            self._providers = (_Provider(rounding),)


class _Provider(ReferenceProvider):
    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self._linear = _RoundedLinear(self.name, rounding)

    def kernel(self, kind: str) -> Kernel | None:
        return self._linear if kind == "linear" else super().kernel(kind)


class _RoundedLinear(ReferenceKernel):
    def __init__(self, provider: str, rounding: Rounding) -> None:
        super().__init__(provider, "linear")
        self._rounding = rounding

    def run(self, group: Group, step: StepContext, inputs: Sequence[Any]) -> tuple[Any, ...]:
        x, *parameters = inputs
        return super().run(group, step, [self._rounding(x), *parameters])
