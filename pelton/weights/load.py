"""From a checkpoint to packed parameters, strictly: every tensor has one use or a reason, every parameter one source.

`resolve` reads no weights and decides everything that can fail by name or shape; `load` moves the bytes. Knows neither
graphs nor kernels: a program says as `PackRequest`s where it wants what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

import msgspec

from pelton import _native
from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.quant.detect import OTHER_FORMATS, scheme_of
from pelton.weights.checkpoint import Checkpoint, TensorInfo, unreadable, vector_reader

NAMES_SHOWN = 5  # of a list of names in an error


class Binding(Protocol):
    """Which tensor fills which parameter (pelton.models.architecture.Binding).

    row_order: row i of the parameter is row row_order[i] of the tensor. add_one: 1 is added to each value (vectors).
    """

    @property
    def parameter(self) -> str: ...
    @property
    def tensor(self) -> str: ...
    @property
    def row_order(self) -> tuple[int, ...] | None: ...
    @property
    def add_one(self) -> bool: ...


class Ignored(Protocol):
    """Tensors that this run does not need (pelton.models.architecture.Ignored). pattern: as fnmatch, case matters."""

    @property
    def pattern(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Source(msgspec.Struct, frozen=True):
    """Where one parameter comes from, checked against its shape."""

    parameter: str
    tensor: TensorInfo
    row_order: tuple[int, ...] | None
    add_one: bool


class Resolution(msgspec.Struct, frozen=True):
    """A checkpoint's tensors told apart. sources: by parameter. ignored: tensor -> reason."""

    sources: Mapping[str, Source]
    ignored: Mapping[str, str]


class PackRequest(msgspec.Struct, frozen=True):
    """One parameter's place in memory. A parameter may be wanted in several places.

    layout:  "panels": a matrix as `_native.WeightReads` packs it for its stored format, `_native.packed_bytes` bytes;
             "vector": [n] float32, consecutive.
    """

    parameter: str
    layout: str
    destination: _native.Buffer
    offset: int


def resolve(
    checkpoint: Checkpoint,
    bindings: Iterable[Binding],
    ignored: Iterable[Ignored],
    parameters: Mapping[str, tuple[int, ...]],
) -> Resolution:
    """Matches tensors with parameters (name -> logical shape), by headers only.

    Raises CheckpointError, which names the first few, if a parameter has no tensor or one of another shape, or if a
    tensor is neither used exactly once nor ignored.
    """
    sources: dict[str, Source] = {}
    used: dict[str, str] = {}
    absent: list[str] = []
    for binding in bindings:
        assert binding.parameter in parameters, f"a binding fills `{binding.parameter}`, which the model does not have"
        assert binding.parameter not in sources, f"two bindings fill `{binding.parameter}`"
        tensor = checkpoint.tensors.get(binding.tensor)
        if tensor is None:
            absent.append(binding.tensor)
            continue
        if tensor.name in used:
            raise CheckpointError(
                f"tensor `{tensor.name}` of `{checkpoint.path}` would fill both `{used[tensor.name]}` and "
                f"`{binding.parameter}`"
            )
        used[tensor.name] = binding.parameter
        sources[binding.parameter] = _source(checkpoint, binding, tensor, parameters[binding.parameter])
    reasons, left_over = _unused(checkpoint, used, ignored)
    unbound = [name for name in parameters if name not in sources]
    _check_complete(checkpoint, absent, unbound, left_over)
    return Resolution(sources, reasons)


def load(checkpoint: Checkpoint, resolution: Resolution, requests: Sequence[PackRequest], team: _native.Team) -> None:
    """Fills every place asked for: the team reads each file from front to back, and packs matrices as it reads.

    Raises CheckpointError if a file changed or ends too early.
    """
    wanted = {request.parameter for request in requests}
    unwanted = [name for name in resolution.sources if name not in wanted]
    assert not unwanted, f"no place was asked for {_listed(unwanted, 'parameter')}"
    work = [(resolution.sources[request.parameter], request) for request in requests]
    order = {file: index for index, file in enumerate(checkpoint.files)}
    work.sort(key=lambda item: (order[item[0].tensor.file], item[0].tensor.offset))
    reads = _native.WeightReads()
    with ExitStack() as files:
        fds: dict[Path, int] = {}
        for source, request in work:
            file = source.tensor.file
            if file not in fds:
                fds[file] = files.enter_context(checkpoint.open(file))
            _add(reads, fds[file], source, request)
        try:
            reads.run(team)
        except (EOFError, OSError) as error:
            assert reads.failed is not None, "a failed read names its tensor"
            raise unreadable(work[reads.failed][0].tensor, error) from error


