"""A client's messages of a session on the wire, and a relay that changes the answers."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import grpc
import numpy as np

from rest_store.v1 import datastore_pb2 as pb
from tests.shared.messages import PREFIX, STREAMS
from tests.shared.services import PATIENCE, Service, metrics_of

Request = pb.DraftSessionRequest

# Of the service in tests/service/conftest.py.
NAMES = "abcdefg"  # of a datastore, one more than a session may have
TEXT = 1500  # most tokens of a text
CONTEXTS = 64  # most contexts of a request


class SessionTalk:
    """One session that a service runs, told and asked message by message."""

    def __init__(self, stub: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = stub.DraftSession(iter(self._requests.get, None), timeout=PATIENCE)

    def ask(self, request: Any) -> Any:
        """Send a request and wait for its answer."""
        self._requests.put(request)
        return next(self.call)

    def tell(self, request: Request) -> None:
        """Send a message that asks for nothing."""
        self._requests.put(request)

    def close(self) -> None:
        """End the stream and wait until the service has, too."""
        self._requests.put(None)
        assert list(self.call) == []

    def leave(self) -> None:
        """Let go of a stream that has ended already."""
        self._requests.put(None)
        self.call.cancel()


def opening(*tokens: int, nodes: int | None = 8, **fields: Any) -> Request:
    """Return the first message of a session over "a", which asks for a tree if `nodes` is set."""
    fields = {"selection": pb.Selection(datastores=["a"]), **fields}
    message = Request(open=pb.SessionOpening(tokens=token_bytes(tokens), **fields))
    if nodes is not None:
        message.draft.max_nodes = nodes
    return message


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Return tokens as an opening has them."""
    return np.array(tokens, "<u4").tobytes()


def step(*tokens: int, nodes: int | None = 8, **fields: Any) -> Request:
    """Return a later message, which accepts tokens and asks for a tree unless `nodes` is None."""
    message = Request(accepted=[pb.Accepted(tokens=tokens, **fields)] if tokens or fields else [])
    if nodes is not None:
        message.draft.max_nodes = nodes
    return message


def top_k(rows: Sequence[Sequence[int]]) -> pb.TopK:
    """Return most likely tokens as a message."""
    array = np.array(rows, "<i4")
    return pb.TopK(k=array.shape[1], tokens=array.tobytes())


class Nodes(NamedTuple):
    """The nodes of a session's tree, column by column."""

    tokens: list[int]
    scores: list[float]
    parents: list[int]
    origins: list[int]
    depths: list[int]

    @classmethod
    def from_message(cls, tree: pb.Tree) -> Nodes:
        """Read a tree by the definition of the message."""
        count, rest = divmod(len(tree.nodes), 20)
        assert rest == 0
        assert not any(np.frombuffer(tree.nodes, "<i8", count)), "a session counts nothing"
        tokens, parents, depths = np.frombuffer(tree.nodes, "<i4", 3 * count, 8 * count).reshape(
            3, count
        )
        return cls(
            tokens.tolist(),
            np.frombuffer(tree.scores, "<f4", count).tolist(),
            parents.tolist(),
            np.frombuffer(tree.origins, "u1", count).tolist(),
            depths.tolist(),
        )

    def message(self) -> pb.Tree:
        """Return the nodes as an answer has them."""
        columns = [self.tokens, self.parents, self.depths]
        return pb.Tree(
            nodes=bytes(8 * len(self.tokens)) + np.array(columns, "<i4").tobytes(),
            scores=np.array(self.scores, "<f4").tobytes(),
            origins=bytes(self.origins),
        )


def sessions_of(service: Service) -> tuple[float, float]:
    """Return how many sessions a service has, and the bytes that they have reserved."""
    actual = metrics_of(service)
    return actual["rest_store_sessions",], actual["rest_store_session_bytes",]


class Relay(grpc.GenericRpcHandler):
    """A server that passes requests on to a service, keeps them, and may change what comes back.

    Args:
        target: address of the service.
        answer: given the name of a method and an answer, returns what to answer in its place, or
            None for nothing.

    Attributes:
        received: names of methods and requests, in the order in which they came.
        answer: as given; may be changed.
        aborts: the status that ends streams in place of their next answer; None: none does.
        target: its own address.
    """

    def __init__(
        self, target: str, answer: Callable[[str, bytes], bytes | None] = lambda _, data: data
    ) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.answer = answer
        self.aborts: grpc.StatusCode | None = None
        self._channel = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        self._server.add_generic_rpc_handlers((self,))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: Any) -> Any:
        """Return the handler of a method; as gRPC asks for."""
        name = details.method.removeprefix(PREFIX)
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._pass_on(name, requests, context)
        )

    def _pass_on(self, name: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        def heard() -> Iterator[bytes]:
            for request in requests:
                self.received.append((name, request))
                yield request

        call: Any = self._channel.stream_stream(PREFIX + name)(heard(), timeout=PATIENCE)
        context.add_callback(call.cancel)
        try:
            for data in call:
                if self.aborts is not None and name in STREAMS:
                    context.abort(self.aborts, "by something between")
                if (answer := self.answer(name, data)) is not None:
                    yield answer
        except grpc.RpcError as error:
            context.set_trailing_metadata(call.trailing_metadata())
            context.abort(error.code(), error.details())

    def tokens(self) -> list[int]:
        """Return all tokens that clients have sent, in the order in which they came."""
        actual: list[int] = []
        for name, data in self.received:
            if name == "DraftSession":
                session = Request.FromString(data)
                actual += [
                    *np.frombuffer(session.open.tokens, "<i4").tolist(),
                    *(token for one in session.accepted for token in one.tokens),
                ]
        return actual

    def close(self) -> None:
        """End it."""
        self._server.stop(None).wait(PATIENCE)
        self._channel.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
