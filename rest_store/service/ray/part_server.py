"""The Ray actor that runs the server of one replica of a part. No request goes through it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ray

import rest_store
from rest_store.service.ray.server_process import ServerProcess, ServerState


class PartState(NamedTuple):
    """The state of an actor.

    Attributes:
        server: state of its server process.
        version: of rest-store on its machine.
        process: of the actor.
    """

    server: ServerState
    version: str
    process: int


class BindAddress(NamedTuple):
    """Where a server listens.

    Attributes:
        host: None: at the address of its machine.
        port: 0: any free one.
    """

    host: str | None
    port: int

    def on_this_machine(self) -> str:
        """Return HOST:PORT."""
        host = self.host or ray.util.get_node_ip_address()
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class PartServer:
    """Keeps one server running; Ray keeps this running, on another machine if it must.

    Args:
        arguments: of `rest-store serve`, without `--listen` and `--metrics`.
        listen: where the server listens.
        metrics: where its metrics are; None: it has none.
        variables: environment variables of the server, which may be secrets. Ray shows the variables of a
            `runtime_env`, but not the arguments of an actor.
    """

    def __init__(
        self, arguments: Sequence[str], listen: BindAddress, metrics: BindAddress | None, variables: Mapping[str, str]
    ) -> None:
        where = None if metrics is None else metrics.on_this_machine()
        self._server = ServerProcess(arguments, listen.on_this_machine(), where, variables)

    def state(self) -> PartState:
        """Return the state of the actor and its server."""
        return PartState(self._server.state, rest_store.__version__, os.getpid())

    def reload(self) -> None:
        """Have the server read its datastores, tokens and certificates again."""
        self._server.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Let the server end its running calls, and end it."""
        self._server.stop()
