"""Times the nodes of one kernel in a small graph that is compiled as a program's own; the weights are zeros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pelton import _native
from pelton.cache.groups import OFFSET_UNIT, blocks_for
from pelton.graph.program import compile
from pelton.platforms.cpu.program import CpuProgram

if TYPE_CHECKING:
    from pelton.graph.graph import Graph
    from pelton.graph.kernel import CompileSettings
    from pelton.platforms.cpu import CpuPlatform

PAGE_BYTES = 4096
REPEATS = 3  # of which the quickest counts: what else runs only ever makes it slower


class NodeTimer:
    """settings: as of the program; its max_tokens and max_context bound what is timed."""

    def __init__(self, settings: CompileSettings, platform: CpuPlatform, team: _native.Team) -> None:
        self._settings = settings
        self._platform = platform
        self._team = team

    def row_seconds(
        self,
        graph: Graph,
        formats: Mapping[str, str],
        kernel: str,
        counts: Sequence[int],
        context: int = 0,
        repeats: int = REPEATS,
    ) -> list[float]:
        """Seconds per row that all nodes of the native kernel take together, at each number of rows, which follow on
        `context` others in one sequence."""
        compiled = compile(graph, self._platform, replace(self._settings, formats=formats))
        program = CpuProgram(compiled, self._team)
        for buffer in {id(place.buffer): place.buffer for place in program.weight_places}.values():
            _write_pages(buffer)
        blocks = blocks_for(self._settings.max_context)
        nbytes = sum(layout.block_bytes for layout in compiled.cache_layout)
        pool = _native.Buffer(max(OFFSET_UNIT, blocks * nbytes), "bench")
        tables = [[block * nbytes // OFFSET_UNIT for block in range(blocks)] for _ in compiled.cache_layout]
        try:
            found = []
            for rows in counts:
                positions = list(range(context, context + rows))
                step = _native.StepInput([0] * rows, positions, [(0, rows, context, tables)], [], pool)
                runs = [program.native.profile(step) for _ in range(repeats)]
                found.append(min(sum(s for name, s in run if name == kernel) for run in runs) / rows)
            return found
        finally:
            pool.close()
            program.close()


def _write_pages(buffer: _native.Buffer) -> None:
    """Pages that nobody wrote are one page of zeros, which would be read from the cache."""
    with memoryview(buffer) as memory:
        memory[::PAGE_BYTES] = bytes(-(-memory.nbytes // PAGE_BYTES))
