"""Bearer tokens, and the token files of a service, which say what each token allows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rest_store.errors import ServeError, describe

TOKEN_VARIABLE = "REST_STORE_TOKEN"
TOKEN_EXPECTED = "1 to 4096 visible ASCII characters, no blanks"
_LONGEST = 4096  # characters; gRPC refuses metadata of more than 8 KiB
_WRITE = "write"


class Grant(NamedTuple):
    """A token, and whether it allows adding to live datastores and deleting. It is empty where none is required."""

    token: str
    may_write: bool = False


def is_token(token: object) -> bool:
    """Whether `token` reaches the other side as it is in the `authorization` of a call (`TOKEN_EXPECTED`)."""
    return isinstance(token, str) and 0 < len(token) <= _LONGEST and all("!" <= character <= "~" for character in token)


def grants_in(path: Path) -> list[Grant]:
    """Return the grants of a file, one a line; empty lines and lines that start with # are skipped.

    A line is `TOKEN`, or `TOKEN write`.

    Raises:
        ServeError: the file cannot be read, is not ASCII, holds no token, or a line is malformed.
    """
    try:
        lines = [line.strip(" \t\r") for line in path.read_bytes().decode("ascii").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        found = f"unreadable ({getattr(error, 'strerror', None) or error})"
        raise ServeError(describe(path, "token file", found, "a file with one token a line, in ASCII")) from None
    grants = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            token, *allowed = line.split()
            if not is_token(token) or allowed not in ([], [_WRITE]):  # what the line says is a secret
                expected = f"{TOKEN_EXPECTED}; then, after a blank, perhaps `{_WRITE}`"
                raise ServeError(describe(path, f"line {number}", "not a token with what it allows", expected))
            grants.append(Grant(token, bool(allowed)))
    if not grants:
        raise ServeError(describe(path, "token file", "without a token", "one token a line"))
    return grants
