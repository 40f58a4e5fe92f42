from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from pelton.errors import PeltonError, TokenizerError, UnsupportedModelError
from pelton.text.tokenizer import Tokenizer, byte_of_character, load_tokenizer

TEXTS = ["hello world", " two  spaces ", "héllo", "😀 and 日本語\n", "<s>not control</s>", ""]


def byte_level() -> tokenizers.Tokenizer:
    ids = {character: token_id for token_id, character in enumerate([*byte_of_character(), "he", "ll", "hell"])}
    backend = tokenizers.Tokenizer(models.BPE(ids, [("h", "e"), ("l", "l"), ("he", "ll")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return finish(backend)


def metaspace() -> tokenizers.Tokenizer:
    ids = sentencepiece_ids()
    backend = tokenizers.Tokenizer(models.BPE(ids, [("h", "e"), ("▁", "he")], byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return finish(backend)


def prepend() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(sentencepiece_ids(), [], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return finish(backend)


def sentencepiece_ids() -> dict[str, int]:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helowrdtspac", "he", "▁he"]
    return {piece: token_id for token_id, piece in enumerate(pieces)}


def finish(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Control tokens outside the model's vocabulary, as most models have them, and BOS before every text."""
    special = {"special": True, "normalized": False}
    backend.add_tokens([AddedToken("<s>", **special), AddedToken("</s>", **special)])
    backend.add_tokens([AddedToken("<think>", normalized=False)])
    start = backend.token_to_id("<s>")
    assert start is not None
    backend.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", start)])
    return backend


def write(directory: Path, backend: tokenizers.Tokenizer, **files: Any) -> Tokenizer:
    (directory / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    (directory / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": {"content": "</s>"}}')
    for name, content in files.items():
        (directory / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return load_tokenizer(directory)


@pytest.mark.parametrize("make", [byte_level, metaspace, prepend])
def test_ids_and_text_are_the_librarys_own(tmp_path: Path, make: Any) -> None:
    backend = make()
    tokenizer = write(tmp_path, backend)
    for text in TEXTS:
        parsed = tokenizer.encode(text, parse_special=True)
        assert parsed == backend.encode(text).ids
        assert tokenizer.decode(parsed) == backend.decode(parsed)
        plain = tokenizer.encode(text, add_special=False)
        assert not tokenizer.control_tokens.keys() & {tokenizer.token_text(token_id) for token_id in plain}
        assert tokenizer.decode(plain) == backend.decode(plain)
    assert tokenizer.encode("<think>", add_special=False)[-1:] == [backend.token_to_id("<think>")]


def test_facts_come_from_the_settings_files(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, byte_level(), generation_config={"eos_token_id": [5, 7]}, config={"eos_token_id": 9})
    end = tokenizer.eos_token_id
    assert tokenizer.token_text(end or 0) == "</s>"
    assert tokenizer.eog_token_ids == {5, 7, 9, end}
    assert (tokenizer.add_bos, tokenizer.add_eos) == (True, False)
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id


def test_a_directory_without_tokenizer_json_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no `tokenizer\.json`\nhint: .*save_pretrained"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model": 3}', "[" * 100_000])
def test_a_malformed_tokenizer_json_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(PeltonError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_panic_of_the_library_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = json.loads(byte_level().to_str())
    content["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="is not a tokenizer"):
        load_tokenizer(tmp_path)
    capfd.readouterr()


def test_bytes_that_are_no_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(TokenizerError, match="not valid UTF-8"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"generation_config": {"eos_token_id": "x"}}, "generation_config.json"),
        ({"generation_config": {"eos_token_id": [-1]}}, "generation_config.json"),
        ({"generation_config": "[1]"}, "not a JSON object"),
        ({"generation_config": "{"}, "not valid JSON"),
        ({"tokenizer_config": {"bos_token": "<none>"}}, "`<none>`"),
        ({"tokenizer_config": {"bos_token": 3}}, "`3`"),
    ],
)
def test_malformed_settings_are_named(tmp_path: Path, files: dict[str, Any], named: str) -> None:
    with pytest.raises(TokenizerError) as caught:
        write(tmp_path, byte_level(), **files)
    assert named in str(caught.value)


def test_an_unknown_decoder_is_named(tmp_path: Path) -> None:
    backend = byte_level()
    backend.decoder = decoders.CTC()
    with pytest.raises(UnsupportedModelError, match="`CTC`"):
        write(tmp_path, backend)
