"""Which groups of nodes become one kernel: each fusion is one function from a list of groups to a shorter one.

A fused kernel rounds where its members would, so every fusion may be switched off without changing a bit. A fusion
happens if the provider of its members has a kernel for it that does not decline; else the reason is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from pelton.graph.graph import Node, Value
from pelton.graph.kernel import CompileSettings, Group, Kernel


class Fuser:
    """A list of groups in order of execution, with who reads what.

    kept: values that must exist after a step (captured, or outputs of the graph), never hidden or overwritten.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        kept: frozenset[Value],
        fused_kernel: Callable[[Group, str], tuple[Kernel | None, str]],
        settings: CompileSettings,
    ) -> None:
        self._at = dict(enumerate(groups))
        self._position = {group: index for index, group in self._at.items()}
        self.kept = kept
        self._fused_kernel = fused_kernel
        self._settings = settings
        self._producer = {value: group for group in groups for node in group.members for value in node.outputs}
        self._readers: dict[Value, list[Group]] = {}
        for group in groups:
            for value in group.inputs:
                self._readers.setdefault(value, []).append(group)

    def run(self) -> list[Group]:
        for name, fusion in _FUSIONS.items():
            if name in self._settings.fusions:
                fusion(self)
        return self.groups()

    def groups(self) -> list[Group]:
        return [self._at[position] for position in sorted(self._at)]

    def position(self, group: Group) -> int:
        """Grows along the order of execution."""
        return self._position[group]

    def heads(self, op_name: str) -> list[Node]:
        """Nodes of this operation that are not fused with anything yet, in order."""
        return [group.members[0] for group in self.groups() if _single(group, op_name) is not None]

    def producer(self, value: Value) -> Group | None:
        return self._producer.get(value)

    def readers(self, value: Value) -> list[Group]:
        """In order of execution."""
        return sorted(self._readers.get(value, []), key=self.position)

    def only_read_by(self, value: Value, group: Group) -> bool:
        """Whether nothing else will ever look at it."""
        return value not in self.kept and self.readers(value) == [group]

    def merge(self, kind: str, parts: Sequence[Group], at: Group, in_place: dict[Value, Value] | None = None) -> bool:
        """Replaces `parts` by one group, where `at` (one of them) stands. False, with a note, if no kernel takes it."""
        providers = {part.kernel.name.rpartition("/")[0] for part in parts}
        members = tuple(node for part in parts for node in part.members)
        merged = replace(at, kind=kind, members=members, in_place={**at.in_place, **(in_place or {})})
        if len(providers) > 1:
            kernel, reason = None, f"its members run on {' and '.join(sorted(providers))}"
        else:
            kernel, reason = self._fused_kernel(merged, providers.pop())
        if kernel is None:
            note = f"not fused to {kind}: {reason}"
            self._replace(parts[:1], parts[0], replace(parts[0], notes=(*parts[0].notes, note)))
            return False
        passed_over = tuple(dict.fromkeys(item for part in parts for item in part.passed_over))
        notes = tuple(note for part in parts for note in part.notes)
        self._replace(parts, at, replace(merged, kernel=kernel, passed_over=passed_over, notes=notes))
        return True

    def _replace(self, parts: Sequence[Group], at: Group, new: Group) -> None:
        """Puts `new` in the place of `at` and drops the other parts."""
        position = self._position[at]
        for part in parts:
            del self._at[self._position.pop(part)]
        self._at[position], self._position[new] = new, position
        for value in (value for node in new.members for value in node.outputs):
            self._producer[value] = new
        for value in {value for part in parts for value in part.inputs}:
            others = [group for group in self._readers[value] if group not in parts]
            self._readers[value] = [*others, new] if value in new.inputs else others


def _single(group: Group | None, op_name: str) -> Node | None:
    """The group's only node, if it is this operation."""
    if group is None or len(group.members) != 1 or group.members[0].op.name != op_name:
        return None
    return group.members[0]


def _fuse_linear_gated(fuser: Fuser) -> None:
    """gate and up products of one input, and activation(gate) * up."""
    for node in fuser.heads("gated_activation"):
        last = fuser.producer(node.output)
        gate, up = (fuser.producer(value) for value in node.inputs)
        gate_node, up_node = _single(gate, "linear"), _single(up, "linear")
        if last is None or gate is None or up is None or gate_node is None or up_node is None or gate is up:
            continue
        hidden = all(fuser.only_read_by(value, last) for value in node.inputs)
        if hidden and gate_node.inputs[0] is up_node.inputs[0]:
            first = min(gate, up, key=fuser.position)
            fuser.merge("linear_gated", (gate, up, last), first)


