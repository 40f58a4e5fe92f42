"""Who may ask: keys, and what keeps web pages of strangers away from a server without them. It knows no handler.

A server that only this machine reaches needs no key, but every page in a browser on this machine reaches it too. So
without keys the names in `Host` and `Origin` are checked: a name that a stranger lets point at 127.0.0.1 (by DNS)
is not ours, and another site's page may not send requests even if it could not read the answers.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers

from pelton.config import ServerSettings
from pelton.errors import UsageError
from pelton.server.errors import ApiError

logger = logging.getLogger(__name__)

_MAX_KEYS = 1000  # each request is compared with all of them
_MAX_KEY_FILE_BYTES = 1 << 20
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class ApiKeys:
    """Keys as keyed hashes: the process holds none that could be read from its memory or its log."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._salt = secrets.token_bytes(32)
        self._hashes = [self._hash(key.encode()) for key in keys]

    def __len__(self) -> int:
        return len(self._hashes)

    def find(self, key: bytes) -> int | None:
        """Which key it is. Takes as long for a wrong key as for any right one."""
        given = self._hash(key)
        found = None
        for number, known in enumerate(self._hashes):
            if hmac.compare_digest(given, known):
                found = number
        return found

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._salt, digest_size=32).digest()


class Guard(msgspec.Struct, frozen=True):
    """Decides before a request's body is read.

    keys:           None: no key is needed.
    allowed_hosts:  names that `Host` may give; None: any.
    """

    keys: ApiKeys | None = None
    allowed_hosts: frozenset[str] | None = None
    cors_origins: tuple[str, ...] = ()

    def check_sender(self, headers: Headers) -> None:
        """Raises ApiError (403) for a request that a page of another site caused."""
        if self.allowed_hosts is None:
            return
        host = headers.get("host")
        if host is not None and _host_name(host) not in self.allowed_hosts:
            raise ApiError(
                403,
                f"the name `{host}` is not one of this server's; without a key it answers to "
                f"{', '.join(f'`{name}`' for name in sorted(self.allowed_hosts))}",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and not self.allows_origin(origin) and _is_foreign(origin, self.allowed_hosts):
            raise ApiError(
                403,
                f"pages of `{origin}` may not use this server; start it with `--cors-origin {origin}` to let them",
                code="origin_not_allowed",
            )

    def allows_origin(self, origin: str) -> bool:
        return "*" in self.cors_origins or origin in self.cors_origins

    def check_key(self, headers: Headers) -> str:
        """Names the key that was given; "" where there is one at most. Raises ApiError (401)."""
        if self.keys is None:
            return ""
        given = _given_keys(headers)
        for key in given:
            number = self.keys.find(key)
            if number is not None:
                return f"key-{number}" if len(self.keys) > 1 else ""
        problem = "the API key is not valid" if given else "an API key is needed, as `Authorization: Bearer KEY`"
        raise ApiError(401, problem, headers={"www-authenticate": 'Bearer realm="pelton"'})


def make_guard(settings: ServerSettings, keys: Sequence[str]) -> Guard:
    """Without keys a server on a loopback address answers to its own names only."""
    is_open = not keys
    allowed = frozenset((*_LOCAL_NAMES, settings.host)) if is_open and is_loopback(settings.host) else None
    return Guard(None if is_open else ApiKeys(keys), allowed, settings.cors_origin)


def choose_keys(settings: ServerSettings, environment_key: str | None) -> tuple[list[str], bool]:
    """(the keys, whether a key was made up here). Raises UsageError where what is asked for contradicts itself."""
    keys = [environment_key] if environment_key else []
    if settings.api_key_file is not None:
        keys += _read_keys(settings.api_key_file)
    for key in keys:
        _check_key(key)
    if settings.no_auth:
        if keys:
            raise UsageError("`no_auth` is set and there are API keys", "leave one of them out")
        return [], False
    if keys or is_loopback(settings.host):
        return keys, False
    return [f"pelton-{secrets.token_urlsafe(32)}"], True


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_keys(file: Path) -> list[str]:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_KEY_FILE_BYTES + 1)
            readers = file.stat().st_mode & 0o044
        text = content.decode()
    except OSError as error:
        raise UsageError(f"the key file `{file}` can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the key file `{file}` is not text") from error
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not keys:
        raise UsageError(f"the key file `{file}` has no key", "it takes one a line")
    if len(content) > _MAX_KEY_FILE_BYTES or len(keys) > _MAX_KEYS:
        raise UsageError(f"the key file `{file}` is too large", f"at most {_MAX_KEYS} keys are taken")
    if readers:
        logger.warning("the key file `%s` can be read by other users of this machine", file)
    return keys


def _check_key(key: str) -> None:
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError("an API key has a character that a header can't carry", "use letters, digits and `-_.`")


def _given_keys(headers: Headers) -> list[bytes]:
    given = [value.encode("latin-1") for value in headers.getlist("x-api-key")]
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            given.append(key.strip().encode("latin-1"))
    return given


def _host_name(host: str) -> str:
    """Of `name:port` or `[address]:port`, in lower case; the whole text if it is neither, which no name equals."""
    try:
        return urlsplit(f"//{host}").hostname or host
    except ValueError:
        return host


def _is_foreign(origin: str, own_hosts: frozenset[str]) -> bool:
    """Whether it is a web page's, and of another machine. Programs that send an origin have schemes of their own.

    `null` is what a page sends that hides where it is from.
    """
    if origin == "null":
        return True
    try:
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.hostname not in own_hosts
    except ValueError:
        return True
