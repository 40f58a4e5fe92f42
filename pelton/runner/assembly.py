"""From a model's name to a runner: find, read headers, plan, compile; then, and only then, load. Knows no requests.

`prepare` reads no weights and allocates nothing: it is what `explain` shows. `load` moves the bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pelton.cache.groups import CacheGroupSpec
from pelton.config import Settings
from pelton.graph.graph import TOKENS
from pelton.graph.kernel import CompileSettings
from pelton.graph.program import Program, compile
from pelton.models.describe import Described, describe
from pelton.models.registry import build_graph
from pelton.models.rotary import at_length, stretched_position, trained_position
from pelton.plan import DEFAULT_BATCHED_TOKENS, ModelFacts, Plan, resolve
from pelton.platforms.discover import MODELS, find_extensions, find_platform, load_extension
from pelton.runner.runner import cache_group_specs
from pelton.weights import load as loading
from pelton.weights.checkpoint import Checkpoint, open_checkpoint
from pelton.weights.reference import resolve_reference

if TYPE_CHECKING:
    from pelton.graph.graph import Graph
    from pelton.models.architecture import Architecture
    from pelton.models.spec import ModelSpec
    from pelton.platforms.cpu import CpuPlatform
    from pelton.platforms.cpu.program import CpuProgram
    from pelton.runner.runner import NativeRunner

KV_DTYPES = ("bf16", "f16", "f32")


class PreparedModel(msgspec.Struct, frozen=True):
    """A model that is ready to be loaded: everything decided, nothing read but headers."""

    name: str
    path: Path
    settings: Settings
    checkpoint: Checkpoint
    described: Described
    graph: Graph
    resolution: loading.Resolution
    platform: CpuPlatform
    program: Program
    plan: Plan

    @property
    def spec(self) -> ModelSpec:
        return self.described.spec

    def load(self) -> NativeRunner:
        """Reads and packs the weights. Raises CheckpointError if a file changed or ends too early, MemoryError if the
        system gives less than was planned; nothing stays taken then."""
        from pelton.runner.runner import NativeRunner

        limits = self.plan.limits
        program = self.load_program()
        try:
            return NativeRunner(program, kv_cache_bytes=limits.kv_cache_bytes, max_num_seqs=limits.max_num_seqs)
        except BaseException:
            program.close()
            raise

    def load_program(self) -> CpuProgram:
        """The program alone, for captures and whole rows of logits (runner/capture.py). Raises as `load` does."""
        from pelton import _native
        from pelton.platforms.cpu.program import CpuProgram

        team = _native.Team(self.plan.threads)
        program = CpuProgram(self.program, team)
        requests = [
            loading.PackRequest(place.packing.parameter, place.packing.layout, place.buffer, place.offset)
            for place in program.weight_places
        ]
        try:
            loading.load(self.checkpoint, self.resolution, requests, team)
        except BaseException:
            program.close()
            raise
        return program


def prepare(settings: Settings) -> PreparedModel:
    """Raises ModelError, DownloadError, MemoryPlanError or UsageError with what is wrong and what to do."""
    from pelton.platforms.cpu import CpuPlatform

    name = settings.model.model
    path = resolve_reference(name, settings.store)
    checkpoint = open_checkpoint(path, settings.model.model_config)
    described = describe(checkpoint, checkpoint.config, external_architectures)
    architecture, spec = described.architecture, described.spec
    graph = build_graph(architecture, at_length(spec, _longest(settings, spec)))
    parameters = {parameter.name: _sizes(parameter.shape) for parameter in graph.parameters.values()}
    resolution = loading.resolve(
        checkpoint,
        architecture.bindings(spec, checkpoint),
        architecture.ignored(spec, checkpoint),
        parameters,
    )
    platform = find_platform("cpu")
    assert isinstance(platform, CpuPlatform)
    program, plan = _plan(settings, name, architecture, spec, graph, resolution, platform)
    described = replace(described, spec=at_length(spec, plan.limits.max_model_len))
    return PreparedModel(
        name, path, settings, checkpoint, described, program.graph, resolution, platform, program, plan
    )


def external_architectures() -> tuple[Architecture, ...]:
    """Of other packages; one that can't be imported has been told and is left out."""
    loaded = [load_extension(MODELS, name, value)[0] for name, value in find_extensions(MODELS).items()]
    return tuple(architecture() for architecture in loaded if architecture is not None)


