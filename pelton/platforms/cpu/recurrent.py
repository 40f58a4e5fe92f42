"""The native kernels of recurrent layers as the compiler sees them; see kernels.py for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pelton.graph.kernel import CompileSettings, Group
from pelton.platforms.cpu.kernels import MAX_HEAD_DIM, CpuKernel

if TYPE_CHECKING:
    from pelton.graph.graph import StateLayer
    from pelton.graph.ops import DeltaSizes
    from pelton.platforms.cpu.program import Emitter

MAX_CONV_KERNEL = 8  # csrc/kernels/gated_delta.cc


class GatedDeltaKernel(CpuKernel):
    kind = "gated_delta"
    native = ("gated_delta",)

    def refuses(self, group: Group, settings: CompileSettings) -> str | None:
        sizes: DeltaSizes = group.members[0].attributes["sizes"]
        if max(sizes.key_head_dim, sizes.value_head_dim) > MAX_HEAD_DIM:
            return f"a head's keys or values have more than {MAX_HEAD_DIM} dimensions"
        if not 2 <= sizes.conv_kernel <= MAX_CONV_KERNEL:
            return f"the convolution sees {sizes.conv_kernel} tokens, not 2 to {MAX_CONV_KERNEL}"
        return None

    def emit(self, group: Group, emitter: Emitter) -> None:
        (node,) = group.members
        sizes: DeltaSizes = node.attributes["sizes"]
        state: StateLayer = node.attributes["state"]
        values, parameters = node.inputs[:4], node.inputs[4:]
        emitter.add(
            "gated_delta",
            [
                *(emitter.address(value) for value in values),
                *(emitter.weight(parameter) for parameter in parameters),
                emitter.address(node.output),
            ],
            [
                sizes.num_key_heads,
                sizes.num_value_heads,
                sizes.key_head_dim,
                sizes.value_head_dim,
                sizes.conv_kernel,
                int(sizes.is_tiled),
                int(sizes.has_log_decay),
                *(emitter.stride(value) for value in (*values, node.output)),
                *emitter.state_place(state),
            ],
            [node.attributes["eps"]],
        )