def _fuse_segments(fuser: Fuser) -> None:
    """Several products of one input; as many as the kernel takes."""
    for node in fuser.heads("linear"):
        for other in fuser.readers(node.inputs[0]):
            group = fuser.producer(node.output)
            assert group is not None
            is_first = group.members[0] is node
            if is_first and fuser.position(group) < fuser.position(other) and _single(other, "linear") is not None:
                fuser.merge("linear", (group, other), group)


def _chain(fuser: Fuser, value: Value) -> tuple[list[Group], Value]:
    """The rope and the per-head norm, each if there, that end in `value`; and what they start from."""
    chain: list[Group] = []
    for op_name in ("rope", "rms_norm"):
        group = fuser.producer(value)
        node = _single(group, op_name)
        if group is not None and node is not None:
            chain.insert(0, group)
            value = node.inputs[0]
    return chain, value


def _fuse_attention_prepare(fuser: Fuser) -> None:
    """Norms and rope of q and k, and the write of k and v. q is turned in place."""
    attends = {node.attributes["cache"]: node for node in fuser.heads("attention")}
    writes = [group for group in fuser.groups() if _single(group, "cache_write") is not None]
    for write in writes:
        attend = attends.get(write.members[0].attributes["cache"])
        if attend is None:
            continue
        q, k = attend.inputs[0], write.members[0].inputs[0]
        q_chain, q_start = _chain(fuser, q)
        k_chain, k_start = _chain(fuser, k)
        parts = (*q_chain, *k_chain, write)
        if not q_chain or not k_chain or max(parts, key=fuser.position) is not write:
            continue
        if any(fuser.position(reader) < fuser.position(write) for reader in fuser.readers(q)):
            continue
        if not _are_hidden(fuser, (q_start, *_outputs(q_chain[:-1])), q_chain):
            continue
        if _are_hidden(fuser, (k_start, *_outputs(k_chain)), (*k_chain, write)):
            fuser.merge("attention_prepare", parts, write, {q: q_start})


def _outputs(groups: Iterable[Group]) -> tuple[Value, ...]:
    return tuple(group.members[-1].output for group in groups)


def _are_hidden(fuser: Fuser, values: Sequence[Value], readers: Sequence[Group]) -> bool:
    """Whether each value is computed, and read by the reader of the same place alone."""
    return all(
        fuser.producer(value) is not None and fuser.only_read_by(value, reader)
        for value, reader in zip(values, readers, strict=True)
    )


def _fuse_quantise(fuser: Fuser) -> None:
    """A kernel that writes rows may quantise them while they are in the cache."""
    for node in fuser.heads("quantise"):
        producer = fuser.producer(node.inputs[0])
        own = fuser.producer(node.output)
        if producer is not None and own is not None and producer.kind in QUANTISING:
            fuser.merge(producer.kind, (producer, own), producer)


# Kinds whose result may leave as quantised blocks.
QUANTISING = ("rms_norm", "gated_activation", "linear_gated", "attention")


def _fuse_residual(fuser: Fuser) -> None:
    """A product that is added to a value which nobody reads afterwards is accumulated onto it in place."""
    for node in fuser.heads("add"):
        last = fuser.producer(node.output)
        assert last is not None
        for term, residual in (node.inputs[::-1], node.inputs):
            product = fuser.producer(term)
            if product is None or _single(product, "linear") is None or not fuser.only_read_by(term, last):
                continue
            place = fuser.position(last)
            is_dead = all(fuser.position(reader) <= place for reader in fuser.readers(residual))
            is_own = residual is not term and residual not in fuser.kept and fuser.producer(residual) is not None
            if is_dead and is_own and fuser.merge("linear", (product, last), last, {node.output: residual}):
                break


_FUSIONS: dict[str, Callable[[Fuser], None]] = {
    "linear_gated": _fuse_linear_gated,
    "segments": _fuse_segments,
    "attention_prepare": _fuse_attention_prepare,
    "quantise": _fuse_quantise,
    "residual": _fuse_residual,
}
