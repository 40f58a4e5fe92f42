from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.errors import UsageError
from pelton.text.stop_matcher import MAX_STOP_CHARACTERS, StopMatcher

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
TEXT = st.text("abc", max_size=40)


def watch(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop=include_stop)
    shown, matched = [], None
    for piece in pieces:
        text, matched = matcher.push(piece)
        shown.append(text)
        if matched is not None:
            return "".join(shown), matched
    return "".join([*shown, matcher.finish()]), None


def search(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: the first end of a match, of several there the longest."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(STOPS, TEXT, st.lists(st.integers(0, 40)))
def test_any_cut_of_the_text_gives_the_same(stops: list[str], text: str, cuts: list[int]) -> None:
    bounds = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    assert watch(stops, pieces) == search(stops, text)


@given(STOPS, TEXT)
def test_the_match_can_be_shown(stops: list[str], text: str) -> None:
    before, stop = search(stops, text)
    assert watch(stops, list(text), include_stop=True) == (before + (stop or ""), stop)


@given(STOPS, TEXT)
def test_only_a_possible_beginning_of_a_match_is_held_back(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for index, character in enumerate(text):
        piece, matched = matcher.push(character)
        shown += piece
        if matched is not None:
            return
        held = text[len(shown) : index + 1]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_nothing_is_shown_after_a_match() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("one\n") == ("one", None)
    assert matcher.push("\ntwo") == ("", "\n\n")
    assert matcher.push("three") == ("", "\n\n")
    assert matcher.finish() == ""


def test_without_stop_strings_text_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") == ("anything", None)
    assert matcher.finish() == ""


@pytest.mark.parametrize("stop", ["", "x" * (MAX_STOP_CHARACTERS + 1)])
def test_an_impossible_stop_string_is_refused(stop: str) -> None:
    with pytest.raises(UsageError, match="a stop string has"):
        StopMatcher([stop])
