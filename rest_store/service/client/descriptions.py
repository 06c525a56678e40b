"""Descriptions of services, and of the partitions of one datastore together."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain
from typing import NamedTuple

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import (
    DatastoreFormatError,
    ProtocolError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.v1 import datastore_pb2 as pb


class ServedPartition(NamedTuple):
    """A partition of a datastore that a service has.

    Attributes:
        number: 1..total.
        total: number of partitions of the datastore.
        build: digest of the manifest of the whole datastore, "sha256:...".
    """

    number: int
    total: int
    build: str

    def __str__(self) -> str:
        return f"partition {self.number}/{self.total} of {self.build[:23]}..."


@dataclass(frozen=True)
class ServedDatastore:
    """A datastore of a service. Other fields are as in the message DatastoreDescription.

    Attributes:
        built: when it was built; of a live one, when the newest document was added; None: it has no
            document.
        is_live: whether it grows; otherwise it is frozen.
        partition: the partition that is served; None: the whole datastore.
        shared_after: 1 where it is frozen.
    """

    name: str
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: datetime | None
    is_live: bool
    partition: ServedPartition | None = None
    shared_after: int = 1

    def __str__(self) -> str:
        if self.partition is None:
            return self.name
        return f"{self.name}, {self.partition}"


@dataclass(frozen=True)
class ServiceInfo:
    """A service and those of its datastores that a client asks.

    Attributes:
        target: the endpoint that answered; of partitions, all of them.
        version: release of rest-store.
        datastores: those that the client asks, in the order of their answers; of partitions, those
            of each.
        limits: name to value, as in the message ServiceLimits.
    """

    target: str
    version: str
    datastores: tuple[ServedDatastore, ...]
    limits: dict[str, int]

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of all datastores."""
        return self.datastores[0].tokenizer


def service_info(
    response: pb.DescribeResponse,
    names: Sequence[str],
    tokenizer: TokenizerIdentity | None,
    target: str,
    *,
    live: bool = False,
) -> ServiceInfo:
    """Return the description of a service.

    Args:
        response: the message.
        names: of the datastores to ask; empty: all datastores with the same tokenizer.
        tokenizer: the tokenizer in use; None: that of the datastores.
        target: address of the service, for messages.
        live: whether to ask only live datastores if `names` is empty.

    Raises:
        TokenizerMismatchError: a datastore to ask was built with another tokenizer; the message
            names the difference.
        UnknownDatastoreError: the service has no datastore of a name.
        ProtocolError: the description contradicts itself.
    """
    served = {message.name: _datastore(message, target) for message in response.datastores}
    if not served or len(served) != len(response.datastores):
        names_served = reprlib.repr([message.name for message in response.datastores])
        raise ProtocolError(
            describe(target, "list of datastores", names_served, "one or more distinct names")
        )
    chosen = _chosen(served, names, tokenizer, target, live)
    limits = {
        field.name: int(getattr(response.limits, field.name))
        for field in response.limits.DESCRIPTOR.fields
    }
    return ServiceInfo(target, response.version, chosen, limits)


def _datastore(message: pb.DatastoreDescription, target: str) -> ServedDatastore:
    """Return the datastore of a description; raise ProtocolError if it is not valid."""
    fields = message.tokenizer
    described = {
        "name": fields.name,
        "fingerprint": fields.fingerprint,
        "vocabulary_size": fields.vocabulary_size,
        "special_tokens": dict(fields.special_tokens),
        "added_tokens": dict(fields.added_tokens),
    }
    if fields.encoding:
        described["encoding"] = fields.encoding
    built = None
    try:
        tokenizer = TokenizerIdentity.from_manifest(
            described, f"{target}: datastore '{message.name}'"
        )
        if message.built:
            built = datetime.fromtimestamp(message.built, timezone.utc)
    except (DatastoreFormatError, ValueError, OverflowError, OSError) as error:
        actual = f"not valid ({error})"
        expected = "a name, a tokenizer and a time"
        raise ProtocolError(
            describe(target, "description of a datastore", actual, expected)
        ) from None
    partition = None
    if message.HasField("partition"):
        partition = ServedPartition(
            message.partition.number, message.partition.total, message.partition.build
        )
        if not 1 <= partition.number <= partition.total:
            raise ProtocolError(
                describe(
                    target,
                    f"partition of datastore '{message.name}'",
                    partition,
                    f"a number of 1..{partition.total}",
                )
            )
    return ServedDatastore(
        name=message.name,
        tokenizer=tokenizer,
        token_count=message.token_count,
        document_count=message.document_count,
        shard_count=message.shard_count,
        size=message.size,
        built=built,
        is_live=message.live,
        shared_after=max(1, message.shared_after),
        partition=partition,
    )


def _chosen(
    served: dict[str, ServedDatastore],
    names: Sequence[str],
    tokenizer: TokenizerIdentity | None,
    target: str,
    live: bool,
) -> tuple[ServedDatastore, ...]:
    """Return the datastores to ask, in the order of their answers; raises as `service_info`."""
    for name in names:
        if name not in served:
            expected = "one of " + ", ".join(map(repr, served))
            raise UnknownDatastoreError(describe(target, f"datastore '{name}'", "absent", expected))
    if names:
        chosen = [served[name] for name in names]
    else:
        chosen = [
            datastore
            for datastore in served.values()
            if tokenizer in (None, datastore.tokenizer) and (datastore.is_live or not live)
        ]
    if not chosen:  # the first one, for an error that names the difference
        chosen = [next(iter(served.values()))]
    first = chosen[0]
    for datastore in chosen:
        if tokenizer is not None:
            datastore.tokenizer.require_same(tokenizer, f"{target}: datastore '{datastore.name}'")
        elif datastore.tokenizer != first.tokenizer:
            what = f"tokenizer of datastore '{datastore.name}'"
            expected = (
                f"'{first.tokenizer.name}' as of '{first.name}'; name datastores or a tokenizer"
            )
            raise TokenizerMismatchError(
                describe(target, what, f"'{datastore.tokenizer.name}'", expected)
            )
    return tuple(chosen)


def require_one_build(infos: Sequence[ServiceInfo], total: int) -> None:
    """Raise DatastoreFormatError unless services have different partitions of one build.

    Args:
        infos: their descriptions.
        total: number of partitions of the build.
    """
    builds = set()
    partitions = set()
    served = 0
    are_of_total = True
    for info in infos:
        build = {(one.name, one.partition and one.partition.build) for one in info.datastores}
        builds.add(frozenset(build))
        for datastore in info.datastores:
            served += 1
            partitions.add((datastore.name, datastore.partition))
            partition = datastore.partition
            are_of_total = are_of_total and partition is not None and partition.total == total
    are_distinct = len(partitions) == served
    if len(builds) == 1 and are_distinct and are_of_total:
        return
    actual = ", ".join(f"{info.target} ({', '.join(map(str, info.datastores))})" for info in infos)
    raise DatastoreFormatError(
        "partitions",
        describe("client", "set of datastores", actual, f"{total} partitions of one build"),
    )


def combined_info(infos: Sequence[ServiceInfo]) -> ServiceInfo:
    """Return the description of all partitions together, their datastores one after the other."""
    limits = {}
    for name in infos[0].limits:
        limits[name] = min(info.limits[name] for info in infos)
    datastores = tuple(chain.from_iterable(info.datastores for info in infos))
    target = "; ".join(info.target for info in infos)
    return ServiceInfo(target, infos[0].version, datastores, limits)
