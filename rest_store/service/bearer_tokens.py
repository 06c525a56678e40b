"""Bearer tokens, and the token files of a service, which list the rights of each token."""

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
_WRITE = "write"
_NAMESPACE = "namespace="
_GROUP = "group="


class Grant(NamedTuple):
    """The rights of a call.

    Attributes:
        token: of the call; "": the service requires none.
        may_write: whether it may add documents to live datastores, and delete them.
        namespaces: of live datastores that it may read and write; None: all.
        groups: of live datastores that it may read and write as; None: any.
    """

    token: str
    may_write: bool = False
    namespaces: frozenset[str] | None = None
    groups: frozenset[str] | None = None

    def require_namespace(self, name: str) -> None:
        """Raise PermissionDeniedError unless the call may use the namespace `name`."""
        if self.namespaces is not None and name not in self.namespaces:
            expected = "one of those in the token's line of the token file"
            raise PermissionDeniedError(
                describe("request", "namespace", reprlib.repr(name), expected)
            )

    def require_reader(self, group: str) -> None:
        """Raise PermissionDeniedError unless the call may read as `group`; "": as no group."""
        if group:
            self.require_group(group)

    def require_group(self, group: str) -> None:
        """Raise PermissionDeniedError unless the call may write as `group`."""
        if self.groups is not None and group not in self.groups:
            expected = "one of those in the token's line of the token file"
            raise PermissionDeniedError(describe("request", "group", reprlib.repr(group), expected))

    def require_every_group(self, operation: str) -> None:
        """Raise PermissionDeniedError if the call may use some groups alone.

        Args:
            operation: the refused operation for the message, as a participle.
        """
        if self.groups is not None:
            raise PermissionDeniedError(
                f"request: a live datastore cannot be {operation} with a token whose line in the"
                " token file names groups, since all documents would be read"
            )

    def require_write(self) -> None:
        """Raise PermissionDeniedError unless the call may write."""
        if not self.may_write:
            expected = "one whose line in the token file says `write`"
            raise PermissionDeniedError(
                describe("request", "token", "one that only reads", expected)
            )


ALL_ALLOWED = Grant("", may_write=True)  # of every call to a service that requires no token


def is_token(token: object) -> bool:
    """Return whether `token` can be sent unchanged in the metadata of a call."""
    return (
        isinstance(token, str)
        and 0 < len(token) <= _MAX_TOKEN_LENGTH
        and all("!" <= character <= "~" for character in token)
    )


def grants_in(path: Path) -> list[Grant]:
    """Return the grants of a file, one a line.

    A line is a token, then `write` if it may write, `namespace=NAME` for each namespace that it is
    limited to, and `group=NAME` for each group. Empty lines and lines that start with # are
    skipped.

    Raises:
        ServeError: the file cannot be read, is not UTF-8, holds no token, or a line is malformed.
    """
    try:
        lines = [line.strip(" \t\r") for line in path.read_bytes().decode("utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        actual = f"unreadable ({getattr(error, 'strerror', None) or error})"
        raise ServeError(
            describe(path, "token file", actual, "a file with one token a line, in UTF-8")
        ) from None
    grants = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            grants.append(_parse_grant(line, path, number))
    if not grants:
        raise ServeError(describe(path, "token file", "without a token", "one token a line"))
    return grants


def _parse_grant(line: str, path: Path, number: int) -> Grant:
    """Return the grant of a line; raise ServeError, without the secret line, if it is malformed."""
    token, *rights = line.split()
    names = [right.removeprefix(_NAMESPACE) for right in rights if right.startswith(_NAMESPACE)]
    groups = [right.removeprefix(_GROUP) for right in rights if right.startswith(_GROUP)]
    may_write = _WRITE in rights
    unknown = len(rights) - len(names) - len(groups) - may_write
    if unknown > 0 or not is_token(token):
        expected = (
            f"{TOKEN_EXPECTED}; then, after blanks, perhaps `{_WRITE}`, `{_NAMESPACE}NAME` and"
            f" `{_GROUP}NAME`"
        )
        raise ServeError(describe(path, f"line {number}", "not a token with its rights", expected))
    return Grant(
        token,
        may_write,
        frozenset(names) if names else None,
        frozenset(groups) if groups else None,
    )


class BearerTokens:
    """The tokens of a service.

    Without any, no token is required, and every call may do everything.

    Args:
        path: a file as `grants_in` reads it, or None. Of lines with the same token, the last one
            counts.
        token: another token, from the environment, which only reads.

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
        """Return the grant of a call, by its bearer token.

        The time that this takes leaks no token: digests are compared, not tokens.

        Raises:
            AuthenticationError: the call has no accepted token.
        """
        if not self._grants:
            return ALL_ALLOWED
        value = next((value for key, value in metadata or () if key == "authorization"), None)
        if value is None:
            raise AuthenticationError(describe("request", "authorization", "absent", _TOKEN_ASKED))
        text = value if isinstance(value, str) else value.decode("latin-1")
        scheme, _, token = text.partition(" ")
        grant = self._grants.get(_digest(token.strip()))
        if grant is None or scheme.lower() != "bearer":
            raise AuthenticationError(
                describe("request", "authorization", "not accepted", _TOKEN_ASKED)
            )
        return grant


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
