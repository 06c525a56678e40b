"""The targets of a client: the endpoints of each part of a datastore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rest_store.errors import TargetError, describe
from rest_store.service.channel import target_of

Targets: TypeAlias = str | Sequence[str] | Sequence[Sequence[str]]


def split_location(location: str) -> tuple[str, str | None]:
    """Return the targets and the datastore in `HOST:PORT/NAME` or `unix:/path#NAME`; None where there is no name."""
    targets, _, name = location.partition("#" if "unix:" in location else "/")
    return targets, name or None


def target_groups(targets: Targets) -> list[list[str]]:
    """Return the addresses of each part's endpoints, as gRPC takes them.

    Args:
        targets: as for `DatastoreClient`.

    Raises:
        TargetError: an address is invalid or comes twice, or there are none.
    """
    parts: Sequence[object] = [targets]
    if isinstance(targets, str):
        parts = targets.split(";")
    elif isinstance(targets, list | tuple) and any(isinstance(part, list | tuple) for part in targets):
        parts = targets
    groups = [_addresses(part) for part in parts]
    addresses = [address for group in groups for address in group]
    for address in addresses:
        if addresses.count(address) > 1:
            raise TargetError(describe("client", f"target {address}", "there twice", "there once"))
    return groups


def _addresses(part: object) -> list[str]:
    endpoints = part.split(",") if isinstance(part, str) else part
    if not isinstance(endpoints, list | tuple) or not endpoints:
        found = "empty" if isinstance(endpoints, list | tuple) else f"a {type(endpoints).__name__}"
        raise TargetError(describe("client", "targets", found, "an address, or addresses for each part"))
    return [target_of(endpoint) for endpoint in endpoints]
