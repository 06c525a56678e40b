"""What services say of themselves, and how the descriptions of the
partitions of one datastore go together.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
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
    """Partition `number`, 1..total, of a datastore.

    `build` is the digest of the manifest of the whole, "sha256:...".
    """

    number: int
    total: int
    build: str

    def __str__(self) -> str:
        return f"partition {self.number}/{self.total} of {self.build[:23]}..."


@dataclass(frozen=True)
class ServedDatastore:
    """One datastore of a service; fields as in the message DatastoreDescription.

    Attributes:
        built: of a live one, when the newest document was added; None: there is none.
        is_live: whether it grows; else it is frozen.
        partition: which partition of a larger datastore this is; None: it is whole.
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

    def __str__(self) -> str:
        return self.name if self.partition is None else f"{self.name}, {self.partition}"


@dataclass(frozen=True)
class ServiceInfo:
    """What a client asks of a service; names as in `DatastoreInfo` where they mean the same.

    Attributes:
        target: the endpoint that answered; of partitions, all of them.
        version: release of rest-store that serves.
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
    """Return what a client asks of the service that `response` describes.

    Args:
        response: the description.
        names: of the datastores to ask; empty: all whose tokenizer matches.
        tokenizer: the one in use; None: that of the datastores.
        target: address of the service, for messages.
        live: whether only live ones are asked where none is named.

    Raises:
        TokenizerMismatchError: a datastore to be asked was built with another tokenizer; says what
            differs.
        UnknownDatastoreError: the service has no datastore of a name.
        ProtocolError: the description contradicts itself.
    """
    served = {message.name: _datastore(message, target) for message in response.datastores}
    if not served or len(served) != len(response.datastores):
        found = reprlib.repr([message.name for message in response.datastores])
        raise ProtocolError(
            describe(target, "datastores", found, "one or more, with distinct names")
        )
    chosen = _chosen(served, names, tokenizer, target, live)
    limits = {
        field.name: int(getattr(response.limits, field.name))
        for field in response.limits.DESCRIPTOR.fields
    }
    return ServiceInfo(target, response.version, chosen, limits)


def _datastore(message: pb.DatastoreDescription, target: str) -> ServedDatastore:
    """Return what a message describes; raise ProtocolError if that is no datastore."""
    fields = message.tokenizer
    described = {
        "name": fields.name,
        "fingerprint": fields.fingerprint,
        "vocabulary_size": fields.vocabulary_size,
        "special_tokens": dict(fields.special_tokens),
        "added_tokens": dict(fields.added_tokens),
        **({"encoding": fields.encoding} if fields.encoding else {}),
    }
    try:
        tokenizer = TokenizerIdentity.from_manifest(
            described, f"{target}: datastore '{message.name}'"
        )
        built = datetime.fromtimestamp(message.built, timezone.utc) if message.built else None
    except (DatastoreFormatError, ValueError, OverflowError, OSError) as error:
        raise ProtocolError(
            describe(target, "description", f"wrong ({error})", "one of a datastore")
        ) from None
    partition = None
    if message.HasField("partition"):
        partition = ServedPartition(
            message.partition.number, message.partition.total, message.partition.build
        )
        if not 1 <= partition.number <= partition.total:
            expected = "one of the partitions that there are"
            raise ProtocolError(
                describe(target, f"partition of datastore '{message.name}'", partition, expected)
            )
    sizes = (message.token_count, message.document_count, message.shard_count, message.size)
    return ServedDatastore(message.name, tokenizer, *sizes, built, message.live, partition)


def _chosen(
    served: dict[str, ServedDatastore],
    names: Sequence[str],
    tokenizer: TokenizerIdentity | None,
    target: str,
    live: bool,
) -> tuple[ServedDatastore, ...]:
    """Return the datastores that answer requests, in the order of their answers.

    Raise as `service_info`.
    """
    for name in names:
        if name not in served:
            expected = "one of " + ", ".join(map(repr, served))
            raise UnknownDatastoreError(describe(target, f"datastore '{name}'", "absent", expected))
    chosen = tuple(served[name] for name in names or served)
    if not names:
        matching = [
            one
            for one in chosen
            if tokenizer in (None, one.tokenizer) and (one.is_live or not live)
        ]
        chosen = tuple(matching) or chosen[:1]
    for datastore in chosen:
        if tokenizer is not None:
            datastore.tokenizer.require_same(tokenizer, f"{target}: datastore '{datastore.name}'")
        elif datastore.tokenizer != chosen[0].tokenizer:
            what, found = (
                f"tokenizer of datastore '{datastore.name}'",
                f"'{datastore.tokenizer.name}'",
            )
            expected = (
                f"'{chosen[0].tokenizer.name}' as of '{chosen[0].name}'; name datastores or a"
                " tokenizer"
            )
            raise TokenizerMismatchError(describe(target, what, found, expected))
    return chosen


def require_one_build(infos: Sequence[ServiceInfo], partitions: int) -> None:
    """Raise DatastoreFormatError unless descriptions are those of
    different partitions of one build that has so many `partitions`.
    """
    served = [datastore for info in infos for datastore in info.datastores]
    builds = {
        frozenset((one.name, one.partition and one.partition.build) for one in info.datastores)
        for info in infos
    }
    are_of_so_many = all(
        one.partition is not None and one.partition.total == partitions for one in served
    )
    if (
        not are_of_so_many
        or len(builds) > 1
        or len({(one.name, one.partition) for one in served}) < len(served)
    ):
        found = [f"{info.target} ({', '.join(map(str, info.datastores))})" for info in infos]
        raise DatastoreFormatError(
            "partitions",
            describe(
                "client",
                "what is served",
                ", ".join(found),
                f"{partitions} partitions of one build",
            ),
        )


def combined_info(infos: Sequence[ServiceInfo]) -> ServiceInfo:
    """Return the description of all partitions together: the
    datastores of one after those of the other.
    """
    limits = {name: min(info.limits[name] for info in infos) for name in infos[0].limits}
    datastores = tuple(datastore for info in infos for datastore in info.datastores)
    return ServiceInfo(
        "; ".join(info.target for info in infos), infos[0].version, datastores, limits
    )
