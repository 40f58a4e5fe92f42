"""The native library's surface: the only module that is not Python. See csrc/bindings.cc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

class Buffer:
    """Anonymous memory, zeroed, 64-byte aligned, in 2 MiB pages where the system allows; exports uint8 by the buffer
    protocol. owner: its line in the memory ledger. Raises MemoryError."""

    def __init__(self, nbytes: int, owner: str) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def close(self) -> None: ...
    def __buffer__(self, flags: int) -> memoryview: ...

def memory_ledger() -> dict[str, int]:
    """Bytes of live Buffers by owner."""

class Team:
    """A persistent team of threads; the caller of a run is one of them."""

    def __init__(self, num_threads: int) -> None: ...
    @property
    def num_threads(self) -> int: ...
    def close(self) -> None: ...

def cpu_features() -> dict[str, bool]: ...
def levels() -> list[tuple[str, bool, str]]:
    """(name, usable, reason if not), best last: the CPU and the system have it, and its self-test agreed. Levels below
    the best usable one are tested when a program first asks for them."""

def kernels(level: str) -> list[str]: ...
def self_test(level: str) -> list[tuple[str, str]]:
    """Runs each kernel of a level on small inputs against the generic level: (name of the case, "ok" or what differs).
    Raises ValueError for a level that this CPU can't run."""

def read_bandwidth(team: Team, nbytes: int) -> float:
    """Measured streaming read rate in bytes per second."""

# Packed weights: panels of 16 output channels (see csrc/pack.h). formats: f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0
# q2_k q3_k q4_k q5_k q6_k.
PANEL_ROWS: int

def packed_bytes(format: str, n: int, k: int) -> int:
    """Raises ValueError for a format or a shape that can't be."""

def unpack(format: str, source: Buffer, offset: int, n: int, k: int) -> Buffer:
    """[n, k] float32 as the format defines it, exactly (for tests and references)."""

class WeightReads:
    """Reads any number of tensors with pread, in parallel; see csrc/weight_reads.h. Files stay open until `run`."""

    def __init__(self) -> None: ...
    def add_matrix(
        self,
        format: str,
        fd: int,
        offset: int,
        n: int,
        k: int,
        destination: Buffer,
        destination_offset: int,
        row_order: Sequence[int] | None = None,
        file_rows: int | None = None,
    ) -> None:
        """[n, k] in file layout, to be packed. row_order: output row i is file row row_order[i]."""

    def add_vector(
        self,
        format: str,
        fd: int,
        offset: int,
        count: int,
        destination: Buffer,
        destination_offset: int,
        row_order: Sequence[int] | None = None,
        file_rows: int | None = None,
        factor: float = 1.0,
        summand: float = 0.0,
    ) -> None:
        """`count` floats stored as f32, f16 or bf16, to be widened, exactly, to float32 (norm weights, biases); then
        each becomes factor * value + summand."""

    def run(self, team: Team) -> None:
        """Raises EOFError, naming how many bytes are missing, if a file ends before a tensor does, and OSError."""

    @property
    def failed(self) -> int | None:
        """Which tensor, counted as they were added, the last `run` could not read."""

