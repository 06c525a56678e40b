"""A server that answers as a real service does, and changes what it says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from rest_store.v1 import datastore_pb2 as pb
from tests.shared.messages import METHODS, PREFIX, STREAMS, damaged, some_message
from tests.shared.services import PATIENCE

RESPONSES: dict[str, type[Message]] = {
    "Draft": pb.DraftResponse,
    "DraftSession": pb.DraftSessionResponse,
    "Count": pb.CountResponse,
    "Describe": pb.DescribeResponse,
}


def some_answer(chance: random.Random, kind: type[Message], true: bytes) -> bytes:
    """Something like the answer `true`."""
    match chance.randrange(4):
        case 0:
            return damaged(chance, true)
        case 1:
            return some_message(chance, kind).SerializeToString()
        case 2:  # the fields of both
            return true + some_message(chance, kind).SerializeToString()
        case _:
            return chance.choice([b"", b"\xff" * 9, bytes(chance.randrange(40)), true + true, bytes(5 << 20)])


class Impostor(grpc.GenericRpcHandler):
    """Passes requests on to a real service, and answers as `chance` has it.

    Args:
        target: address of the real service.

    Attributes:
        chance: of the case.
        honesty: share of answers that are passed on as they are.
    """

    def __init__(self, target: str) -> None:
        self.chance = random.Random(0)
        self.honesty = 0.5
        self._channel = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        """End it."""
        self._server.stop(None).wait(PATIENCE)
        self._channel.close()

    def service(self, details: Any) -> Any:
        """Return the handler of a method; as gRPC asks for."""
        name = details.method.removeprefix(PREFIX)
        if name not in METHODS or self.chance.random() < 0.02:
            return None
        if name in STREAMS:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, name))
        call = self._channel.unary_unary(details.method)

        def answer(request: bytes, context: Any) -> bytes:
            self._disturb(context)
            try:
                true = call(request, timeout=PATIENCE)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            return self._answer(RESPONSES[name], true)

        return grpc.unary_unary_rpc_method_handler(answer)

    def _answer(self, kind: type[Message], true: bytes) -> bytes:
        return true if self.chance.random() < self.honesty else some_answer(self.chance, kind, true)

    def _stream(self, name: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._disturb(context)
        call: Callable[..., Iterator[bytes]] = self._channel.stream_stream(PREFIX + name)
        try:
            for true in call(requests, timeout=PATIENCE):
                for _ in range(self.chance.choice([1] * 12 + [0, 2, 40])):
                    yield self._answer(RESPONSES[name], true)
                self._disturb(context)
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())

    def _disturb(self, context: Any) -> None:
        """Fail, be slow, or send metadata that are no details of an error."""
        chance = self.chance
        if chance.random() < self.honesty or chance.random() < 0.6:
            return
        if chance.random() < 0.5:
            details = chance.choice([b"", b"\xff\xff", chance.randbytes(40)])
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        if chance.random() < 0.2:
            time.sleep(0.4)
        elif chance.random() < 0.8:
            codes = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
            context.abort(chance.choice(codes), chance.choice(["", "larger than max", "\u00fc" * 300]))
