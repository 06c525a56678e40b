"""A fleet of servers without a cluster: actors that say what they are told to."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from rest_store.service.client.part_groups import part_groups

import rest_store
from rest_store.service.address import Address
from rest_store.service.ray import fleet
from rest_store.service.ray.part_server import PartState
from rest_store.service.ray.placement import Node
from rest_store.service.ray.server_process import ServerState
from rest_store.service.server.logs import EventLog


class Actors:
    """Stands in for Ray: one actor, whose server has moved once more each time that it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def remote(self, *_: object) -> Any:
        return self

    @property
    def options(self) -> Any:
        return lambda **_: self

    @property
    def state(self) -> Any:
        return self

    def wait(self, *_: object, **__: object) -> None:
        self.asked += 1

    def get(self, *_: object, **__: object) -> PartState:
        server = ServerState(f"127.0.0.1:{self.asked}", 1, None, None)
        return PartState(server, rest_store.__version__, 1)


class Rounds(threading.Event):
    """Ends a watch after some rounds; before each it calls `then`."""

    def __init__(self, then: list[Any]) -> None:
        super().__init__()
        self._then = then

    def wait(self, timeout: float | None = None) -> bool:
        if not self._then:
            return True
        self._then.pop(0)()
        return False


def test_a_file_that_cannot_be_written_now_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk does not end servers that answer."""
    actors, lines = Actors(), io.StringIO()
    fake = SimpleNamespace(remote=lambda _: actors, wait=actors.wait, get=actors.get)
    monkeypatch.setattr(fleet, "ray", fake)
    monkeypatch.setattr(fleet, "machines", lambda: [Node("a" * 56, "127.0.0.1")])
    folder = tmp_path / "files"
    folder.mkdir()
    servers = fleet.Fleet(
        [],
        parts=1,
        replicas=1,
        listen=Address.parse("127.0.0.1:50051", "--listen"),
        parts_file=folder / "parts.toml",
        metrics=None,
        metrics_file=tmp_path / "metrics.json",
        variables={},
        log=EventLog(file=lines),
    )
    servers.start(threading.Event())
    assert part_groups(str(folder / "parts.toml")) == [["127.0.0.1:1"]]
    away = tmp_path / "away"
    servers.watch(Rounds([lambda: folder.rename(away), lambda: away.rename(folder)]))
    assert part_groups(str(folder / "parts.toml")) == [["127.0.0.1:3"]]
    assert "the parts file cannot be written" in lines.getvalue()
