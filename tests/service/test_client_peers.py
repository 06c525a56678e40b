"""A peer that is no service of ours is told from one, by name, within the deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rest_store.errors import DeadlineError, ProtocolError, ServiceError, ServiceUnavailableError
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.clients import LATE, SLACK, Impostor
from tests.shared.services import PATIENCE
from tests.shared.strategies import refused


@contextlib.contextmanager
def saying(data: bytes | None) -> Iterator[str]:
    """A TCP server that sends `data` to every client and then nothing.

    None: it hangs up at once.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        sockets: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    sockets.append(peer)
                    peer.sendall(data or b"")
                    if data is None:
                        peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)
    for peer in sockets:
        peer.close()


# HTTP/2: an empty SETTINGS frame, and the first bytes of a frame that says it is longer.
@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"HTTP/1.1 400 no\r\n\r\n",
        bytes(9) + b"x" * 99,
        b"\0\0\0\4\0\0\0\0\0" + b"\0\1\0\0\1",
    ],
)
def test_a_peer_that_speaks_otherwise_or_half(data: bytes | None) -> None:
    with saying(data) as target, DatastoreClient(target, timeout=LATE) as client:
        for call in (lambda: client.draft([1]), lambda: client.info(timeout=LATE)):
            began = time.monotonic()
            with pytest.raises((ServiceUnavailableError, DeadlineError, ServiceError)):
                call()
            assert time.monotonic() - began < LATE + SLACK


# A node with the context's own place as parent.
BROKEN = pb.Tree(nodes=bytes(20), match_length=1, match_count=1)
ASKING: dict[str, Any] = {
    "draft": lambda client: client.draft([1]),
    "match": lambda client: client.longest_suffix_match([1]),
    "count": lambda client: client.count([1]),
}


@pytest.mark.parametrize(
    ("asking", "answer"),
    [
        *((asking, b"\xff\xff") for asking in ASKING),
        ("draft", pb.DraftResponse()),
        ("draft", pb.DraftResponse(trees=[BROKEN])),
        ("draft", pb.DraftResponse(trees=[pb.Tree()] * 2)),
        ("match", pb.DraftResponse(trees=[pb.Tree(match_length=17, match_count=1)])),
        ("count", pb.CountResponse()),
        ("count", pb.CountResponse(counts=[1, 2])),
    ],
)
def test_a_peer_with_wrong_answers(asking: str, answer: Any) -> None:
    impostor = Impostor(answer if isinstance(answer, bytes) else answer.SerializeToString())
    with DatastoreClient(impostor.target, datastore="a", timeout=PATIENCE) as client:
        refused(ProtocolError, lambda: ASKING[asking](client), impostor.target)
    impostor.server.stop(None).wait(PATIENCE)
