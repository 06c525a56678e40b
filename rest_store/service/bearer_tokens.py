"""Bearer tokens, and the token files of a service, which say what each token allows."""

from __future__ import annotations

import hashlib
import reprlib
from pathlib import Path
from typing import Any, NamedTuple

from rest_store.errors import AuthenticationError, PermissionDeniedError, ServeError, describe

TOKEN_VARIABLE = "REST_STORE_TOKEN"
TOKEN_EXPECTED = "1 to 4096 visible ASCII characters, no blanks"
_MAX_TOKEN_LENGTH = 4096  # characters; gRPC refuses metadata of more than 8 KiB
_TOKEN_ASKED = f"a bearer token of this service: token=, --token-file or {TOKEN_VARIABLE}"
_WRITE, _NAMESPACE = "write", "namespace="


class Grant(NamedTuple):
    """What a call may do.

    Attributes:
        token: that it has; empty where none is required.
        may_write: whether it may add to live datastores and delete.
        namespaces: of live datastores that it may read and write; None: all.
    """

    token: str
    may_write: bool = False
    namespaces: frozenset[str] | None = None

    def require_namespace(self, name: str) -> None:
        """Raise PermissionDeniedError unless the namespace `name` is one of the call's."""
        if self.namespaces is not None and name not in self.namespaces:
            expected = "one of those in the token's line of the token file"
            raise PermissionDeniedError(
                describe("request", "namespace", reprlib.repr(name), expected)
            )

    def require_write(self) -> None:
        """Raise PermissionDeniedError unless the call may write."""
        if not self.may_write:
            expected = "one whose line in the token file says `write`"
            raise PermissionDeniedError(
                describe("request", "token", "one that only reads", expected)
            )


ALL_ALLOWED = Grant("", may_write=True)  # to every call of a service that requires no token


def is_token(token: object) -> bool:
    """Whether `token` reaches the other side as it is in the
    `authorization` of a call (`TOKEN_EXPECTED`).
    """
    return (
        isinstance(token, str)
        and 0 < len(token) <= _MAX_TOKEN_LENGTH
        and all("!" <= character <= "~" for character in token)
    )


def grants_in(path: Path) -> list[Grant]:
    """Return the grants of a file, one a line; empty lines and lines that start with # are skipped.

    A line is a token, and then perhaps `write`, and `namespace=NAME` for each of those that it is
    limited to.

    Raises:
        ServeError: the file cannot be read, is not UTF-8, holds no token, or a line is malformed.
    """
    try:
        lines = [line.strip(" \t\r") for line in path.read_bytes().decode("utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        found = f"unreadable ({getattr(error, 'strerror', None) or error})"
        raise ServeError(
            describe(path, "token file", found, "a file with one token a line, in UTF-8")
        ) from None
    grants = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            token, *allowed = line.split()
            names = [one.removeprefix(_NAMESPACE) for one in allowed if one.startswith(_NAMESPACE)]
            # What the line says is a secret.
            if not is_token(token) or len(names) + (_WRITE in allowed) < len(allowed):
                expected = (
                    f"{TOKEN_EXPECTED}; then, after blanks, perhaps `{_WRITE}` and"
                    f" `{_NAMESPACE}NAME`"
                )
                raise ServeError(
                    describe(path, f"line {number}", "not a token with what it allows", expected)
                )
            grants.append(Grant(token, _WRITE in allowed, frozenset(names) if names else None))
    if not grants:
        raise ServeError(describe(path, "token file", "without a token", "one token a line"))
    return grants


class BearerTokens:
    """The tokens that a service accepts.

    Without any, no token is required, and every call may do everything.

    Args:
        path: a file as `grants_in` reads it, or None; of lines with the same token, the last one
            holds.
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
            raise AuthenticationError(describe("request", "authorization", "absent", _TOKEN_ASKED))
        scheme, _, token = (value if isinstance(value, str) else value.decode("latin-1")).partition(
            " "
        )
        grant = self._grants.get(_digest(token.strip()))
        if grant is None or scheme.lower() != "bearer":
            raise AuthenticationError(
                describe("request", "authorization", "not accepted", _TOKEN_ASKED)
            )
        return grant


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
