"""Permissions and group of a service's Unix socket, from the moment it exists."""

from __future__ import annotations

import asyncio
import grp
import io
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.errors import ServeError
from rest_store.service.address import Address
from rest_store.service.server.logs import EventLog
from rest_store.service.server.server import Options, Server
from rest_store.service.server.unix_socket import SocketPermissions
from tests.shared.strategies import Corpus, refused, write_datastore

GROUP = grp.getgrgid(os.getgid())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """The umask that leaves most to do."""
    before = os.umask(0)
    yield
    assert os.umask(before) == 0  # as it was found


@pytest.mark.parametrize(
    ("permissions", "first", "then"),
    [
        (SocketPermissions(), 0o777, 0o777),
        (SocketPermissions(0o660), 0o600, 0o660),
        (SocketPermissions(0o606, GROUP.gr_name), 0o600, 0o606),
        (SocketPermissions(None, str(GROUP.gr_gid)), 0o600, 0o660),
    ],
)
def test_a_socket_is_never_open_to_more(tmp_path: Path, permissions: SocketPermissions, first: int, then: int) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as made:
        with permissions.given_to(path):
            made.bind(str(path))
            assert mode_of(path) == first
        assert mode_of(path) == then
        assert path.stat().st_gid == GROUP.gr_gid


def test_a_service_makes_its_socket_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, path = write_datastore(tmp_path, Corpus(300, [[[1, 2, 3]]])), tmp_path / "socket"
    modes: list[int] = []
    chmod = Path.chmod

    def looking(self: Path, mode: int) -> None:
        modes.append(mode_of(self))
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", looking)

    async def run() -> None:
        address = Address.parse(f"unix:{path}")
        options = Options([("served", directory)], [address], sockets=SocketPermissions(0o660, GROUP.gr_name))
        server = Server(options, "1", EventLog(file=io.StringIO()))
        await server.start()
        assert (modes, mode_of(path)) == ([0o600], 0o660)
        async with grpc.aio.insecure_channel(address.text) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
        await server.drain()

    asyncio.run(run())


def test_a_group_that_cannot_be_given_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(ServeError, lambda: SocketPermissions(group="no-such-group"), "--socket-group", "'no-such-group'")

    def forbidden(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", forbidden)

    def make() -> None:
        with SocketPermissions(group=GROUP.gr_name).given_to(tmp_path / "socket"):
            (tmp_path / "socket").touch()

    refused(ServeError, make, "Operation not permitted")
    monkeypatch.undo()

    def make_for_nobody() -> None:
        with SocketPermissions(group=str(1 << 40)).given_to(tmp_path / "other"):
            (tmp_path / "other").touch()

    refused(ServeError, make_for_nobody, "group '1099511627776'")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--socket-mode", "999", "--listen", "unix:/x"], "'999' is not three octal digits"),
        (["--socket-mode", "660"], "need --listen unix:/path"),
        (["--socket-group", "x"], "need --listen unix:/path"),
    ],
)
def test_options_that_cannot_be_meant_are_bad_usage(tmp_path: Path, options: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["serve", str(tmp_path), *options])
    assert (done.exit_code, said in done.output) == (2, True)