class Strings:
    """Strings that stay native until one is asked for."""

    def __init__(self, texts: tuple[str, ...]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> str: ...

class Vocabulary:
    """Token texts by id and ids by text; see csrc/text/vocabulary.h."""

    def __init__(self, tokens: Strings) -> None: ...
    def __len__(self) -> int: ...
    def text(self, token_id: int) -> str | None: ...
    def find(self, text: str) -> int | None: ...
    def repeated(self) -> tuple[int, int] | None:
        """Two ids of one text, the lower first."""

class BytePairTokenizer:
    """Text to token ids; see csrc/text/byte_pair_tokenizer.h."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        added: Sequence[tuple[int, bool, bool, bool]],
        patterns: Sequence[str],
        merges: Strings | None,
        scores: Sequence[float],
        no_pieces: Sequence[int],
        byte_level: bool,
        space_prefix: bool,
        escape_spaces: bool,
        drop_unmatched: bool,
        ignore_merges: bool,
        byte_fallback: bool,
        unknown_id: int | None,
    ) -> None:
        """added: id, is it a control token, does it swallow space before it, after it. merges: "left right", best
        first; None: scores of each token, of which no_pieces are never merged. Raises ValueError."""

    def encode(self, text: str, parse_control: bool) -> list[int]:
        """parse_control: control tokens that the text spells are read as such. Raises ValueError beyond 512 MiB."""

def pattern_matches(pattern: str, text: str) -> list[str]:
    """What a pattern of csrc/text/pattern.h matches in a text (for tests). Raises ValueError for an unknown pattern."""

def attention_workspace_bytes(
    max_tokens: int, max_context: int, num_threads: int, heads: int, kv_heads: int, head_dim: int
) -> int:
    """Bytes of the workspace that `attention_plan` and the `attention` nodes with these heads and this window share.

    max_tokens: rows of the largest step. max_context: tokens of the longest sequence."""

class StepInput:
    """One step's rows for a direct run of a program (tests, captures). Lists are copied."""

    def __init__(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, int, int, Sequence[Sequence[int]]]],
        logit_rows: Sequence[int],
        kv_pool: Buffer | None,
        num_states: Sequence[int] = (),
    ) -> None:
        """sequences: (first_row, num_rows, context, tables per group in units of 64 bytes). num_states: per group how
        many recurrent layers it has; tables then hold the blocks that are read, and those that are written."""

class Program:
    """Nodes in order, run by the team in one call with the GIL released. Body nodes (dim 0) run once per step, head
    nodes (dim 1) once per tile of at most 32 logit rows."""

    def __init__(self, team: Team, level: str) -> None: ...
    def add(self, kernel: str, dim: int, pointers: Sequence[int], sizes: Sequence[int], values: Sequence[float]) -> int:
        """kernel: its name at the program's level, or "level/name"."""
    def run(self, step: StepInput, first: int = 0, last: int = -1) -> None:
        """Runs nodes [first, last) (tests: the head tile holds all logit_rows, at most 32)."""
    def profile(self, step: StepInput) -> list[tuple[str, float]]:
        """One run, node after node: (kernel, seconds) per node."""

Logprobs = tuple[list[int], list[float], int]  # token ids, log-probabilities, rank: see engine.batch.TokenLogprobs
Outcome = tuple[int, int | None, Logprobs | None, list[Logprobs] | None, str | None]  # see engine.batch.SlotResult

class Runner:
    """Slots, steps and sampling; see csrc/runner.h. Everything told is checked: ValueError says what does not fit."""

    def __init__(
        self,
        program: Program,
        kv_pool: Buffer | None,
        logits: Buffer,
        *,
        logits_offset: int,
        logits_stride: int,
        cache_groups: Sequence[tuple[int, int | None, int]],
        num_slots: int,
        max_model_len: int,
        max_num_tokens: int,
        vocab_size: int,
    ) -> None:
        """logits: where the head leaves its tile of 32 rows, logits_stride floats apart, at logits_offset bytes.
        cache_groups: (bytes of a block, window or None, number of states). The buffers can't be closed while the
        runner lives."""

    def enter(self, request: Any) -> None:
        """request: an engine.batch.NewRequest."""

    def release(self, slot: int) -> None: ...
    def step(self, work: list[Any]) -> list[Outcome]:
        """work: of engine.batch.SlotWork. Outcomes come in its order."""

class GgufHeader:
    """A parsed and bounds-checked GGUF header; see csrc/gguf.h and pelton/weights/gguf.py."""

    def __init__(self, fd: int) -> None:
        """Raises ValueError (malformed), NotImplementedError (a version or tensor type that isn't known), OSError."""
    @property
    def version(self) -> int: ...
    @property
    def data_offset(self) -> int:
        """Where the tensors' data starts, and the header with its padding ends."""
    def keys(self) -> list[str]:
        """In the file's order. Raises UnicodeDecodeError, as do the others."""
    def value(self, key: str) -> Any:
        """A scalar, a list of str, or a memoryview of numbers. Raises KeyError."""
    def strings(self, key: str) -> Strings | None:
        """An array of strings, without a Python object for each; None if `key` has none. Raises UnicodeDecodeError."""

    def tensors(self) -> list[tuple[str, tuple[int, ...], str, int, int]]:
        """(name, shape with the slowest dimension first, format, offset in the file, bytes) in the file's order."""
