"""The bearer tokens that a service accepts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from rest_store.errors import AuthenticationError, PermissionDeniedError, ServeError, describe
from rest_store.service.tokens import TOKEN_EXPECTED, TOKEN_VARIABLE, Grant, grants_in, is_token

ALL_ALLOWED = Grant("", may_write=True)  # to every call of a service that requires no token


class BearerTokens:
    """The tokens that a service accepts; without any, no token is required, and every call may do everything.

    Args:
        path: a file as `grants_in` reads it, or None; of lines with the same token, the last one holds.
        token: a further token, from the environment, that only reads.

    Raises:
        ServeError: as `grants_in`, or `token` is invalid.
    """

    def __init__(self, path: Path | None = None, token: str | None = None) -> None:
        if token is not None and not is_token(token):
            raise ServeError(describe("service", TOKEN_VARIABLE, "not a token", TOKEN_EXPECTED))
        grants = [Grant(token)] if token else []
        if path is not None:
            grants += grants_in(path)
        self._grants = {_digest(grant.token): grant for grant in grants}

    def __bool__(self) -> bool:
        return bool(self._grants)

    def require(self, metadata: Any) -> Grant:
        """Return what the bearer token of a call allows.

        The time taken does not leak tokens: what is looked up is a digest.

        Raises:
            AuthenticationError: the call has no accepted token.
        """
        if not self._grants:
            return ALL_ALLOWED
        value = next((value for key, value in metadata or () if key == "authorization"), None)
        if value is None:
            raise AuthenticationError(describe("request", "authorization", "absent", "a bearer token"))
        scheme, _, token = (value if isinstance(value, str) else value.decode("latin-1")).partition(" ")
        grant = self._grants.get(_digest(token.strip()))
        if grant is None or scheme.lower() != "bearer":
            raise AuthenticationError(describe("request", "authorization", "not accepted", "a bearer token known here"))
        return grant


def require_write(grant: Grant) -> None:
    """Raise PermissionDeniedError unless a call with `grant` may add and delete."""
    if not grant.may_write:
        expected = "one whose line in the token file says `write`"
        raise PermissionDeniedError(describe("request", "token", "one that only reads", expected))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
