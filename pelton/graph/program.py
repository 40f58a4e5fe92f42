"""A graph made ready for a platform: each group of nodes its kernel, each weight its layout, each value its place.

Computed from headers only: no weight is read and nothing is allocated. The platform materialises it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pelton.errors import KernelError, UsageError
from pelton.graph.fuse import Fuser
from pelton.graph.graph import ROWS, TOKENS, Graph, Node, Parameter, Value, is_matrix
from pelton.graph.kernel import CacheGroupLayout, CompileSettings, Group, Kernel, Packing, PassedOver, Provider, Target
from pelton.graph.ops.quantise import quantise_node

HEAD_ROWS = 32  # rows of logits that exist at a time
ALIGNMENT = 64  # bytes: of every buffer and row


class Place(msgspec.Struct, frozen=True):
    """Where a value lives in the arena."""

    offset: int
    row_bytes: int
    num_rows: int

    @property
    def nbytes(self) -> int:
        return self.row_bytes * self.num_rows


class NodeRow(msgspec.Struct, frozen=True):
    """A line of `explain`. formats: of the weights that it reads. reasons: why not another kernel, or not fused."""

    node: str
    kernel: str
    formats: tuple[str, ...]
    reasons: tuple[str, ...]


class Program(msgspec.Struct, frozen=True):
    """groups: in order of execution, those over all tokens first, then those over rows that need logits.

    arena_bytes: for all intermediates of the largest step. head_bytes: for those of a tile of logits alone.
    unusable:    providers that this machine can't use, with reasons.
    """

    graph: Graph
    settings: CompileSettings
    groups: tuple[Group, ...]
    places: Mapping[Value, Place]
    arena_bytes: int
    head_bytes: int
    packings: tuple[Packing, ...]
    cache_layout: tuple[CacheGroupLayout, ...]
    unusable: tuple[PassedOver, ...]

    def describe(self) -> list[NodeRow]:
        return [
            NodeRow(
                node=" + ".join(node.name for node in group.members),
                kernel=group.kernel.name,
                formats=tuple(
                    self.settings.formats[value.name] for value in group.inputs if isinstance(value, Parameter)
                ),
                reasons=(*(f"{item.kernel}: {item.reason}" for item in group.passed_over), *group.notes),
            )
            for group in self.groups
        ]

    def value(self, name: str) -> Value:
        """A value that can be read after a step: captured, an input or an output of the graph."""
        for value in (*self.graph.outputs.values(), *self.places):
            is_kept = value in self.graph.outputs.values() or value.name in self.settings.capture
            if value.name == name and is_kept:
                return value
        raise UsageError(f"`{name}` is not a value of this program", "capture it when the program is compiled")


def compile(graph: Graph, target: Target, settings: CompileSettings) -> Program:
    """Raises KernelError if a node has no kernel (with every reason), UsageError on names that don't exist."""
    chooser = _Chooser(target, settings)
    _check_names(graph, chooser.known, settings)
    groups = _lower(graph, chooser)
    groups = [group for dim in (TOKENS, ROWS) for group in groups if dimension(group) == dim]
    kept = frozenset(graph.outputs.values()) | {
        value for group in groups for node in group.members for value in node.outputs if value.name in settings.capture
    }
    groups = _with_outputs(Fuser(groups, kept, chooser.fused, settings).run(), kept)
    inputs = [value for value in graph.inputs.values() if is_matrix(value)]
    places, arena_bytes = _plan_places(groups, inputs, kept, target, settings.max_tokens)
    _, head_bytes = _plan_places(groups, inputs, kept, target, max_tokens=0)
    return Program(
        graph=graph,
        settings=settings,
        groups=tuple(groups),
        places=places,
        arena_bytes=arena_bytes,
        head_bytes=head_bytes,
        packings=_packings(graph, groups, target, settings),
        cache_layout=tuple(target.cache_layout(graph, settings.kv_dtype)),
        unusable=chooser.unusable,
    )


def dimension(group: Group) -> str:
    """The symbolic size whose rows the group runs over."""
    node = group.members[-1]
    dim = (node.outputs or node.inputs)[0].shape[0]
    assert isinstance(dim, str), f"{node.name} does not run over rows"
    return dim


class _Chooser:
    """Finds kernels: the first of the providers, in order, that does not decline."""

    def __init__(self, target: Target, settings: CompileSettings) -> None:
        named = settings.providers
        asked = target.providers() if named is None else [target.provider(name) for name in named]
        self.known = list(asked)
        self.usable = [provider for provider in asked if provider.unusable is None]
        self.unusable = tuple(PassedOver(p.name, p.unusable) for p in asked if p.unusable is not None)
        self.settings = settings

    def choose(self, node: Node) -> Group:
        passed_over: list[PassedOver] = []
        for provider in self.usable:
            kernel, reason = self._usable(provider, node.op.name)
            if kernel is not None:
                group = Group(node.op.name, (node,), kernel, tuple(passed_over))
                reason = kernel.declines(group, self.settings) or ""
                if not reason:
                    return group
            passed_over.append(PassedOver(f"{provider.name}/{node.op.name}", reason))
        reasons = "; ".join(f"{item.kernel}: {item.reason}" for item in (*self.unusable, *passed_over))
        raise KernelError(f"`{node.name}` has no kernel ({reasons})", "enable one of these kernels")

    def fused(self, group: Group, provider_name: str) -> tuple[Kernel | None, str]:
        """The kernel for a fused group, or why there is none."""
        (provider,) = (provider for provider in self.usable if provider.name == provider_name)
        kernel, reason = self._usable(provider, group.kind)
        if kernel is not None:
            reason = kernel.declines(group, self.settings) or ""
        return (None, reason) if reason else (kernel, "")

    def _usable(self, provider: Provider, kind: str) -> tuple[Kernel | None, str]:
        kernel = provider.kernel(kind)
        if kernel is None:
            return None, f"{provider.name} has no {kind}"
        if kernel.name in self.settings.disabled:
            return None, f"{kernel.name} is disabled"
        return kernel, ""


