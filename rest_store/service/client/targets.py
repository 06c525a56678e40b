"""The targets of a client: the endpoints of each part of a datastore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rest_store.errors import TargetError, describe
from rest_store.service.channel import target_of

Targets: TypeAlias = str | Sequence[str] | Sequence[Sequence[str]]

_MOST_PARTS = 1024


def target_groups(targets: Targets) -> list[list[str]]:
    """Return the addresses of each part's endpoints, as gRPC takes them.

    Args:
        targets: as for `DatastoreClient`.

    Raises:
        TargetError: an address is invalid or comes twice, or there are none.
    """
    groups = [_addresses(part) for part in _parts(targets)]
    if not 0 < len(groups) <= _MOST_PARTS:
        raise TargetError(describe("client", "number of parts", len(groups), f"1..{_MOST_PARTS}"))
    addresses = [address for group in groups for address in group]
    for address in addresses:
        if addresses.count(address) > 1:
            raise TargetError(describe("client", f"target {address}", "there twice", "there once"))
    return groups


def _parts(targets: Targets) -> Sequence[object]:
    if isinstance(targets, str):
        return targets.split(";")
    if isinstance(targets, list | tuple):
        return targets if any(isinstance(part, list | tuple) for part in targets) else [targets]
    raise TargetError(
        describe("client", "targets", f"a {type(targets).__name__}", "an address, or a list of addresses")
    )


def _addresses(part: object) -> list[str]:
    endpoints = part.split(",") if isinstance(part, str) else part
    if not isinstance(endpoints, list | tuple) or not endpoints:
        found = "empty" if isinstance(endpoints, list | tuple) else ascii(endpoints)
        raise TargetError(describe("client", "targets", found, "at least one address for each part"))
    return [target_of(endpoint) for endpoint in endpoints]
