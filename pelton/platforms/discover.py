"""Finds platforms, providers and models, those of other packages too, through entry points.

Something that fails to import is told once by a warning, shown in the status list, and breaks nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from pelton.errors import UsageError

if TYPE_CHECKING:
    from pelton.graph.kernel import Provider
    from pelton.platforms.platform import Platform

logger = logging.getLogger(__name__)

PLATFORMS = "pelton.platforms"
PROVIDERS = "pelton.providers"
MODELS = "pelton.models"

# What Pelton brings itself: found without asking for installed packages, and not to be replaced by them.
OWN = {
    PLATFORMS: {"cpu": "pelton.platforms.cpu:CpuPlatform", "torch": "pelton.platforms.torch:TorchPlatform"},
}


class Extension(msgspec.Struct, frozen=True):
    """One entry point. error: why it can't be used, None if it is loaded."""

    group: str
    name: str
    value: str
    error: str | None


def find_extensions(group: str) -> dict[str, str]:
    """ "module:object" by name; nothing of it is imported yet."""
    from importlib.metadata import entry_points  # itself a large part of a start, and few runs need it

    return {**{point.name: point.value for point in entry_points(group=group)}, **OWN.get(group, {})}


@cache
def load_extension(group: str, name: str, value: str) -> tuple[Any, str | None]:
    """(object, None) or (None, reason). Warns once."""
    module, _, attribute = value.partition(":")
    try:
        return getattr(import_module(module), attribute), None
    except Exception as error:  # noqa: BLE001  another package's import may raise anything
        reason = f"{type(error).__name__}: {error}"
        logger.warning("`%s` of `%s` (`%s`) can't be used: %s", name, group, value, reason)
        return None, reason


def statuses(groups: Iterable[str] = (PLATFORMS, PROVIDERS, MODELS), *, own: bool = True) -> list[Extension]:
    """Every extension that is installed, imported to see whether it can be. own: Pelton's among them."""
    return [
        Extension(group, name, value, load_extension(group, name, value)[1])
        for group in groups
        for name, value in find_extensions(group).items()
        if own or name not in OWN.get(group, {})
    ]


def find_platform(name: str) -> Platform:
    """Imports that platform only. Raises UsageError if there is none of that name or it can't be loaded."""
    platform: Platform = _find(PLATFORMS, name)()
    return platform


def find_provider(name: str) -> Provider:
    """A provider of another package. Raises UsageError if there is none of that name or it can't be loaded."""
    provider: Provider = _find(PROVIDERS, name)()
    return provider


def _find(group: str, name: str) -> Any:
    own = OWN.get(group, {})
    known = own if name in own else find_extensions(group)
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise UsageError(f"`{name}` is not one of the `{group}`", f"installed: {listed}")
    found, error = load_extension(group, name, known[name])
    if error is not None:
        raise UsageError(f"`{name}` of `{group}` can't be used: {error}")
    return found