def _source(checkpoint: Checkpoint, binding: Binding, tensor: TensorInfo, shape: tuple[int, ...]) -> Source:
    if tensor.shape != shape:
        raise CheckpointError(
            f"tensor `{tensor.name}` of `{checkpoint.path}` has shape {list(tensor.shape)}, but `{binding.parameter}` "
            f"needs {list(shape)}",
            hint="the model's metadata and its tensors disagree",
        )
    order = binding.row_order
    if order is not None:
        assert sorted(order) == list(range(shape[0])), f"row_order of `{binding.parameter}` is not a permutation"
    assert not binding.add_one or len(shape) == 1, f"add_one of `{binding.parameter}` is for vectors only"
    if len(shape) == 1:
        vector_reader(tensor)
    else:
        _check_packable(checkpoint, tensor)
    return Source(binding.parameter, tensor, order, binding.add_one)


def _check_packable(checkpoint: Checkpoint, tensor: TensorInfo) -> None:
    scheme_of(tensor.format, tensor.name)
    n, k = tensor.shape
    try:
        _native.packed_bytes(tensor.format, n, k)
    except ValueError as error:
        raise UnsupportedModelError(
            f"tensor `{tensor.name}` of `{checkpoint.path}` is stored as `{tensor.format}`: {error}",
            hint=OTHER_FORMATS,
        ) from error


def _unused(
    checkpoint: Checkpoint, used: Mapping[str, str], patterns: Iterable[Ignored]
) -> tuple[dict[str, str], list[str]]:
    """Tensors that nothing uses: with the reasons of those that are ignored, and those that have none. A pattern that
    also matches a used tensor does not undo the use."""
    known = list(patterns)
    reasons: dict[str, str] = {}
    left_over: list[str] = []
    for name in checkpoint.tensors:
        if name in used:
            continue
        reason = next((item.reason for item in known if fnmatchcase(name, item.pattern)), None)
        if reason is None:
            left_over.append(name)
        else:
            reasons[name] = reason
    return reasons, left_over


def _check_complete(
    checkpoint: Checkpoint, absent: Sequence[str], unbound: Sequence[str], left_over: Sequence[str]
) -> None:
    """absent: tensors that bindings name. unbound: parameters that none fills. left_over: tensors without a use."""
    complaints = []
    if absent or unbound:
        complaints.append(f"lacks {_listed(absent or unbound, 'tensor' if absent else 'parameter')}")
        hint = "the file is incomplete, or its metadata describes another model"
    if left_over:
        complaints.append(f"has {_listed(left_over, 'tensor')} that the model does not use")
        hint = "leaving them out would change answers; the architecture may be a variant that Pelton does not know"
    if len(complaints) == 2:
        hint = "its tensors may have other names than Pelton knows, or its metadata describes another model"
    if complaints:
        raise CheckpointError(f"`{checkpoint.path}` {' and '.join(complaints)}", hint)


def _listed(names: Sequence[str], noun: str) -> str:
    """ "3 tensors (`a`, `b`, `c`)"."""
    shown = ", ".join(f"`{name}`" for name in names[:NAMES_SHOWN])
    more = ", …" if len(names) > NAMES_SHOWN else ""
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({shown}{more})"


def _add(reads: _native.WeightReads, fd: int, source: Source, request: PackRequest) -> None:
    tensor, place = source.tensor, (request.destination, request.offset)
    if request.layout == "panels":
        n, k = tensor.shape
        reads.add_matrix(tensor.format, fd, tensor.offset, n, k, *place, source.row_order)
    else:
        assert request.layout == "vector", f"`{request.parameter}` is wanted as `{request.layout}`"
        (count,) = tensor.shape
        reads.add_vector(tensor.format, fd, tensor.offset, count, *place, source.row_order, source.add_one)
