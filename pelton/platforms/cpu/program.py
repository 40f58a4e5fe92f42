"""A compiled program in memory: the arena, the places of packed weights, constants, and the native nodes over them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from pelton import _native
from pelton.graph.formats import FORMATS
from pelton.graph.graph import TOKENS, CacheLayer, Node, Parameter, Value
from pelton.graph.kernel import Group, Packing
from pelton.graph.program import Program, dimension
from pelton.platforms.cpu.kernels import CpuKernel
from pelton.platforms.platform import LINE

# As csrc numbers them.
FORMAT_IDS = {name: index for index, name in enumerate(FORMATS)}
MODES = {"float32": 0, "blocks_outlier": 1, "blocks_exact": 2}
KV_IDS = {"bf16": 0, "f16": 1, "f32": 2}


class WeightPlace(msgspec.Struct, frozen=True):
    """Where a packed weight is to be written."""

    packing: Packing
    buffer: _native.Buffer
    offset: int


class CpuProgram:
    """Allocates all memory of a program but the KV pool, and adds its nodes. The weights are zero until loaded."""

    def __init__(self, program: Program, team: _native.Team) -> None:
        self.program = program
        self.team = team
        self.arena = _native.Buffer(max(program.arena_bytes, LINE), "activations")
        self.weight_places = _weight_places(program.packings)
        first = program.groups[0].kernel
        assert isinstance(first, CpuKernel), f"{first.name} is not a kernel of this platform"
        self.native = _native.Program(team, first.level)
        self.native_groups: list[Group] = []  # of each native node, which group it belongs to
        self._emitter = Emitter(self, team)
        for group in program.groups:
            num_nodes = self._emitter.emit(group)
            self.native_groups += [group] * num_nodes

    def address(self, name: str) -> int:
        """Of the first row of a value that exists after a step: captured, or an output of the graph."""
        return self._emitter.address(self.program.value(name))

    def stride(self, name: str) -> int:
        """Floats from one row of such a value to the next."""
        return self._emitter.stride(self.program.value(name))

    def row(self, name: str, index: int) -> memoryview:
        """The bytes of one row, readable after `close` too: the arena's memory goes with the last view of it."""
        place = self.program.places[self.program.value(name)]
        start = place.offset + index * place.row_bytes
        return memoryview(self.arena)[start : start + place.row_bytes]

    def close(self) -> None:
        """Gives all memory back. The native program must not run afterwards. Idempotent."""
        for buffer in {id(place.buffer): place.buffer for place in self.weight_places}.values():
            buffer.close()
        self._emitter.close()
        # Somebody may still look at a row, as when a loop over logits broke off: that error is the one to tell.
        with suppress(BufferError):
            self.arena.close()


class Workspace(msgspec.Struct, frozen=True):
    """Memory that nodes of several layers share within a step. key: what they have in common."""

    key: tuple[object, ...]
    nbytes: int


def rope_workspace(node: Node, max_tokens: int) -> Workspace:
    inv_freq, factor = node.attributes["inv_freq"], node.attributes["attention_factor"]
    return Workspace(("rope", inv_freq, factor), max(8 * len(inv_freq) * max_tokens, LINE))


def attention_workspace(node: Node, max_tokens: int, max_context: int, num_threads: int) -> Workspace:
    cache: CacheLayer = node.attributes["cache"]
    sizes = (node.attributes["num_heads"], cache.num_kv_heads, cache.head_dim)
    nbytes = _native.attention_workspace_bytes(max_tokens, max_context, num_threads, *sizes)
    return Workspace(("attention", cache.group, *sizes), nbytes)


def workspace_bytes(program: Program, num_threads: int, max_tokens: int | None = None) -> int:
    """What the program will take beyond its arena and its weights, for the memory plan; max_tokens: if it were
    compiled for so many."""
    rows = program.settings.max_tokens if max_tokens is None else max_tokens
    turns = {rope_workspace(node, rows) for group in program.groups for node in group.of("rope")}
    attends = [node for group in program.groups for node in group.of("attention")]
    plans = {attention_workspace(node, rows, program.settings.max_context, num_threads) for node in attends}
    return sum(shared.nbytes for shared in turns | plans)


def _weight_places(packings: Sequence[Packing]) -> tuple[WeightPlace, ...]:
    """One buffer for all weights, in the order in which a step reads them."""
    buffer = _native.Buffer(max(sum(packing.nbytes for packing in packings), LINE), "weights")
    places, offset = [], 0
    for packing in packings:
        places.append(WeightPlace(packing, buffer, offset))
        offset += packing.nbytes
    return tuple(places)


