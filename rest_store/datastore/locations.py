"""Locations of remote datastores, such as `host:50051/code` or `s3://bucket/code`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rest_store.errors import DatastoreNotFoundError, describe

_SERVICE = re.compile(r"unix:/[^#]+(#.+)?|[^/\s]+:\d{1,5}(/.+)?")
_URL = re.compile(r"[a-z0-9+]{2,}://.+")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # characters that cannot be sent


def is_remote(text: str | Path) -> bool:
    """Return whether `text` is the location of a remote datastore, and not a path.

    `HOST:PORT/NAME` and `unix:/path#NAME` are datastores of a service; without a name, its only
    datastore. Other locations are URLs.
    """
    if (
        not isinstance(text, str)
        or _NO_TEXT.search(text)
        or not (_SERVICE.fullmatch(text) or _URL.fullmatch(text))
    ):
        return False
    try:
        return not Path(text).exists()
    except OSError:  # no path can be so long
        return True


def local_directory(path: str | Path) -> Path:
    """Return the path of a directory; raise DatastoreNotFoundError if it is no valid path."""
    try:
        if b"\0" not in os.fsencode(path):
            return Path(path)
    except UnicodeEncodeError:  # a lone surrogate
        pass
    expected = "one without NUL and lone surrogates"
    raise DatastoreNotFoundError(describe("datastore", "path", ascii(os.fspath(path)), expected))


def default_cache() -> Path:
    """Return the default directory for copies of remote datastores."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rest-store"
