"""The connection of a client: a gRPC channel and the methods of the service on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

METHOD = "/rest_store.v1.DatastoreService/"
_UNARY = ("Draft", "LongestSuffixMatch", "Count", "Describe")


class Connection:
    """A channel of grpc or grpc.aio, and the unary methods of the service on it, by name; bytes in, bytes out."""

    __slots__ = ("channel", "methods")

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.methods: dict[str, Callable[..., Any]] = {name: channel.unary_unary(METHOD + name) for name in _UNARY}
