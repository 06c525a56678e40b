"""Random requests to a service: messages with all kinds of values, and bytes that are hardly messages."""

from __future__ import annotations

import random

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from rest_store.v1 import datastore_pb2 as pb

NUMBERS = [0, 1, 2, 5, 16, 63, 64, 65, 299, 300, 1024, 1025, 2**31 - 1, 2**31, 2**32 - 1]
NAMES = ["one", "two", "", "none", "\x00", "\u00fc\U0001f600", "x" * 3000]
FINGERPRINTS = ["", "sha256:" + f"{300:064x}", "sha256:" + f"{301:064x}", "sha256:", "\n" * 50]
METHODS = {
    "Draft": pb.DraftRequest,
    "DraftStream": pb.DraftStreamRequest,
    "LongestSuffixMatch": pb.LongestSuffixMatchRequest,
    "Count": pb.CountRequest,
    "Describe": pb.DescribeRequest,
    "Reload": pb.ReloadRequest,
}


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
        elif field.name == "tokens":
            value.extend(some_tokens(chance))
        elif field.name == "parents":
            value.extend(chance.choice([-1, -1, 0, place - 1, -5, 2**31 - 1]) for place in range(chance.randrange(5)))
        elif field.name == "scores":
            value.extend(chance.choice([0.0, 0.5, 1.0, 2.0, -1.0, float("nan")]) for _ in range(chance.randrange(5)))
        elif field.name == "datastores":
            value.extend(chance.choice(NAMES[: chance.choice([2, 7])]) for _ in range(chance.randrange(3)))
        elif field.name == "tokenizer_fingerprint":
            setattr(message, field.name, chance.choice(FINGERPRINTS))
        else:
            setattr(message, field.name, chance.choice(NUMBERS if chance.random() < 0.2 else NUMBERS[:4]))
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
    method = chance.choices(list(METHODS), weights=[8, 8, 4, 4, 1, 1])[0]
    kind = METHODS[method] if chance.random() < 0.9 else chance.choice(list(METHODS.values()))
    data = some_message(chance, kind).SerializeToString()
    return method, damaged(chance, data) if chance.random() < 0.5 else data
