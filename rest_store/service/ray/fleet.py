"""All replicas of all parts: started, watched, and published for clients."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import rest_store
from rest_store.errors import ServeError, describe
from rest_store.service.address import Address
from rest_store.service.ray.cluster import machines
from rest_store.service.ray.part_server import BindAddress, PartServer, PartState
from rest_store.service.ray.placement import Replica, placement
from rest_store.service.ray.published_files import write_metrics, write_parts
from rest_store.service.server.logs import EventLog

_EVERYWHERE = "0.0.0.0"
_CPUS = 0.001  # of an actor: Ray places those that take nothing at random
_STARTING_SECONDS = 0.1  # between looks
_WATCH_SECONDS = 1.0
_ANSWER_SECONDS = 5.0  # time that an actor has to return its state


@dataclass
class _Member:
    """A replica, its actor, the actor's last state, and the last addresses of the server and its metrics."""

    replica: Replica
    actor: Any
    state: PartState | None = None
    address: str | None = None
    metrics: str | None = None


class Fleet:
    """The servers of all parts, on the Ray cluster that this process is connected to.

    Args:
        arguments: of `rest-store serve`, without `--part`, `--listen` and `--metrics`.
        parts: number of parts.
        replicas: number of replicas of each part.
        listen: a loopback address, if the cluster is one machine; or 0.0.0.0: each server listens at the address of its
            machine. The first server has this port, the others the ports behind it; 0: any free ones.
        parts_file: written for clients.
        metrics: where the servers have their metrics, likewise; None: they have none.
        metrics_file: written for Prometheus.
        variables: environment variables of the servers.
        log: receives events.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        parts: int,
        replicas: int,
        listen: Address,
        parts_file: Path,
        metrics: Address | None,
        metrics_file: Path,
        variables: Mapping[str, str],
        log: EventLog,
    ) -> None:
        self._parts = parts
        self._parts_file = parts_file
        self._metrics_file = metrics_file
        self._log = log
        self._published: list[list[str]] = []
        self._published_metrics: list[tuple[Replica, str]] = []
        nodes = machines()
        addresses = {node.address for node in nodes}
        host = _host(listen, addresses, "--listen")
        metrics_host = None if metrics is None else _host(metrics, addresses, "--metrics")
        actor_class = ray.remote(PartServer)
        self._members = []
        for place, replica in enumerate(placement(nodes, parts, replicas)):
            actor = actor_class.options(
                num_cpus=_CPUS,
                max_restarts=-1,
                max_concurrency=2,  # it returns its state while it stops
                scheduling_strategy=NodeAffinitySchedulingStrategy(replica.node.id, soft=True),
            ).remote(
                [*arguments, "--part", f"{replica.part}/{parts}"],
                _bind_address(host, listen, place),
                None if metrics is None else _bind_address(metrics_host, metrics, place),
                dict(variables),
            )
            self._members.append(_Member(replica, actor))

    def start(self, ended: threading.Event) -> None:
        """Return once all servers answer and are published, or when `ended` is set.

        Raises:
            ServeError: a server cannot start, a machine has another version of rest-store, or a file cannot be written.
        """
        while not ended.is_set():
            self._look()
            for member in self._members:
                if member.state is not None:
                    _require_startable(member.replica, member.state, self._parts)
            if all(member.address is not None for member in self._members):
                self._publish()
                return
            ended.wait(_STARTING_SECONDS)

    def watch(self, ended: threading.Event) -> None:
        """Log starts of servers and publish new addresses until `ended` is set.

        If a file cannot be written, that is logged and tried again: the servers answer all the same.
        """
        while not ended.wait(_WATCH_SECONDS):
            self._look()
            try:
                self._publish()
            except ServeError as error:
                self._log.limited("failure", "publish", error=str(error))

    def reload(self) -> None:
        """Have all servers read their datastores, tokens and certificates again."""
        for member in self._members:
            member.actor.reload.remote()

    def stop(self, seconds: float) -> None:
        """End all servers; those that are still draining after `seconds` end when Ray ends their actors."""
        stopping = [member.actor.stop.remote() for member in self._members]
        ray.wait(stopping, num_returns=len(stopping), timeout=seconds)

    def _look(self) -> None:
        """Ask all actors for their state; those that do not answer keep the last one."""
        asked = [member.actor.state.remote() for member in self._members]
        ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_SECONDS)
        for member, answer in zip(self._members, asked, strict=True):
            try:
                state: PartState = ray.get(answer, timeout=0)
            except (GetTimeoutError, RayError):
                continue
            before, member.state = member.state, state
            server = state.server
            if server.address is None:  # on its way to another machine
                continue
            member.address, member.metrics = server.address, server.metrics
            if before is None or (before.server.starts, before.process) != (server.starts, state.process):
                self._log("start", part=member.replica.part, replica=member.replica.number, **server._asdict())

    def _publish(self) -> None:
        """Write the files whose content has changed."""
        groups: list[list[str]] = [[] for _ in range(self._parts)]
        for member in self._members:
            if member.address is not None:
                groups[member.replica.part - 1].append(member.address)
        if groups != self._published:
            write_parts(self._parts_file, groups)
            self._published = groups
        targets = [(member.replica, member.metrics) for member in self._members if member.metrics is not None]
        if targets != self._published_metrics:
            write_metrics(self._metrics_file, targets)
            self._published_metrics = targets


def _host(listen: Address, machine_addresses: Collection[str], option: str) -> str | None:
    """Return the host that all servers listen at; None: each at the address of its machine.

    Raises:
        ServeError: clients on other machines could not reach all servers there.
    """
    if listen.host == _EVERYWHERE:
        return None
    if listen.host is None or not listen.is_local:
        raise ServeError(describe("service", option, listen.text, f"a loopback address or {_EVERYWHERE}, with --ray"))
    if len(machine_addresses) > 1:
        found = f"{listen.text} on {len(machine_addresses)} machines"
        raise ServeError(describe("service", option, found, f"{_EVERYWHERE}:PORT, that each has its own address"))
    return listen.host


def _bind_address(host: str | None, first: Address, place: int) -> BindAddress:
    """Return where the server in this place binds; the first one binds at `first`."""
    return BindAddress(host, first.port + place if first.port else 0)


def _require_startable(replica: Replica, state: PartState, parts: int) -> None:
    """Raise ServeError if the server has failed before it answered, or has another version of rest-store."""
    where = f"part {replica.part}/{parts} on {replica.node.address}"
    if state.version != rest_store.__version__:
        raise ServeError(describe(where, "version of rest-store", state.version, rest_store.__version__))
    if not state.server.starts and state.server.failure is not None:
        raise ServeError(f"{where}: {state.server.failure.removeprefix('Error: ')}")
