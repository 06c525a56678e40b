"""Random requests to a service, of which some are hardly messages, and how they end."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.statuses import STATUSES
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE, reason_of
from tests.shared.strategies import Corpus, identity, write_datastore

PREFIX = "/rest_store.v1.DatastoreService/"
CODES = {status.reason: status.code for status in STATUSES}
STREAMS = ("DraftSession",)
NUMBERS = [0, 1, 2, 5, 16, 63, 64, 65, 299, 300, 1024, 1025, 2**31 - 1, 2**31, 2**32 - 1]
FRACTIONS = [0.0, 0.5, 1.0, 2.0, -1.0, float("nan"), float("inf")]
NAMES = ["one", "two", "live", "", "none", "\x00", "\u00fc\U0001f600", "x" * 3000]
FINGERPRINTS = ["", "sha256:" + f"{300:064x}", "sha256:" + f"{301:064x}", "sha256:", "\n" * 50]
METHODS = {
    "Draft": pb.DraftRequest,
    "DraftSession": pb.DraftSessionRequest,
    "Count": pb.CountRequest,
    "Describe": pb.DescribeRequest,
    "Add": pb.AddRequest,
    "Delete": pb.DeleteRequest,
}
OPENING = pb.DraftSessionRequest(
    open=pb.SessionOpening(
        selection=pb.Selection(datastores=["one"]),
        tokens=bytes([1, 0, 0, 0, 2, 0, 0, 0]),
        prompt_lookup=True,
    )
).SerializeToString()
STEP = pb.DraftSessionRequest(
    accepted=[pb.Accepted(tokens=[4])], draft=pb.DraftOptions(max_nodes=8)
).SerializeToString()


def some_tokens(chance: random.Random) -> list[int]:
    size = chance.choice([0, 1, 2, 5, 20, 65, 500])
    usual = chance.random() < 0.8
    return [chance.randrange(8) if usual else chance.choice(NUMBERS) for _ in range(size)]


def some_message(chance: random.Random, kind: type[Message]) -> Message:
    """A message with all kinds of values in its fields, nested ones, too."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if chance.random() < 0.3:
            continue
        value = getattr(message, field.name)
        times = chance.choice([1, 1, 2, 3, 40]) if field.is_repeated else 1
        if field.message_type is not None:
            made = [some_message(chance, GetMessageClass(field.message_type)) for _ in range(times)]
            value.extend(made) if field.is_repeated else value.CopyFrom(made[0])
        elif field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            if field.is_repeated:
                value.extend(
                    chance.choice(FRACTIONS) for _ in range(chance.choice([0, 1, 3, 5, 5, 2000]))
                )
            else:
                setattr(message, field.name, chance.choice(FRACTIONS))
        elif (
            kind in (pb.Document, pb.SessionOpening)
            and field.name == "tokens"
            and chance.random() < 0.7
        ):
            message.tokens = np.array(some_tokens(chance), "<u4").tobytes()
        elif field.name == "references":
            value.extend(np.array(some_tokens(chance), "<u4").tobytes() for _ in range(times))
        elif field.type == field.TYPE_BYTES:
            setattr(
                message, field.name, chance.randbytes(chance.choice([0, 4, 8, 16, 64, 65, 400]))
            )
        elif field.type == field.TYPE_BOOL:
            setattr(message, field.name, chance.random() < 0.5)
        elif field.name == "tokens":
            value.extend(some_tokens(chance))
        elif field.name == "datastores":
            value.extend(
                chance.choice(NAMES[: chance.choice([3, 8])]) for _ in range(chance.randrange(3))
            )
        elif field.name == "ids":
            value.extend(chance.choice(NAMES) for _ in range(chance.randrange(3)))
        elif field.type == field.TYPE_STRING:
            setattr(
                message,
                field.name,
                chance.choice(FINGERPRINTS if "fingerprint" in field.name else NAMES),
            )
        else:
            setattr(
                message,
                field.name,
                chance.choice(NUMBERS if chance.random() < 0.2 else NUMBERS[:4]),
            )
    return message


