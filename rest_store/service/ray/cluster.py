"""A connection to a Ray cluster, and the machines that it has."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator

import ray

from rest_store.errors import ServeError, describe
from rest_store.service.ray.placement import Node

_CONNECT_SECONDS = 10.0


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Be connected to a Ray cluster.

    Args:
        address: HOST:PORT of its head node, or "auto": that of RAY_ADDRESS, or the one on this machine.

    Raises:
        ServeError: there is none, or it runs another version of Ray or Python.
    """
    try:
        _require_open(address)
        ray.init(address=address, logging_level=logging.WARNING)
    except Exception as error:  # its errors have no common base
        found = f"'{address}', which cannot be used ({str(error).splitlines()[0]})"
        expected = "the address of one that runs, with this Python and Ray"
        raise ServeError(describe("service", "the Ray cluster", found, expected)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_open(address: str) -> None:
    """Raise OSError if nothing listens at `HOST:PORT`, for which Ray waits minutes; others are Ray's affair."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()


def machines() -> list[Node]:
    """Return the machines that have CPUs for tasks, in a fixed order; raise ServeError if there are none."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    if not nodes:
        raise ServeError(describe("service", "the number of machines with a CPU in the Ray cluster", 0, "at least 1"))
    return sorted(Node(str(node["NodeID"]), str(node["NodeManagerAddress"])) for node in nodes)
