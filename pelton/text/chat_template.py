"""Turns a conversation into the text and tokens a chat model was trained on; it does not know what models answer.

A checkpoint's template is a program from a stranger. It runs in minijinja, with no access to anything but the values
given here, and with a budget of steps that every string and every copy of a list counts against: these take less than
MAX_RENDER_BYTES for a short conversation. Not bounded is what shares its parts: a list that is added to itself or put
into a list twice, again and again, is small until it is written out or handed to a filter, and the engine of templates
counts only afterwards. Who serves templates of strangers to others limits the process's memory.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.errors import ChatTemplateError
from pelton.text.tokenizer import Tokenizer, utf8_of

if TYPE_CHECKING:
    import minijinja


# minijinja counts a step per instruction and per few bytes of every string made. Templates in use take about 40 steps
# per message; copying the whole conversation a few times is the most that any does with its bytes.
_FUEL = 1_000_000
_FUEL_PER_INPUT_CHARACTER = 64
MAX_RENDER_BYTES = 128 << 20
_MAX_SOURCE_CHARACTERS = 1 << 20
# A template may repeat the conversation, never multiply it.
_MAX_OUTPUT_CHARACTERS = 1 << 20
_MAX_OUTPUT_PER_INPUT_CHARACTER = 8
_MAX_INDENT = 16
_MAX_DATE_FORMAT_CHARACTERS = 256

_ANOTHER_TEMPLATE = "the template came with the model: it needs another one, or another model"

# Marks of what the assistant said, for training: they produce no text. Whitespace control must stay.
_GENERATION_BLOCK = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


class ChatTemplate:
    """One compiled template and the tokenizer it writes for."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises ChatTemplateError, with what it stumbled over, if the template does not compile."""
        if len(source) > _MAX_SOURCE_CHARACTERS:
            raise ChatTemplateError(
                f"the chat template has `{len(source)}` characters; at most `{_MAX_SOURCE_CHARACTERS}` are read"
            )
        self.source = source
        self._tokenizer = tokenizer
        ids = {
            "bos_token": tokenizer.bos_token_id,
            "eos_token": tokenizer.eos_token_id,
            "pad_token": tokenizer.pad_token_id,
        }
        self._special_tokens = {
            variable: tokenizer.token_text(token_id) for variable, token_id in ids.items() if token_id is not None
        }
        self._environment = _make_environment(_GENERATION_BLOCK.sub(_without_generation, source))
        self._lock = threading.Lock()  # the budget of steps is a state of the environment

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as one text.

        tools, documents and the like are undefined in the template when absent, as most templates expect.
        Raises ChatTemplateError if the template refuses the messages, fails, or does not come to an end.
        """
        if tools:
            variables["tools"] = list(tools)
        values = {**self._special_tokens, **variables, "messages": list(messages)}
        values["add_generation_prompt"] = add_generation_prompt
        num_characters = _count_characters(values)
        limit = _MAX_OUTPUT_CHARACTERS + _MAX_OUTPUT_PER_INPUT_CHARACTER * num_characters
        with self._lock:
            text = _run(self._environment, values, _FUEL + _FUEL_PER_INPUT_CHARACTER * num_characters)
        if len(text) > limit:
            raise ChatTemplateError(
                f"the chat template made `{len(text)}` characters of a conversation of `{num_characters}`"
            )
        return text

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        max_bytes: int | None = None,
        **variables: Any,
    ) -> tuple[str, list[int]]:
        """The conversation as one text and as its token ids; BOS is among them if the template writes it.

        continue_final_message: the text ends with the last message's own, open to go on; no generation prompt then.
        max_bytes:              refuse a longer text (UTF-8 bytes) with ContextLengthError before it is tokenised.

        Only the template writes control tokens. One that is spelled in the messages or tools stays text: a user can't
        close the turn. Merges across the seam of template and message are the model's own, since the text is encoded
        between true control tokens, not between seams.
        """
        if continue_final_message:
            messages = _left_open(messages)
        guard = _ControlTokenGuard(self._tokenizer.control_tokens, messages, tools)
        with_prompt = add_generation_prompt and not continue_final_message
        text = self.render(guard.messages, tools=guard.tools, add_generation_prompt=with_prompt, **variables)
        if continue_final_message:
            text = _up_to_open_end(text)
        shown = guard.show(text)
        utf8_of(shown, max_bytes)
        return shown, guard.encode(self._tokenizer, text)


def _left_open(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with a mark where the last one's text ends, which tells its end from anything that looks like it."""
    if not messages:
        raise ChatTemplateError("there is no last message that could be continued")
    *before, last = messages
    content = last.get("content")
    if isinstance(content, str) and content.strip():
        return [*before, {**last, "content": content + _OPEN_END}]
    part = content[-1] if isinstance(content, list) and content else None  # of several parts the last one goes on
    if isinstance(content, list) and isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return [*before, {**last, "content": [*content[:-1], {**part, "text": part["text"] + _OPEN_END}]}]
    raise ChatTemplateError("the last message has no text that could be continued")


