"""From a request's bytes to a typed request, or to an error that names the field; it knows no model and no engine.

A field that Pelton does not have is one of two things. Ignoring some changes what the answer means (`tools`,
`response_format`): those are refused. Ignoring the others changes nothing or little (`prediction`, a client's own
marks): they are named in a header and a log line, or refused if the server is strict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from pelton.server.errors import ApiError

T = TypeVar("T", bound=msgspec.Struct)

# Name -> values that ask for nothing, which are taken. Any other value would change the answer's meaning.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "dry_multiplier": (0, 0.0),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_json_object": (False,),
    "guided_regex": ("",),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "lora": ([],),
    "mirostat": (0,),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "structural_tag": (),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0, 0.0),
}

_LOCATED = re.compile(r"(?P<what>.*?) - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_PART_TYPE = re.compile(r"\.content\[\d+\]\.type$")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]-]{0,63}")
_MAX_IGNORED_NAMES = 16
_MAX_MESSAGE_CHARACTERS = 300


def decode_request(body: bytes, type_: type[T], *, is_strict: bool = False) -> tuple[T, tuple[str, ...]]:
    """The request, and the paths of fields that have no effect, fit for a header.

    Raises ApiError (400) for what is not JSON, not of the type, out of range, refused, or unknown if is_strict.
    """
    try:
        request = msgspec.json.decode(body, type=type_)
        given = msgspec.json.decode(body)
    except msgspec.ValidationError as error:
        raise _validation_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise bad_request("the body is nested too deep", code="invalid_json") from None
    known = type_.__struct_fields__
    for name, neutral in REFUSED.items():
        if name not in known and given.get(name) is not None:
            _check_refused(name, given, neutral)
    ignored = tuple(dict.fromkeys(name for name in _ignored(request, given) if name not in REFUSED))
    if len(ignored) > _MAX_IGNORED_NAMES:
        ignored = (*ignored[:_MAX_IGNORED_NAMES], "(more)")
    if ignored and is_strict:
        raise bad_request(f"unknown fields: {', '.join(ignored)}", ignored[0], code="unknown_parameter")
    return request, ignored


def bad_request(message: str, param: str | None = None, *, code: str = "invalid_value") -> ApiError:
    if len(message) > _MAX_MESSAGE_CHARACTERS:
        message = message[:_MAX_MESSAGE_CHARACTERS] + "…"
    return ApiError(400, message, type="invalid_request_error", code=code, param=param)


def _validation_error(text: str) -> ApiError:
    located = _LOCATED.fullmatch(text)
    what, path = (located["what"], located["path"]) if located else (text, "")
    missing = _MISSING.match(what)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return bad_request(f"`{path}` is missing", path, code="missing_required_parameter")
    if _PART_TYPE.search(path):
        return bad_request(f"`{path}`: only parts of type `text` are taken: {what}", path)
    is_type = what.startswith("Expected") and ", got " in what
    return bad_request(
        f"`{path}`: {what}" if path else what, path or None, code="invalid_type" if is_type else "invalid_value"
    )


def _check_refused(name: str, given: Mapping[str, Any], neutral: tuple[Any, ...]) -> None:
    value = given[name]
    is_neutral = any(type(value) is type(each) and value == each for each in neutral)
    if is_neutral or (name in ("tools", "functions") and _is_declined(given)):
        return
    raise bad_request(
        f"`{name}` is not supported: the answer would be given as if it were not there",
        name,
        code="unsupported_parameter",
    )


def _is_declined(given: Mapping[str, Any]) -> bool:
    """Tools that the client forbids to call need not be known."""
    return given.get("tool_choice") == "none" or given.get("function_call") == "none"


def _ignored(value: Any, given: Any, path: str = "") -> Iterator[str]:
    """Paths of given fields that the typed value has no place for. One path stands for all items of a list."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        for name, item in given.items():
            if name in value.__struct_fields__:
                if isinstance(item, dict | list):
                    yield from _ignored(getattr(value, name), item, f"{path}{name}.")
            elif item is not None and name != config.tag_field:
                yield path + (name if _PLAIN_NAME.fullmatch(name) else "(unprintable)")
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        for each, item in zip(value, given, strict=True):
            yield from _ignored(each, item, path[:-1] + "[].")
