"""The bearer tokens that a service accepts, and what each of them allows."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.errors import AuthenticationError, PermissionDeniedError, ServeError, describe
from rest_store.service.tokens import TOKEN_EXPECTED, TOKEN_VARIABLE, Grant, grants_in, is_token


@dataclass(frozen=True)
class Rights:
    """What a call may do.

    Attributes:
        digest: of the call's token; empty where none is required.
        may_write: whether the call may add to live datastores and delete.
        datastores: names of the datastores that the call may use; None: all.
    """

    digest: bytes = b""
    may_write: bool = True
    datastores: frozenset[str] | None = None

    def include(self, name: str) -> bool:
        """Whether a call may use a datastore; the others are hidden from it."""
        return self.datastores is None or name in self.datastores

    def require_write(self) -> None:
        """Raise PermissionDeniedError unless it may write."""
        if not self.may_write:
            expected = "one whose line in the token file says `write`"
            raise PermissionDeniedError(describe("request", "token", "one that only reads", expected))


class BearerTokens:
    """The tokens that a service accepts; without any, no token is required, and every call may do everything.

    Args:
        path: a file as `grants_in` reads it, or None; of lines with the same token, the last one holds.
        token: a further token, from the environment, that only reads.

    Raises:
        ServeError: as `grants_in`, or `token` is invalid.

    Thread-safe.
    """

    def __init__(self, path: Path | None = None, token: str | None = None) -> None:
        if token is not None and not is_token(token):
            raise ServeError(describe("service", TOKEN_VARIABLE, "not a token", TOKEN_EXPECTED))
        self._path = path
        self._token = token
        self._rights: dict[bytes, Rights] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again; on an error the tokens stay as they are."""
        grants = [Grant(self._token)] if self._token else []
        if self._path is not None:
            grants += grants_in(self._path)
        rights = [Rights(_digest(token), may_write, datastores) for token, may_write, datastores in grants]
        self._rights = {one.digest: one for one in rights}

    def __bool__(self) -> bool:
        return bool(self._rights)

    def current(self, rights: Rights) -> Rights | None:
        """Return what the token of `rights`, which `require` returned once, allows now; None if it is not accepted."""
        return self._rights.get(rights.digest) if self._rights else rights

    def require(self, metadata: Any) -> Rights:
        """Return what the bearer token of a call allows.

        The time taken does not leak tokens.

        Raises:
            AuthenticationError: the call has no accepted token.
        """
        if not self._rights:
            return Rights()
        value = next((value for key, value in metadata or () if key == "authorization"), None)
        if value is None:
            raise AuthenticationError(describe("request", "authorization", "absent", "a bearer token"))
        scheme, _, token = (value if isinstance(value, str) else value.decode("latin-1")).partition(" ")
        digest = _digest(token.strip())
        accepted: Rights | None = None
        for known, rights in self._rights.items():
            if hmac.compare_digest(digest, known):
                accepted = rights
        if accepted is None or scheme.lower() != "bearer":
            raise AuthenticationError(describe("request", "authorization", "not accepted", "a bearer token known here"))
        return accepted


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