def _up_to_open_end(text: str) -> str:
    end = text.rfind(_OPEN_END)
    if end < 0:
        raise ChatTemplateError(
            "the chat template does not show the last message as it stands, so it can't be continued", _ANOTHER_TEMPLATE
        )
    return text[:end]


class _ControlTokenGuard:
    """Tells control tokens that messages spell from the template's own: hides them as rare characters."""

    def __init__(
        self,
        control_tokens: Mapping[str, int],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        self.messages = messages
        self.tools = tools
        self._text_of: dict[str, str] = {}
        self._pattern = _any_of(control_tokens)
        spelled: set[str] = set()
        characters: set[str] = set()
        _for_each_string([messages, tools], lambda text: self._note(text, spelled, characters))
        if not spelled:
            return
        unused = (chr(code) for code in _RARE_CHARACTERS if chr(code) not in characters)
        self._text_of = dict(zip(unused, sorted(spelled), strict=False))
        hidden = {text: character for character, text in self._text_of.items()}
        self.messages, self.tools = _map_strings(
            [list(messages), tools], lambda text: self._pattern.sub(lambda match: hidden[match[0]], text)
        )

    def _note(self, text: str, spelled: set[str], characters: set[str]) -> None:
        found = self._pattern.findall(text)
        spelled.update(found)
        characters.update(text)

    def show(self, text: str) -> str:
        """The text with the hidden control tokens spelled out."""
        for character, spelled in self._text_of.items():
            text = text.replace(character, spelled)
            text = text.replace(json.dumps(character)[1:-1], spelled)  # of a template that asks for ASCII
        return text

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        if not self._text_of:
            return tokenizer.encode(text, add_special=False, parse_special=True)
        ids: list[int] = []
        position = 0
        for match in self._pattern.finditer(text):
            ids += tokenizer.encode(self.show(text[position : match.start()]), add_special=False)
            ids += tokenizer.encode(match[0], add_special=False, parse_special=True)
            position = match.end()
        return ids + tokenizer.encode(self.show(text[position:]), add_special=False)


# CJK ideographs of Extension G. Unlike private-use characters, printing a value does not escape them.
_RARE_CHARACTERS = range(0x30000, 0x31340)
_OPEN_END = "\U0003134a"


def _any_of(texts: Mapping[str, int]) -> re.Pattern[str]:
    """Matches the longest of the texts that starts at a place; nothing if there are none."""
    longest_first = sorted((text for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _for_each_string(value: object, visit: Callable[[str], object]) -> None:
    _map_strings(value, lambda text: visit(text) or text)


def _map_strings(value: Any, change: Callable[[str], Any], depth: int = 0) -> Any:
    """The same nest of lists and dicts with every string changed, names of roles and keys excepted.

    Raises RequestError for a string that is not valid Unicode, ChatTemplateError for a nest too deep.
    """
    if depth > _MAX_DEPTH:
        raise ChatTemplateError(f"a message is nested more than `{_MAX_DEPTH}` deep")
    if isinstance(value, str):
        utf8_of(value)  # the template engine would write a lone surrogate as three other characters, and say nothing
        return change(value)
    if isinstance(value, Mapping):
        return {key: item if key == "role" else _map_strings(item, change, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change, depth + 1) for item in value]
    return value


_MAX_DEPTH = 64


def _count_characters(value: object) -> int:
    total = 0

    def add(text: str) -> None:
        nonlocal total
        total += len(text)

    _for_each_string(value, add)
    return total


def _without_generation(match: re.Match[str]) -> str:
    before, end, after = match[1], match[2], match[3]
    return f"{{%{before} {'endif' if end else 'if true'} {after}%}}"


def load_chat_template(
    source: Mapping[str, object] | Path, tokenizer: Tokenizer, *, name: str = "default"
) -> ChatTemplate | None:
    """The chat template of GGUF metadata or of a directory; None if the model has none: it continues text, no more.

    name: which of several (`tool_use`, `rag`). Raises ChatTemplateError for a name that the model does not have.
    """
    sources = _sources_of_directory(source) if isinstance(source, Path) else _sources_of_metadata(source)
    if not sources:
        return None
    if name not in sources:
        raise ChatTemplateError(
            f"the model has no chat template `{name}`", f"it has {', '.join(f'`{each}`' for each in sorted(sources))}"
        )
    text = sources[name]
    if not isinstance(text, str):
        raise ChatTemplateError(f"chat template `{name}` of the model is not text")
    return ChatTemplate(text, tokenizer)


def has_chat_template(source: Mapping[str, object] | Path) -> bool:
    """Whether load_chat_template would find one; it is not compiled."""
    return bool(_sources_of_directory(source) if isinstance(source, Path) else _sources_of_metadata(source))


def _sources_of_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    """All templates by name: the one without a name is the default."""
    key = "tokenizer.chat_template"
    return {
        each[len(key) + 1 :] or "default": metadata[each]
        for each in metadata
        if each == key or each.startswith(key + ".")
    }


def _sources_of_directory(directory: Path) -> dict[str, object]:
    """All templates by name; a file of its own counts for more than an entry in another."""
    from pelton.text.json_tokenizer import read_json, read_text

    found: dict[str, object] = {}
    for path in (directory / "tokenizer_config.json", directory / "chat_template.json"):
        value = read_json(path).get("chat_template") if path.is_file() else None
        if isinstance(value, list):
            found.update({str(item.get("name")): item.get("template") for item in value if isinstance(item, dict)})
        elif value is not None:
            found["default"] = value
    if (path := directory / "chat_template.jinja").is_file():
        found["default"] = read_text(path)
    found.update({path.stem: read_text(path) for path in sorted(directory.glob("additional_chat_templates/*.jinja"))})
    return found


# --- minijinja ----------------------------------------------------------------------


class _RaisedByTemplate(Exception):
    """The template itself called raise_exception: its message is for the user."""


def _make_environment(source: str) -> minijinja.Environment:
    import minijinja

    environment = minijinja.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        auto_escape_callback=_no_escaping,
        filters={"tojson": _to_json, "indent": _indent},
        globals={"raise_exception": _raise_exception, "strftime_now": _strftime_now},
    )
    try:
        environment.add_template("chat_template", source)
    except minijinja.TemplateError as error:
        raise ChatTemplateError(f"the chat template does not compile: {_describe(error)}", _ANOTHER_TEMPLATE) from None
    return environment


def _run(environment: minijinja.Environment, values: dict[str, Any], fuel: int) -> str:
    import minijinja

    environment.fuel = fuel
    try:
        return environment.render_template("chat_template", **values)
    except _RaisedByTemplate as error:
        raise ChatTemplateError(f"the chat template refuses this conversation: {error}") from None
    except minijinja.TemplateError as error:
        if error.kind == "OutOfFuel":
            raise ChatTemplateError(
                f"the chat template did not come to an end within `{fuel}` steps: {_describe(error)}",
                _ANOTHER_TEMPLATE,
            ) from None
        raise ChatTemplateError(f"the chat template failed: {_describe(error)}") from None
    except (TypeError, ValueError, OverflowError) as error:  # of a value that can't be converted
        raise ChatTemplateError(f"the chat template failed: {error}") from error


def _describe(error: minijinja.TemplateError) -> str:
    """What went wrong, and the piece of the template where it did."""
    text = error.detail or error.kind
    span = error.range
    if span is not None and error.template_source is not None:
        construct = error.template_source.encode()[span[0] : span[1]].decode("utf-8", "replace")
        text += f" at `{construct[:80]}`"
    return f"{text} (line {error.line})" if error.line is not None else text


def _no_escaping(_name: str) -> bool:
    return False


def _raise_exception(message: object = "") -> None:
    raise _RaisedByTemplate(str(message))


def _strftime_now(pattern: str) -> str:
    if len(pattern) > _MAX_DATE_FORMAT_CHARACTERS:
        raise ValueError(f"a date format has more than {_MAX_DATE_FORMAT_CHARACTERS} characters")
    return datetime.now().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' templates mean it: readable characters, nothing escaped for HTML."""
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise ValueError(f"`tojson` indents by at most {_MAX_INDENT}")
    pair = (separators[0], separators[1]) if separators else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


def _indent(text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """As in Jinja: unlike minijinja's own, it keeps a line end at the end of the text."""
    if isinstance(width, int) and width > _MAX_INDENT:
        raise ValueError(f"`indent` takes at most {_MAX_INDENT}")
    prefix = width if isinstance(width, str) else " " * width
    lines = f"{text}\n".splitlines()
    indented = [prefix + line if line or blank else line for line in lines[1:]]
    return "\n".join([prefix + lines[0] if first else lines[0], *indented])