class Emitter:
    """Turns values into addresses and sizes for the kernels, and their nodes into native ones."""

    def __init__(self, owner: CpuProgram, team: _native.Team) -> None:
        self._native = owner.native
        self._arena = owner.arena
        self._program = owner.program
        self._num_threads = team.num_threads
        self._weights = {place.packing.parameter: place for place in owner.weight_places}
        self._constants: list[_native.Buffer] = []
        self._workspaces: dict[Workspace, _native.Buffer] = {}
        self._level = ""
        self._dim = 0
        self._num_nodes = 0

    def emit(self, group: Group) -> int:
        """Adds the group's native nodes; returns how many."""
        kernel = group.kernel
        assert isinstance(kernel, CpuKernel), f"{kernel.name} is not a kernel of this platform"
        self._level = kernel.level
        self._dim = 0 if dimension(group) == TOKENS else 1
        before = self._num_nodes
        kernel.emit(group, self)
        return self._num_nodes - before

    def add(self, kernel: str, pointers: Sequence[int], sizes: Sequence[object], values: Sequence[float] = ()) -> None:
        """Adds a native node of the present group's level, over the present group's rows."""
        whole = [size for size in sizes if isinstance(size, int)]
        assert len(whole) == len(sizes), f"{kernel}: a size is not a number"
        self._native.add(f"{self._level}/{kernel}", self._dim, pointers, whole, values)
        self._num_nodes += 1

    def address(self, value: Value) -> int:
        return self._arena.address + self._program.places[value].offset

    def written(self, group: Group, value: Value | None) -> int:
        """Address of an output, null if nobody reads it."""
        return self.address(value) if value is not None and group.writes(value) else 0

    def stride(self, value: Value) -> int:
        """In floats; 0 for what lives nowhere."""
        place = self._program.places.get(value)
        return 0 if place is None else place.row_bytes // 4

    def weight(self, value: Value | None) -> int:
        if value is None:
            return 0
        place = self._weights[value.name]
        return place.buffer.address + place.offset

    def format(self, value: Value) -> int:
        assert isinstance(value, Parameter), f"{value.name} is not a weight"
        return FORMAT_IDS[self._program.settings.formats[value.name]]

    def mode(self, value: Value | None) -> int:
        """How a value is quantised; 0 for float32 and for none."""
        return 0 if value is None else MODES[value.dtype]

    def rope_table(self, node: Node) -> int:
        """Address of cos and sin of a step's positions, made once for all layers that turn alike: the first adds the
        node that makes them."""
        shared = rope_workspace(node, self._program.settings.max_tokens)
        is_new, table = self._workspace(shared)
        if is_new:
            inv_freq, factor = node.attributes["inv_freq"], node.attributes["attention_factor"]
            self.add("rope_table", [self._constant(inv_freq), table], [2 * len(inv_freq)], [factor])
        return table

    def attention_plan(self, node: Node) -> int:
        """Address of the plan of a step's attention, likewise made once for all layers that are cut alike."""
        settings = self._program.settings
        shared = attention_workspace(node, settings.max_tokens, settings.max_context, self._num_threads)
        is_new, plan = self._workspace(shared)
        if is_new:
            cache: CacheLayer = node.attributes["cache"]
            sizes = (node.attributes["num_heads"], cache.num_kv_heads, cache.head_dim, node.attributes["window"] or 0)
            self.add("attention_plan", [plan], [*sizes, shared.nbytes])
        return plan

    def _workspace(self, shared: Workspace) -> tuple[bool, int]:
        is_new = shared not in self._workspaces
        if is_new:
            self._workspaces[shared] = _native.Buffer(shared.nbytes, "workspace")
        return is_new, self._workspaces[shared].address

    def _constant(self, values: tuple[float, ...]) -> int:
        """Address of these numbers as float32."""
        buffer = _native.Buffer(max(4 * len(values), LINE), "constants")
        with memoryview(buffer) as view:
            struct.pack_into(f"<{len(values)}f", view, 0, *values)
        self._constants.append(buffer)
        return buffer.address

    def cache_place(self, cache: CacheLayer) -> tuple[int, int, int, int]:
        """Group, offsets of keys and values in its blocks, dtype."""
        keys, values = self._program.cache_layout[cache.group].offsets[cache.layer]
        return cache.group, keys, values, KV_IDS[self._program.settings.kv_dtype]

    def close(self) -> None:
        for buffer in (*self._constants, *self._workspaces.values()):
            buffer.close()