def damaged(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\x00")
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                changed[place] ^= 1 << chance.randrange(8)
            case 1:
                changed[place] = chance.choice([0, 0x7F, 0x80, 0xFF])
            case 2:
                del changed[place + 1 :]
            case 3:
                changed[place:place] = chance.randbytes(chance.randrange(1, 12))
            case _:
                start = chance.randrange(len(changed))
                changed[place:place] = changed[start : start + 30]
    return bytes(changed)


def fuzzed(chance: random.Random) -> tuple[str, bytes]:
    """A method and what is sent to it."""
    method = chance.choices(list(METHODS), weights=[8, 16, 4, 1, 4, 2])[0]
    kind = METHODS[method] if chance.random() < 0.9 else chance.choice(list(METHODS.values()))
    message = some_message(chance, kind)
    data = message.SerializeToString()
    return method, damaged(chance, data) if chance.random() < 0.5 else data


def begin_live_datastore(directory: Path) -> list[str]:
    """Begin the live datastore "live" with the tokenizer of "one".

    Return the options that serve it.
    """
    LiveDatastore.open(directory / "live", tokenizer=identity(300)).close()
    return ["--live", str(directory / "live")]


def write_two_datastores(directory: Path) -> list[Path]:
    """Write the datastores "one" and "two", which have different tokenizers."""
    places = [directory / "one", directory / "two"]
    for place, vocabulary_size in zip(places, (300, 301), strict=True):
        documents = [[number % 7, *range(number % 5, 30)] for number in range(20)]
        write_datastore(place, Corpus(vocabulary_size, [documents]))
    return places


def begin(channel: grpc.Channel, method: str, *messages: bytes) -> Any:
    """Send one message, or several to a method that takes a stream; return the call."""
    if method in STREAMS:
        return channel.stream_stream(PREFIX + method)(iter(messages), timeout=PATIENCE)
    return channel.unary_unary(PREFIX + method).future(messages[0], timeout=PATIENCE)


def ending(call: Any, *, stream: bool) -> tuple[list[bytes], str, str | None]:
    """How a call ends: answers, status, and the reason of an error of ours."""
    answers: list[bytes] = []
    try:
        if stream:
            answers += call
        else:
            answers.append(call.result())
    except grpc.RpcError as error:
        return answers, error.code().name, reason_of(error)
    except grpc.FutureCancelledError:
        return answers, "CANCELLED", None
    return answers, "OK", None


def outcome_of(code: str, reason: str | None, where: str) -> str:
    """Return "answered" or the name of a refusal, which is one of the table."""
    if code == "OK":
        return "answered"
    if reason is None and code == "RESOURCE_EXHAUSTED":
        return "too large or too many for gRPC"
    if reason is None and code == "CANCELLED":
        return "dropped unread"
    assert reason in CODES, f"{where}: {code} without a reason"
    assert CODES[reason] == code, f"{where}: {code} for {reason}"
    assert reason != "INTERNAL", where
    return reason


def twice(method: str, data: bytes) -> tuple[bytes, ...]:
    """Two messages of a stream with `data`: of a session, one opens it and one continues it."""
    if method != "DraftSession":
        return data, data
    try:
        opens = pb.DraftSessionRequest.FromString(data).HasField("open")
    except DecodeError:
        opens = False
    return (data, STEP) if opens else (OPENING, data)


def outcomes(channel: grpc.Channel, pairs: list[tuple[str, bytes]]) -> list[str]:
    """Send messages to methods, all at once, and return how each ended; a stream is sent two."""
    calls = [begin(channel, method, *twice(method, data)) for method, data in pairs]
    results = []
    for (method, data), call in zip(pairs, calls, strict=True):
        stream = method in STREAMS
        where = f"{method} {data!r}"
        answers, code, reason = ending(call, stream=stream)
        if not stream:  # a session may be told something and asked nothing
            assert code != "OK" or len(answers) == 1, f"{where}: {len(answers)} answers"
        results.append(outcome_of(code, reason, where))
    return results
