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
    match chance.randrange(6):
        case 0:
            return true
        case 1:
            return damaged(chance, true)
        case 2:
            return some_message(chance, kind).SerializeToString()
        case 3:  # the fields of both
            return true + some_message(chance, kind).SerializeToString()
        case 4:
            return chance.choice([b"", b"\xff" * 9, bytes(chance.randrange(40)), true + true, bytes(5 << 20)])
        case _:
            message = kind.FromString(true)
            change_somewhere(chance, message)
            return message.SerializeToString()


def change_somewhere(chance: random.Random, message: Message) -> None:
    """Change one field of `message` or of a message in it: numbers to their limits, lists in length, bytes in place."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field = chance.choice(fields)
    value = getattr(message, field.name)
    numbers = [0, 1, 2**31 - 1, 2**32 - 1]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value.clear()
    elif field.is_repeated and len(value):
        place = chance.randrange(len(value))
        if field.message_type is not None and chance.random() < 0.7:
            change_somewhere(chance, value[place])
        elif chance.random() < 0.5:
            del value[place]
        elif field.message_type is not None:
            value.extend([value[place]] * chance.choice([1, 300]))
        else:
            value.extend([value[place]] * chance.choice([1, 3000]))
    elif field.is_repeated:
        if field.message_type is None:
            value.extend(chance.choices(["one", "\x00"] if field.type == field.TYPE_STRING else numbers, k=3))
        else:
            value.add()
    elif field.message_type is not None:
        change_somewhere(chance, value)
    elif isinstance(value, bool):
        setattr(message, field.name, not value)
    elif isinstance(value, bytes):
        setattr(message, field.name, damaged(chance, value))
    elif isinstance(value, str):
        setattr(message, field.name, chance.choice(["", "\x00", "x" * 5000, value + " "]))
    else:
        greatest = 2**64 - 1 if "64" in str(field.type) or field.type == field.TYPE_UINT64 else 2**32 - 1
        setattr(message, field.name, chance.choice([*numbers, greatest]))


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
            details = chance.choice([b"", b"\xff\xff", b"\x00" * 99, chance.randbytes(40)])
            context.set_trailing_metadata((("grpc-status-details-bin", details), ("x", "y" * 100)))
        kind = chance.random()
        if kind < 0.15:
            time.sleep(0.4)
        elif kind < 0.8:
            codes = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
            context.abort(chance.choice(codes), chance.choice(["", "no", "larger than max", "\u00fc" * 300]))