def _longest(settings: Settings, spec: ModelSpec) -> int:
    """Tokens of a sequence, where memory does not say otherwise."""
    asked = settings.engine.max_model_len
    return spec.max_position if asked is None else min(asked, stretched_position(spec))


def _plan(
    settings: Settings,
    name: str,
    architecture: Architecture,
    spec: ModelSpec,
    graph: Graph,
    resolution: loading.Resolution,
    platform: CpuPlatform,
) -> tuple[Program, Plan]:
    """The program is compiled for the sizes that will probably be planned, which tells the plan what a step costs;
    if the plan decides otherwise, it is compiled again, from a graph with other angles if the length changes those.

    graph: of the model as it serves sequences of `_longest` tokens.
    """
    engine = settings.engine
    guess = CompileSettings(
        formats={parameter: source.format for parameter, source in resolution.sources.items()},
        max_tokens=engine.max_num_batched_tokens or max(DEFAULT_BATCHED_TOKENS, engine.max_num_seqs or 0),
        max_context=_longest(settings, spec),
        activation_mode=engine.activations,
        kv_dtype="bf16" if engine.kv_dtype == "auto" else engine.kv_dtype,
        providers=platform.provider_order(engine.level, engine.provider_order),
        disabled=frozenset(engine.disabled_kernels),
    )
    program = compile(graph, platform, guess)
    facts = platform.plan_facts()
    plan = resolve(settings, _model_facts(name, spec, graph, program, platform, facts.num_threads), facts)
    final = replace(
        guess,
        max_tokens=plan.limits.max_num_batched_tokens,
        max_context=plan.limits.max_model_len,
        kv_dtype=plan.kv_dtype,
    )
    if final == guess:
        return program, plan
    settled = at_length(spec, final.max_context)
    if settled != at_length(spec, guess.max_context):
        graph = build_graph(architecture, settled)
    return compile(graph, platform, final), plan


def _model_facts(
    name: str, spec: ModelSpec, graph: Graph, program: Program, platform: CpuPlatform, num_threads: int
) -> ModelFacts:
    weight_bytes: dict[str, int] = {}
    for packing in program.packings:
        weight_bytes[packing.format] = weight_bytes.get(packing.format, 0) + packing.nbytes
    step_bytes, step_bytes_per_token = step_memory(program, platform, num_threads)
    return ModelFacts(
        name=name,
        max_position=spec.max_position,
        stretched_position=stretched_position(spec),
        trained_position=trained_position(spec),
        vocab_size=spec.vocab_size,
        weight_bytes=weight_bytes,
        cache_groups={dtype: _cache_groups(graph, platform, dtype) for dtype in KV_DTYPES},
        step_bytes=step_bytes,
        step_bytes_per_token=step_bytes_per_token,
        products_per_token=_products_per_token(graph),
        attention_per_position=_attention_per_position(graph),
    )


def step_memory(program: Program, platform: CpuPlatform, num_threads: int) -> tuple[int, int]:
    """Bytes of a step whatever its size, and for each of its tokens: enough for any up to the program's max_tokens,
    since between the least step and the largest memory bends upwards only."""
    fixed = program.head_bytes + platform.workspace_bytes(program, num_threads, max_tokens=1)
    full = program.arena_bytes + platform.workspace_bytes(program, num_threads)
    return fixed, -(-(full - fixed) // program.settings.max_tokens)


def _products_per_token(graph: Graph) -> int:
    """Of all tokens of a step; the head's are for the few rows that need logits."""
    body = (node for node in graph.nodes if node.outputs and node.outputs[0].shape[0] == TOKENS)
    return sum(node.op.products(*node.inputs, **node.attributes) for node in body)


def _attention_per_position(graph: Graph) -> int:
    """Of the layers that see every position."""
    layers = (node for node in graph.nodes if node.attributes.get("window") is None)
    return sum(node.op.position_products(*node.inputs, **node.attributes) for node in layers)


def _cache_groups(graph: Graph, platform: CpuPlatform, kv_dtype: str) -> tuple[CacheGroupSpec, ...]:
    return tuple(cache_group_specs(graph, platform.cache_layout(graph, kv_dtype)))


def _sizes(shape: tuple[int | str, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if isinstance(size, int))
