"""Channels to services, made from addresses, certificates and tokens."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from rest_store.datastore.validation import real
from rest_store.errors import ArgumentError, ServeError, describe
from rest_store.service.address import Address, is_name
from rest_store.service.bearer_tokens import TOKEN_EXPECTED, is_token

# Each client has connections of its own. They reconnect soon after a restart, and notice silent
# peers.
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # by default a minute
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
]
_NO_PROXY: tuple[str, Any] = ("grpc.enable_http_proxy", 0)


Targets: TypeAlias = str | Sequence[str] | Sequence[Sequence[str]]


@dataclass(frozen=True)
class Tls:
    """Certificates for the connection to a service.

    Attributes:
        ca: PEM file of the authorities that may sign the certificate of the service; None: those of
            gRPC.
        certificate: PEM file of the client's certificate, where the service requires one (mutual
            TLS).
        key: PEM file of the client's private key.
        server_name: name in the service's certificate, if it is not the host of the address.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None


def parse_target(text: object) -> str:
    """Return an address as gRPC takes it; raise ArgumentError if `text` is not an address."""
    if isinstance(text, str):
        with suppress(ServeError):
            return Address.parse(text).text
    raise ArgumentError(
        describe("client", "target", ascii(text), "HOST:PORT, [IPv6]:PORT or unix:/path")
    )


def split_location(location: str) -> tuple[str, str | None]:
    """Return the targets and the datastore, or None, in `HOST:PORT/NAME` or `unix:/path#NAME`."""
    targets, _, name = location.partition("#" if "unix:" in location else "/")
    return targets, name or None


def target_groups(targets: Targets) -> list[list[str]]:
    """Return the addresses of each partition's endpoints, as gRPC takes them.

    Args:
        targets: as for `DatastoreClient`.

    Raises:
        ArgumentError: an address is invalid, or there are none.
    """
    partitions: Sequence[object] = [targets]
    if isinstance(targets, str):
        partitions = targets.split(";")
    elif isinstance(targets, list | tuple) and any(
        isinstance(partition, list | tuple) for partition in targets
    ):
        partitions = targets
    return [_addresses(partition) for partition in partitions]


def _addresses(partition: object) -> list[str]:
    endpoints = partition.split(",") if isinstance(partition, str) else partition
    if not isinstance(endpoints, list | tuple) or not endpoints:
        actual = "empty" if isinstance(endpoints, list | tuple) else f"a {type(endpoints).__name__}"
        raise ArgumentError(
            describe("client", "targets", actual, "an address, or addresses for each partition")
        )
    return [parse_target(endpoint) for endpoint in endpoints]


class Dialer:
    """Makes channels. Thread-safe.

    Args:
        token: bearer token, or None.
        tls: certificates, or None for no TLS.

    Raises:
        ArgumentError: `tls` is of another type, its files or its name cannot be used, or the token
            is invalid.
    """

    def __init__(self, token: str | None, tls: Tls | None) -> None:
        if token is not None and not is_token(token):
            raise ArgumentError(describe("client", "token", "not a token", TOKEN_EXPECTED))
        if not isinstance(tls, Tls | None):
            raise ArgumentError(describe("client", "tls", type(tls).__name__, "a Tls or None"))
        self.metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        self._credentials: grpc.ChannelCredentials | None = None
        self._options = list(_OPTIONS)
        if tls is not None:
            if (tls.certificate is None) != (tls.key is None):
                raise ArgumentError(
                    "client: a certificate and its key belong together; one of them is missing"
                )
            certificate, key, ca = read_certificates(
                tls.certificate, tls.key, tls.ca, ArgumentError
            )
            self._credentials = grpc.ssl_channel_credentials(ca, key, certificate)
            if tls.server_name is not None:
                if not is_name(tls.server_name):
                    raise ArgumentError(
                        describe(
                            "client", "server_name", ascii(tls.server_name), "the name of a host"
                        )
                    )
                self._options.append(("grpc.ssl_target_name_override", tls.server_name))

    def connect(self, target: str) -> grpc.Channel:
        """Return a channel to `target`, which connects when it is first used.

        Addresses of this machine are reached directly, whatever proxy the environment names.
        """
        options = [*self._options, _NO_PROXY] if Address.parse(target).is_local else self._options
        if self._credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, self._credentials, options)


def check_seconds(timeout: float) -> float:
    """Return a timeout in seconds; raise ArgumentError unless it is in (0, 1000000)."""
    seconds = real(timeout)
    if not 0 < seconds < 1e6:
        raise ArgumentError(
            describe(
                "client", "timeout", repr(timeout), "seconds, more than 0 and less than 1000000"
            )
        )
    return seconds


def read_certificates(
    certificate: str | Path | None,
    key: str | Path | None,
    authority: str | Path | None,
    error: type[ServeError | ArgumentError],
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the content of PEM files, None for None.

    The files are validated, because gRPC would only say that no connection can be made.

    Args:
        certificate: a certificate, with its chain.
        key: its unencrypted key; None without a certificate.
        authority: certificates of authorities.
        error: class of the error.

    Raises:
        ServeError, ArgumentError: a file cannot be read or has other content, or the key is that of
            another certificate.
    """
    files = (certificate, key, authority)
    contents = (_read(certificate, error), _read(key, error), _read(authority, error))
    authorities = contents[2]
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=lambda: "")
        if authorities is not None:
            context.load_verify_locations(cadata=authorities.decode("ascii", "backslashreplace"))
    except (ssl.SSLError, ValueError) as failure:
        where = ", ".join(str(path) for path in files if path is not None)
        actual = f"unusable ({getattr(failure, 'reason', None) or failure})"
        raise error(
            describe(
                where, "certificate", actual, "PEM files of a certificate and its unencrypted key"
            )
        ) from None
    return contents


def _read(path: str | Path | None, error: type[ServeError] | type[ArgumentError]) -> bytes | None:
    """Return the content of a file, None for None; raise `error` if it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as failure:
        raise error(
            describe(path, "file", f"unreadable ({failure.strerror or failure})", "a PEM file")
        ) from None
