"""From a checkpoint to packed parameters, strictly: every tensor has one use or a reason, every parameter one source.

`resolve` reads no weights and decides everything that can fail by name or shape; `load` moves the bytes. Knows neither
graphs nor kernels: a program says as `PackRequest`s where it wants what.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
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
    """Which tensor, or which rows of it, fills which parameter, or which rows of that: see
    pelton.models.architecture.Binding, where each is explained."""

    @property
    def parameter(self) -> str: ...
    @property
    def tensor(self) -> str: ...
    @property
    def row_order(self) -> tuple[int, ...] | None: ...
    @property
    def add_one(self) -> bool: ...
    @property
    def factor(self) -> float: ...
    @property
    def tensor_row(self) -> int: ...
    @property
    def num_rows(self) -> int | None: ...
    @property
    def parameter_row(self) -> int: ...


class Ignored(Protocol):
    """Tensors that this run does not need (pelton.models.architecture.Ignored). pattern: as fnmatch, case matters."""

    @property
    def pattern(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Piece(msgspec.Struct, frozen=True):
    """Rows [tensor_row, tensor_row + num_rows) of a tensor, which are those of the parameter from parameter_row on.

    row_order: num_rows rows of the whole tensor in their place.
    """

    tensor: TensorInfo
    tensor_row: int
    num_rows: int
    parameter_row: int
    row_order: tuple[int, ...] | None


class Source(msgspec.Struct, frozen=True):
    """Where one parameter comes from, checked against its shape. pieces: in order of the parameter's rows, all stored
    in one format; one, unless it is put together."""

    parameter: str
    pieces: tuple[Piece, ...]
    add_one: bool
    factor: float

    @property
    def format(self) -> str:
        return self.pieces[0].tensor.format


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
    by_parameter: dict[str, list[Binding]] = {}
    for binding in bindings:
        assert binding.parameter in parameters, f"a binding fills `{binding.parameter}`, which the model does not have"
        by_parameter.setdefault(binding.parameter, []).append(binding)
    sources: dict[str, Source] = {}
    used: dict[str, list[tuple[str, Piece]]] = {}
    absent: list[str] = []
    for parameter, parts in by_parameter.items():
        missing = [part.tensor for part in parts if part.tensor not in checkpoint.tensors]
        if missing:
            absent += missing
            continue
        source = sources[parameter] = _source(checkpoint, parts, parameters[parameter])
        for piece in source.pieces:
            used.setdefault(piece.tensor.name, []).append((parameter, piece))
    for uses in used.values():
        _check_used_once(checkpoint, uses, math.prod(parameters[uses[0][0]][1:]))
    reasons, left_over = _unused(checkpoint, used, ignored)
    unbound = [name for name in parameters if name not in by_parameter]
    _check_complete(checkpoint, absent, unbound, left_over)
    return Resolution(sources, reasons)


def load(checkpoint: Checkpoint, resolution: Resolution, requests: Sequence[PackRequest], team: _native.Team) -> None:
    """Fills every place asked for: the team reads each file from front to back, and packs matrices as it reads.

    Raises CheckpointError if a file changed or ends too early.
    """
    wanted = {request.parameter for request in requests}
    unwanted = [name for name in resolution.sources if name not in wanted]
    assert not unwanted, f"no place was asked for {_listed(unwanted, 'parameter')}"
    work = [
        (source, piece, request)
        for request in requests
        for source in (resolution.sources[request.parameter],)
        for piece in source.pieces
    ]
    order = {file: index for index, file in enumerate(checkpoint.files)}
    work.sort(key=lambda item: (order[item[1].tensor.file], item[1].tensor.offset, item[1].tensor_row))
    reads = _native.WeightReads()
    with ExitStack() as files:
        fds: dict[Path, int] = {}
        for source, piece, request in work:
            file = piece.tensor.file
            if file not in fds:
                fds[file] = files.enter_context(checkpoint.open(file))
            _add(reads, fds[file], source, piece, request)
        try:
            reads.run(team)
        except (EOFError, OSError) as error:
            assert reads.failed is not None, "a failed read names its tensor"
            raise unreadable(work[reads.failed][1].tensor, error) from error


def _source(checkpoint: Checkpoint, parts: Sequence[Binding], shape: tuple[int, ...]) -> Source:
    parameter = parts[0].parameter
    places = [part.parameter_row for part in parts]
    assert len(set(places)) == len(places), f"two bindings fill `{parameter}`"
    pieces = tuple(_piece(checkpoint, part, shape) for part in sorted(parts, key=lambda part: part.parameter_row))
    rows = shape[0]
    ends = [0, *(piece.parameter_row + piece.num_rows for piece in pieces)]
    starts = [*(piece.parameter_row for piece in pieces), rows]
    if starts != ends:
        raise CheckpointError(
            f"the rows of {_listed([piece.tensor.name for piece in pieces], 'tensor')} of `{checkpoint.path}` do not "
            f"make up the `{rows}` of `{parameter}`",
            hint="the model's metadata and its tensors disagree",
        )
    formats = sorted({piece.tensor.format for piece in pieces})
    if len(formats) > 1:
        raise UnsupportedModelError(
            f"the tensors of `{checkpoint.path}` that make up `{parameter}` are stored as "
            f"{', '.join(f'`{name}`' for name in formats)}; they must be stored alike"
        )
    if len(shape) > 1 and any(row % _native.PANEL_ROWS for row in ends[:-1]):
        raise UnsupportedModelError(
            f"`{parameter}` of `{checkpoint.path}` is put together from pieces of {ends[1]} rows, "
            f"which are no multiple of {_native.PANEL_ROWS}"
        )
    add_one, factor = parts[0].add_one, parts[0].factor
    assert len(parts) == 1 or not any(part.row_order for part in parts), f"row_order of one piece of `{parameter}`"
    assert len(shape) == 1 or (not add_one and factor == 1.0), f"`{parameter}` is no vector to be changed"
    for piece in pieces:
        if len(shape) == 1:
            vector_reader(piece.tensor)
        else:
            _check_packable(checkpoint, piece.tensor, shape[-1])
    return Source(parameter, pieces, add_one, factor)


def _piece(checkpoint: Checkpoint, part: Binding, shape: tuple[int, ...]) -> Piece:
    """Raises CheckpointError if the tensor has other columns than the parameter, or fewer rows than are wanted of it.

    A tensor of three dimensions is one matrix after the other, so its rows are counted through."""
    tensor = checkpoint.tensors[part.tensor]
    rows = math.prod(tensor.shape[: len(tensor.shape) - len(shape) + 1])
    order = part.row_order
    num_rows = rows - part.tensor_row if part.num_rows is None else part.num_rows
    if order is not None:
        assert (part.tensor_row, part.num_rows) == (0, None), f"row_order of a part of `{part.tensor}`"
        assert len(set(order)) == len(order), f"row_order of `{part.parameter}` names a row twice"
        num_rows = len(order)
    starts_both = part.tensor_row == part.parameter_row == 0 and len(tensor.shape) == len(shape)
    whole = starts_both and part.num_rows is None and num_rows == rows
    is_fitting = tensor.shape == shape if whole else tensor.shape[len(tensor.shape) - len(shape) + 1 :] == shape[1:]
    end = part.tensor_row + num_rows if order is None else max(order) + 1
    if not is_fitting or num_rows < 1 or end > rows:
        wanted = list(shape) if part.num_rows is None and order is None else [end, *shape[1:]]
        raise CheckpointError(
            f"tensor `{tensor.name}` of `{checkpoint.path}` has shape {list(tensor.shape)}, but `{part.parameter}` "
            f"needs {wanted}",
            hint="the model's metadata and its tensors disagree",
        )
    return Piece(tensor, part.tensor_row, num_rows, part.parameter_row, order)


def _check_used_once(checkpoint: Checkpoint, uses: Sequence[tuple[str, Piece]], row_values: int) -> None:
    """uses: of one tensor, the parameters and what each reads. Raises CheckpointError if a row is read twice or not at
    all."""
    tensor = uses[0][1].tensor
    end, last = 0, ""
    for row, stop, parameter in sorted(_runs(uses), key=lambda run: run[0]):
        if row < end:
            raise CheckpointError(
                f"tensor `{tensor.name}` of `{checkpoint.path}` would fill both `{last}` and `{parameter}`"
            )
        if row > end:
            break
        end, last = stop, parameter
    rows = math.prod(tensor.shape) // row_values
    if end < rows:
        raise CheckpointError(
            f"tensor `{tensor.name}` of `{checkpoint.path}` has `{rows}` rows, and nothing uses row `{end}`",
            hint="the model's metadata and its tensors disagree",
        )


def _runs(uses: Sequence[tuple[str, Piece]]) -> Iterator[tuple[int, int, str]]:
    """First row, row behind the last, and parameter of rows that follow one another in a tensor."""
    for parameter, piece in uses:
        if piece.row_order is None:
            yield piece.tensor_row, piece.tensor_row + piece.num_rows, parameter
        else:
            yield from ((row, row + 1, parameter) for row in piece.row_order)


def _check_packable(checkpoint: Checkpoint, tensor: TensorInfo, k: int) -> None:
    scheme_of(tensor.format, tensor.name)
    try:
        _native.packed_bytes(tensor.format, math.prod(tensor.shape) // k, k)
    except ValueError as error:
        raise UnsupportedModelError(
            f"tensor `{tensor.name}` of `{checkpoint.path}` is stored as `{tensor.format}`: {error}",
            hint=OTHER_FORMATS,
        ) from error


def _unused(
    checkpoint: Checkpoint, used: Container[str], patterns: Iterable[Ignored]
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


def _add(reads: _native.WeightReads, fd: int, source: Source, piece: Piece, request: PackRequest) -> None:
    tensor = piece.tensor
    k = tensor.shape[-1] if request.layout == "panels" else 1
    num_rows = math.prod(tensor.shape) // k
    start = tensor.offset + piece.tensor_row * (tensor.nbytes // num_rows)
    file_rows = piece.num_rows if piece.row_order is None else num_rows
    if request.layout == "panels":
        panels_before = piece.parameter_row // _native.PANEL_ROWS
        place = request.offset + panels_before * _native.packed_bytes(tensor.format, _native.PANEL_ROWS, k)
        reads.add_matrix(
            tensor.format, fd, start, piece.num_rows, k, request.destination, place, piece.row_order, file_rows
        )
    else:
        assert request.layout == "vector", f"`{request.parameter}` is wanted as `{request.layout}`"
        place = request.offset + 4 * piece.parameter_row
        reads.add_vector(
            tensor.format,
            fd,
            start,
            piece.num_rows,
            request.destination,
            place,
            piece.row_order,
            file_rows,
            source.factor,
            float(source.add_one),
        )