def _check_names(graph: Graph, providers: Sequence[Provider], settings: CompileSettings) -> None:
    kernels = {f"{provider.name}/{kind}" for provider in providers for kind in provider.kinds()}
    for name in sorted(settings.disabled - kernels):
        raise UsageError(f"there is no kernel `{name}` to disable", f"there are: {', '.join(sorted(kernels))}")
    values = {value.name for node in graph.nodes for value in node.outputs}
    quantised = {f"{name}.quantise" for name in values | graph.inputs.keys()}
    for name in sorted(settings.capture - values - quantised):
        raise UsageError(f"there is no value `{name}` to capture", "`explain` lists the names")
    missing = sorted(graph.parameters.keys() - settings.formats.keys())
    assert not missing, f"no format for {', '.join(missing)}"


def _lower(graph: Graph, chooser: _Chooser) -> list[Group]:
    """A group for each node, and one quantisation for all integer products of a value."""
    groups: list[Group] = []
    blocks: dict[Value, Value] = {}
    for node in graph.nodes:
        group = chooser.choose(node)
        for value in group.kernel.quantised_inputs(node, chooser.settings):
            if value not in blocks:
                quantise = quantise_node(value, chooser.settings.activation_mode)
                blocks[value] = quantise.output
                groups.append(chooser.choose(quantise))
            inputs = tuple(blocks[value] if item is value else item for item in node.inputs)
            group = replace(group, members=(replace(node, inputs=inputs),))
        groups.append(group)
    return groups


def _with_outputs(groups: Sequence[Group], kept: frozenset[Value]) -> list[Group]:
    wanted = kept | {value for group in groups for value in (*group.inputs, *group.kernel.always_writes(group))}
    written = []
    for group in groups:
        outputs = tuple(value for node in group.members for value in node.outputs if value in wanted)
        written.append(replace(group, outputs=outputs))
    return written


def _lifetimes(
    groups: Sequence[Group], inputs: Sequence[Value], kept: frozenset[Value]
) -> dict[Value, tuple[int, int]]:
    """First and last group that need each value's memory. Head groups run once per tile, so what they read of the body
    lives to the end; so do inputs, which whoever runs the program writes."""
    owner = {value: value for value in inputs}
    first = dict.fromkeys(inputs, 0)
    last = dict.fromkeys(inputs, len(groups))
    for index, group in enumerate(groups):
        for value in group.inputs:
            if value in owner:
                is_looped = dimension(group) == ROWS and value.shape[0] == TOKENS
                last[owner[value]] = max(last[owner[value]], len(groups) if is_looped else index)
        for value in group.outputs:
            overwritten = group.in_place.get(value)
            own = owner[value] = value if overwritten is None else owner[overwritten]
            first.setdefault(own, index)
            last[own] = max(last.get(own, 0), len(groups) if value in kept else index)
    return {value: (first[own], last[own]) for value, own in owner.items()}


def _plan_places(
    groups: Sequence[Group],
    inputs: Sequence[Value],
    kept: frozenset[Value],
    target: Target,
    max_tokens: int,
) -> tuple[dict[Value, Place], int]:
    """First fit by offset, in order of birth. A value computed in place takes the place of what it overwrites."""
    lifetimes = _lifetimes(groups, inputs, kept)
    places: dict[Value, Place] = {}
    alive: list[Value] = []

    def place(value: Value) -> None:
        num_rows = max_tokens if value.shape[0] == TOKENS else HEAD_ROWS
        row_bytes = target.row_bytes(value)
        assert row_bytes % ALIGNMENT == 0, f"rows of {value.name} are {row_bytes} bytes"
        offset = _first_fit([places[other] for other in alive], row_bytes * num_rows)
        places[value] = Place(offset, row_bytes, num_rows)
        alive.append(value)

    for value in inputs:
        place(value)
    for index, group in enumerate(groups):
        alive[:] = [value for value in alive if lifetimes[value][1] >= index]
        for value in group.outputs:
            overwritten = group.in_place.get(value)
            if overwritten is None:
                place(value)
            else:
                places[value] = places[overwritten]
    return places, max((place.offset + place.nbytes for place in places.values()), default=0)


def _first_fit(taken: Iterable[Place], nbytes: int) -> int:
    offset = 0
    for place in sorted(taken, key=lambda place: place.offset):
        if place.offset - offset >= nbytes:
            break
        offset = max(offset, place.offset + place.nbytes)
    return offset


def _packings(graph: Graph, groups: Sequence[Group], target: Target, settings: CompileSettings) -> tuple[Packing, ...]:
    """One per parameter and layout, in the order in which a step reads them."""
    wanted = dict.fromkeys((value.name, layout) for group in groups for value, layout in group.kernel.layouts(group))
    packings = []
    for name, layout in wanted:
        shape = graph.parameters[name].shape
        assert all(isinstance(size, int) for size in shape), f"{name} has a symbolic size"
        sizes = tuple(size for size in shape if isinstance(size, int))
        nbytes = target.packed_bytes(settings.formats[name], layout, sizes)
        packings.append(Packing(name, sizes, settings.formats[name], layout, nbytes))
    return tuple(packings)
