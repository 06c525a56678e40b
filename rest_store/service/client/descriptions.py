"""What services say of themselves, and how the descriptions of the parts of one datastore go together."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from google.protobuf.timestamp_pb2 import Timestamp

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import (
    ManifestError,
    PartError,
    ProtocolError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.service.served_part import ServedPart
from rest_store.v1 import datastore_pb2 as pb

_MOST_DATASTORES = 1024  # of a service
_LONGEST_DIGEST = 128  # characters


@dataclass(frozen=True)
class ServedDatastore:
    """One datastore of a service; fields as in the message DatastoreDescription.

    Attributes:
        built: of a live one, when the newest document was added; None: there is none.
        is_live: whether it grows; else it is frozen.
        is_writable: whether the token of this client may add and delete.
        part: which part of a larger datastore this is; None: it is whole.
    """

    name: str
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: datetime | None
    format_version: int
    is_live: bool
    is_writable: bool
    part: ServedPart | None = None


@dataclass(frozen=True)
class ServiceInfo:
    """What a client asks of a service; names as in `DatastoreInfo` where they mean the same.

    Attributes:
        target: the endpoint that answered; of parts, all of them.
        version: release of rest-store that serves.
        datastores: those that the client asks, in the order of their answers; of parts, their figures are sums.
        limits: name to value, as in the message ServiceLimits; 0 where the service publishes none.
        parts: the description of each part; empty: the datastores are whole.
    """

    target: str
    version: str
    datastores: tuple[ServedDatastore, ...]
    limits: dict[str, int]
    parts: tuple[ServiceInfo, ...] = ()

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of all datastores."""
        return self.datastores[0].tokenizer

    @property
    def token_count(self) -> int:
        """Tokens of all datastores."""
        return sum(datastore.token_count for datastore in self.datastores)

    @property
    def max_request_bytes(self) -> int:
        """Largest request that the service takes."""
        return self.limits["max_request_bytes"] or self.limits["max_message_bytes"]


def service_info(
    response: pb.DescribeResponse, names: Sequence[str], tokenizer: TokenizerIdentity | None, target: str
) -> ServiceInfo:
    """Return what a client asks of the service that `response` describes.

    Args:
        response: the description.
        names: of the datastores to ask; empty: all whose tokenizer matches.
        tokenizer: the one in use; None: that of the datastores.
        target: address of the service, for messages.

    Raises:
        TokenizerMismatchError: a datastore to be asked was built with another tokenizer; says what differs.
        UnknownDatastoreError: the service has no datastore of a name.
        ProtocolError: the description contradicts itself.
    """
    chosen = _chosen(_served_by(response, target), names, tokenizer, target)
    limits = {field.name: int(getattr(response.limits, field.name)) for field in response.limits.DESCRIPTOR.fields}
    return ServiceInfo(target, response.version, chosen, limits)


def _served_by(response: pb.DescribeResponse, target: str) -> tuple[ServedDatastore, ...]:
    """Return the datastores that a service describes; raise ProtocolError if the description is not valid."""
    if len(response.datastores) > _MOST_DATASTORES:
        expected = f"at most {_MOST_DATASTORES}"
        raise ProtocolError(describe(target, "number of datastores", len(response.datastores), expected))
    served = tuple(_datastore(message, target) for message in response.datastores)
    if not served or len({datastore.name for datastore in served}) != len(served):
        names = reprlib.repr([datastore.name for datastore in served]) if served else "absent"
        raise ProtocolError(describe(target, "datastores", names, "one or more, with distinct names"))
    return served


def _datastore(message: pb.DatastoreDescription, target: str) -> ServedDatastore:
    fields = message.tokenizer
    described = {
        "name": fields.name,
        "fingerprint": fields.fingerprint,
        "vocabulary_size": fields.vocabulary_size,
        "special_tokens": dict(fields.special_tokens),
        "added_tokens": dict(fields.added_tokens),
    }
    try:
        tokenizer = TokenizerIdentity.from_manifest(described, f"{target}: datastore '{message.name}'")
        is_live = message.HasField("live")
        built = None if is_live and not message.HasField("built") else _time(message.built)
    except (ManifestError, ValueError, OverflowError, OSError) as error:
        raise ProtocolError(describe(target, "description", f"wrong ({error})", "one of a datastore")) from None
    part = ServedPart.of(message.part) if message.HasField("part") else None
    if part is not None and (not 1 <= part.number <= part.parts or len(part.build) > _LONGEST_DIGEST):
        expected = "one of the parts that there are"
        raise ProtocolError(describe(target, f"part of datastore '{message.name}'", part, expected))
    sizes = (message.token_count, message.document_count, message.shard_count, message.size)
    kind = (is_live, message.live.writable)
    return ServedDatastore(message.name, tokenizer, *sizes, built, message.format_version, *kind, part)


