from __future__ import annotations

from pathlib import Path

import pytest

from pelton.config import StoreSettings, from_environment, load_settings, log_level, options
from pelton.errors import UsageError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE_DIR", "OFFLINE", "LOG_LEVEL", "API_KEY"):
        monkeypatch.delenv(f"PELTON_{name}", raising=False)


def test_a_new_option_is_a_deliberate_act() -> None:
    assert [option.flag for option in options()] == [
        "--model",
        "--model-config",
        "--max-model-len",
        "--kv-cache-bytes",
        "--kv-dtype",
        "--activations",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--prefix-cache",
        "--checkpoint-tokens",
        "--checkpoint-bytes",
        "--threads",
        "--level",
        "--provider-order",
        "--disabled-kernels",
        "--strict",
        "--cache-dir",
        "--offline",
        "--host",
        "--port",
        "--api-key-file",
        "--no-auth",
        "--served-model-name",
        "--max-queue",
        "--queue-timeout-s",
        "--stall-timeout-s",
        "--request-timeout-s",
        "--max-tokens-default",
        "--drain-timeout-s",
        "--cors-origin",
        "--strict-params",
        "--always-include-usage",
        "--log-format",
        "--log-prompts",
        "--metrics",
        "--engine",
        "--ping-interval-s",
        "--max-connections",
        "--max-connection-requests",
        "--max-header-bytes",
        "--max-headers",
        "--max-url-bytes",
        "--max-body-bytes",
        "--header-timeout-s",
        "--body-timeout-s",
        "--write-timeout-s",
        "--keep-alive-timeout-s",
    ]


def test_every_option_says_what_it_is_and_takes_its_own_default() -> None:
    for option in options():
        assert len(option.help) > 15
    assert load_settings({option.name: option.default for option in options()}).engine == load_settings().engine


def test_what_is_said_last_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pelton.toml"
    file.write_text('max_model_len = 4096\nthreads = 2\ncache_dir = "/from-file"\n')
    monkeypatch.setenv("PELTON_CACHE_DIR", "/from-environment")
    monkeypatch.setenv("PELTON_OFFLINE", "1")
    settings = load_settings({"threads": "3"}, file)
    assert settings.engine.max_model_len == 4096
    assert settings.engine.threads == 3
    assert settings.store == StoreSettings(Path("/from-file"), True)
    named = ("max_model_len", "threads", "cache_dir", "offline", "level")
    assert [settings.sources[name] for name in named] == ["file", "user", "file", "environment", "default"]


@pytest.mark.parametrize(
    ("text", "nbytes"), [("4GiB", 4 << 30), ("512 mib", 512 << 20), ("1.5G", 1_500_000_000), ("1024", 1024), (77, 77)]
)
def test_sizes_are_written_as_people_write_them(text: str | int, nbytes: int) -> None:
    assert load_settings({"kv_cache_bytes": text}).engine.kv_cache_bytes == nbytes


def test_auto_is_none_and_lists_take_commas() -> None:
    settings = load_settings({"threads": "auto", "disabled_kernels": "a/b, c/d", "provider_order": ["x", "y"]})
    assert settings.engine.threads is None
    assert settings.engine.disabled_kernels == ("a/b", "c/d")
    assert settings.engine.provider_order == ("x", "y")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", 0),
        ("threads", -1),
        ("threads", 1.5),
        ("threads", True),
        ("threads", "many"),
        ("max_model_len", 1),
        ("kv_cache_bytes", "4 pigs"),
        ("kv_cache_bytes", "0"),
        ("kv_cache_bytes", "9" * 400 + "GiB"),
        ("max_num_batched_tokens", (1 << 30) + 1),
        ("kv_dtype", "int3"),
        ("activations", None),
        ("strict", "perhaps"),
        ("model", ""),
        ("disabled_kernels", 3),
        ("cache_dir", 5),
        ("cors_origin", "foo bar"),
        ("cors_origin", "example.org"),
        ("cors_origin", "https://example.org/path"),
    ],
)
def test_a_value_that_cannot_be_is_named(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"`{name}` is .*; it takes"):
        load_settings({name: value})


def test_an_unknown_setting_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean `max_model_len`") as caught:
        load_settings({"max_model_length": 3})
    assert caught.value.exit_code == 2


def test_an_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pelton.toml"
    file.write_text("colour = 1\n")
    with pytest.raises(UsageError, match=r"`colour` in `.*pelton\.toml` is not a setting"):
        load_settings(file=file)


def test_a_value_that_cannot_be_names_the_file_that_gives_it(tmp_path: Path) -> None:
    file = tmp_path / "pelton.toml"
    file.write_text("threads = -1\n")
    with pytest.raises(UsageError, match=r"`threads` in `.*pelton\.toml` is `-1`; it takes"):
        load_settings(file=file)


@pytest.mark.parametrize("content", [b"a = = 1", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_a_usage_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "pelton.toml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="is not TOML"):
        load_settings(file=file)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        load_settings(file=tmp_path / "absent.toml")


def test_the_environment_gives_four_things(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_API_KEY", "secret")
    monkeypatch.setenv("PELTON_LOG_LEVEL", "debug")
    assert from_environment().api_key == "secret"
    assert log_level() == "DEBUG"
    monkeypatch.setenv("PELTON_LOG_LEVEL", "loud")
    with pytest.raises(UsageError, match="PELTON_LOG_LEVEL"):
        log_level()


def test_the_cache_directory_is_below_home_by_default() -> None:
    assert StoreSettings.from_environment().cache_dir == Path.home() / ".cache" / "pelton"


def test_the_engines_process_is_told_how_its_model_is_described() -> None:
    given = load_settings({"model": "a.gguf", "model_config": "other/config.json"})
    assert load_settings(given.for_engine()).model == given.model
