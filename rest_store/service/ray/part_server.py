"""The Ray actor that runs the server of one replica of a part. No request goes through it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

import ray

import rest_store
from rest_store.service.ray.server_process import ServerProcess, ServerState


class PartState(NamedTuple):
    """What an actor says of itself.

    Attributes:
        server: what has become of its server.
        version: of rest-store on its machine.
        process: of the actor.
    """

    server: ServerState
    version: str
    process: int


class PartServer:
    """Keeps one server running; Ray keeps this running, on another machine if it must.

    Args:
        arguments: of `rest-store serve`, without `--listen`.
        host: to listen at; None: the address of the machine.
        port: of it.
    """

    def __init__(self, arguments: Sequence[str], host: str | None, port: int) -> None:
        address = host or ray.util.get_node_ip_address()
        self._server = ServerProcess(arguments, f"[{address}]:{port}" if ":" in address else f"{address}:{port}")

    def state(self) -> PartState:
        """What has become of the server."""
        return PartState(self._server.state, rest_store.__version__, os.getpid())

    def reload(self) -> None:
        """Have the server read its datastores, tokens and certificates again."""
        self._server.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Let the server end its running calls, and end it."""
        self._server.stop()