def _time(message: Timestamp) -> datetime:
    """Return the time of a message; raise ValueError, OverflowError or OSError if it is out of range."""
    return datetime.fromtimestamp(message.seconds + message.nanos / 1e9, timezone.utc)


def _chosen(
    served: tuple[ServedDatastore, ...], names: Sequence[str], tokenizer: TokenizerIdentity | None, target: str
) -> tuple[ServedDatastore, ...]:
    """Return the datastores that answer requests, in the order of their answers; raise as `service_info`."""
    by_name = {datastore.name: datastore for datastore in served}
    for name in names:
        if name not in by_name:
            expected = "one of " + ", ".join(repr(known) for known in by_name)
            raise UnknownDatastoreError(describe(target, f"datastore '{name}'", "absent", expected))
    chosen = tuple(by_name[name] for name in names) or served
    if tokenizer is not None and not names:
        chosen = tuple(datastore for datastore in chosen if datastore.tokenizer == tokenizer) or chosen[:1]
    for datastore in chosen:
        if tokenizer is not None:
            datastore.tokenizer.require_same(tokenizer, f"{target}: datastore '{datastore.name}'")
        elif datastore.tokenizer != chosen[0].tokenizer:
            what, found = f"tokenizer of datastore '{datastore.name}'", f"'{datastore.tokenizer.name}'"
            expected = f"'{chosen[0].tokenizer.name}' as of '{chosen[0].name}'; name datastores or a tokenizer"
            raise TokenizerMismatchError(describe(target, what, found, expected))
    return chosen


def require_one_build(infos: Sequence[ServiceInfo], parts: int) -> None:
    """Check that descriptions are those of different parts of one build.

    Args:
        infos: descriptions of some of the parts.
        parts: how many parts the client asks.

    Raises:
        PartError: a part is of another build, is there twice, or is one of another number of parts.
        TokenizerMismatchError: a part has another tokenizer.
    """
    first = infos[0]
    taken: dict[int, str] = {}  # number of a part -> its target
    for info in infos:
        first.tokenizer.require_same(info.tokenizer, info.target)
        names, expected = ([datastore.name for datastore in one.datastores] for one in (info, first))
        if names != expected:
            found, expected_names = ", ".join(names), f"{', '.join(expected)} as of {first.target}"
            raise PartError(describe(info.target, "datastores", found, expected_names))
        for datastore, same in zip(info.datastores, first.datastores, strict=True):
            what, part = f"datastore '{datastore.name}'", datastore.part
            if part is None or part.parts != parts:
                found = "the whole" if part is None else f"{part}"
                raise PartError(describe(info.target, what, found, f"one of {parts} parts"))
            if same.part is not None and part.build != same.part.build:
                expected_build = f"{same.part.build} as of {first.target}"
                raise PartError(describe(info.target, f"build of {what}", part.build, expected_build))
        number = info.datastores[0].part.number if info.datastores[0].part else 0
        if number in taken:
            found, expected_once = f"also at {taken[number]}", "each part at one place in the list of targets"
            raise PartError(describe(info.target, f"part {number}/{parts}", found, expected_once))
        taken[number] = info.target


def info_of_parts(infos: Sequence[ServiceInfo]) -> ServiceInfo:
    """Return the description of the whole datastore, from those of all of its parts."""
    first = infos[0]
    limits = {name: min(info.limits[name] for info in infos) for name in first.limits}
    datastores = tuple(_sum_of(parts) for parts in zip(*(info.datastores for info in infos), strict=True))
    target = "; ".join(info.target for info in infos)
    return ServiceInfo(target, first.version, datastores, limits, tuple(infos))


def _sum_of(parts: Sequence[ServedDatastore]) -> ServedDatastore:
    """Return the description of all parts of one datastore together."""
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("token_count", "document_count", "shard_count", "size")
    }
    return replace(parts[0], **sums, part=None)
