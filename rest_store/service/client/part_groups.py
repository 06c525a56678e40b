"""The endpoints of each part of a datastore, from a parts file or a list."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rest_store.errors import TargetError, describe
from rest_store.service.address import is_parts_file
from rest_store.service.channel import target_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_PARTS = 1024
_LARGEST_FILE = 1 << 20  # bytes
Targets: TypeAlias = str | os.PathLike[str] | Sequence[str] | Sequence[Sequence[str]]
Groups: TypeAlias = list[list[str]]


def is_in_parts(targets: object) -> bool:
    """Return whether `targets` of a `DatastoreClient` are those of parts: a parts file, or a list of lists."""
    if (path := path_of(targets)) is not None:
        return is_parts_file(path)
    return isinstance(targets, list | tuple) and any(isinstance(group, list | tuple) for group in targets)


def path_of(targets: object) -> str | None:
    """Return the path of a parts file, if `targets` may be one; None: they are lists."""
    return os.fsdecode(targets) if isinstance(targets, str | os.PathLike) else None


def part_groups(targets: Targets) -> Groups:
    """Return the endpoints of each part.

    Raises:
        TargetError: the file cannot be read or is malformed, or an address is invalid or comes twice.
    """
    return _read(Path(targets)) if isinstance(targets, str | os.PathLike) else _checked(targets, "client")


def _read(path: Path) -> Groups:
    """Return the `endpoints` of each `[[part]]` of a parts file."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise TargetError(describe(path, "size", "too large", f"at most {_LARGEST_FILE} bytes"))
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(describe(path, "parts file", f"unreadable ({error.strerror})", "a readable file")) from None
    except ValueError as error:  # malformed TOML, or not UTF-8
        raise TargetError(describe(path, "parts file", f"not TOML ({error})", "TOML")) from None
    parts = content.get("part")
    if set(content) != {"part"} or not isinstance(parts, list) or not parts:
        found = ", ".join(map(ascii, content)) or "nothing"
        raise TargetError(describe(path, "content", found, "a [[part]] for each part, and nothing else"))
    for place, part in enumerate(parts):
        if not isinstance(part, dict) or set(part) != {"endpoints"}:
            found = ", ".join(map(ascii, part)) if isinstance(part, dict) else type(part).__name__
            raise TargetError(describe(path, f"[[part]] {place + 1}", found or "empty", "endpoints and nothing else"))
    return _checked([part["endpoints"] for part in parts], path)


def _checked(groups: Sequence[object], where: object) -> Groups:
    """Return the endpoints of each part as gRPC takes them; raise TargetError unless all are valid and different."""
    if len(groups) > _MOST_PARTS:
        raise TargetError(describe(where, "number of parts", len(groups), f"at most {_MOST_PARTS}"))
    part_of: dict[str, int] = {}
    checked: Groups = []
    for number, group in enumerate(groups, 1):
        if not isinstance(group, list | tuple) or not group:
            found = "no endpoints" if isinstance(group, list | tuple) else ascii(group)
            raise TargetError(
                describe(where, f"part in place {number}", found, "a list of the endpoints of its replicas")
            )
        addresses = [target_of(target) for target in group]
        for address in addresses:
            if address in part_of:
                found = f"in place {part_of[address]} and in place {number}"
                raise TargetError(describe(where, f"endpoint {address}", found, "once"))
            part_of[address] = number
        checked.append(addresses)
    return checked
