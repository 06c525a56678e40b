"""Addresses of services, `HOST:PORT` or `unix:/path`, and names that can be sent."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from rest_store.errors import ServeError, describe

_TCP = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/\s]+):(\d{1,5})")
_MAX_PATH_BYTES = 107  # of the path of a Unix socket on Linux


@dataclass(frozen=True)
class Address:
    """An address.

    Attributes:
        text: the address as gRPC takes it: `HOST:PORT`, `[IPv6]:PORT` or `unix:/path`.
        host: the host without brackets; None for a Unix socket.
        port: the TCP port, 0 for any free one; None for a Unix socket.
        path: the socket's file; None for TCP.
    """

    text: str
    host: str | None = None
    port: int | None = None
    path: Path | None = None

    @classmethod
    def parse(cls, text: str, what: str = "address") -> Address:
        """Return an address.

        Args:
            text: `HOST:PORT`, `[IPv6]:PORT` or `unix:/path`.
            what: name of the address, for messages.

        Raises:
            ServeError: `text` is not an address.
        """
        if text.startswith("unix:"):
            path = Path(text.removeprefix("unix:").removeprefix("//"))
            # gRPC takes UTF-8, and decodes escapes such as %41.
            if not path.is_absolute() or "%" in text or not text.isprintable():
                expected = "unix: and an absolute path, printable and without %"
                raise ServeError(describe("service", what, ascii(text), expected))
            if len(str(path).encode()) > _MAX_PATH_BYTES:
                expected = f"a path of at most {_MAX_PATH_BYTES} bytes"
                raise ServeError(
                    describe("service", what, f"{len(str(path).encode())} bytes long", expected)
                )
            return cls(f"unix:{path}", path=path)
        match = _TCP.fullmatch(text) if text.isascii() and text.isprintable() else None
        if match is None or int(match[2]) > 65_535:
            raise ServeError(
                describe("service", what, ascii(text), "HOST:PORT, [IPv6]:PORT or unix:/path")
            )
        return cls(text, host=match[1].strip("[]"), port=int(match[2]))

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: a Unix socket or a loopback address."""
        return self.host is None or _is_loopback(self.host)

    def with_port(self, port: int) -> Address:
        """Return the address with the port that was bound. It must not be a Unix socket."""
        assert self.host is not None
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Address(f"{host}:{port}", host=self.host, port=port)

    def require_free(self) -> Address:
        """Return the address, with a free port in place of 0.

        gRPC would not say why an address cannot be bound, and would take a Unix socket away from
        the process that listens there. The file of a socket that nobody uses does not matter.

        Raises:
            ServeError: the address cannot be bound; the message says why.
        """
        try:
            if self.path is not None:
                self._require_free_path(self.path)
                return self
            family, kind, _, _, where = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                return self.with_port(probe.getsockname()[1])
        except OSError as error:
            if isinstance(error, ServeError):
                raise
            raise ServeError(
                f"service: address {self.text} cannot be bound ({error.strerror})"
            ) from None

    @staticmethod
    def _require_free_path(path: Path) -> None:
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, f"{path.parent} is absent or cannot be written")
        if not path.exists():
            return
        if not path.is_socket():
            raise ServeError(describe(path, "file", "not a socket", "a socket, or nothing"))
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise OSError(errno.EADDRINUSE, "in use by another process")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False


def is_name(name: object) -> TypeGuard[str]:
    """Return whether `name` is text that can be sent, not empty and valid UTF-8."""
    if not isinstance(name, str):
        return False
    try:
        return bool(name.encode())
    except UnicodeEncodeError:  # as in the name of a directory that is not UTF-8
        return False
