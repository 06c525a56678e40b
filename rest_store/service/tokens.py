"""Bearer tokens: what one is, for services and clients alike, and files of them."""

from __future__ import annotations

from pathlib import Path

from rest_store.errors import ServeError, describe

TOKEN_VARIABLE = "REST_STORE_TOKEN"
TOKEN_EXPECTED = "1 to 4096 visible ASCII characters, no blanks"
_LONGEST = 4096  # characters; gRPC refuses metadata of more than 8 KiB


def is_token(token: object) -> bool:
    """Whether `token` reaches the other side as it is in the `authorization` of a call (`TOKEN_EXPECTED`)."""
    return isinstance(token, str) and 0 < len(token) <= _LONGEST and all("!" <= character <= "~" for character in token)


def tokens_in(path: Path) -> list[str]:
    """Return the bearer tokens of a file, one a line, without empty lines and those that start with #.

    Raises:
        ServeError: the file cannot be read, is not ASCII, holds no token, or holds a line that is none.
    """
    try:
        lines = [line.strip(" \t\r") for line in path.read_bytes().decode("ascii").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        found = f"unreadable ({getattr(error, 'strerror', None) or error})"
        raise ServeError(describe(path, "token file", found, "a file with one token a line, in ASCII")) from None
    tokens = []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            if not is_token(line):
                raise ServeError(describe(path, f"line {number}", "not a token", TOKEN_EXPECTED))
            tokens.append(line)
    if not tokens:
        raise ServeError(describe(path, "token file", "without a token", "one token a line"))
    return tokens
