"""Random messages of draft sessions, of which some come out of order or measure."""

from __future__ import annotations

import random

import numpy as np

from rest_store.v1 import datastore_pb2 as pb
from tests.fuzz.impostors import change_somewhere
from tests.shared.messages import NAMES, damaged, some_message, some_tokens


def some_session(chance: random.Random) -> list[bytes]:
    """The messages of one session; in half of the cases all are as they should be."""
    messages: list[pb.DraftSessionRequest] = [pb.DraftSessionRequest(open=some_opening(chance))]
    messages += [pb.DraftSessionRequest() for _ in range(chance.randrange(12))]
    for message in messages:
        for _ in range(chance.choice([0, 1, 1, 2, 40])):
            message.accepted.append(some_accepted(chance))
        if chance.random() < 0.8:
            message.draft.max_nodes = chance.choice([0, 1, 8, 8, 64, 1024])
            message.draft.sequence = chance.choice([0, 1, 2**64 - 1])
            if chance.random() < 0.3:
                message.draft.costs.of_step.extend(1 + 0.01 * nodes for nodes in range(chance.choice([0, 1, 9, 1025])))
    sent = [message.SerializeToString() for message in messages]
    if chance.random() < 0.5:
        return sent
    for _ in range(chance.choice([1, 1, 3])):
        place = chance.randrange(len(sent))
        match chance.randrange(6):
            case 0:
                sent[place] = damaged(chance, sent[place])
            case 1:
                sent[place] = some_message(chance, pb.DraftSessionRequest).SerializeToString()
            case 2:
                sent.insert(place, sent[chance.randrange(len(sent))])
            case 3:
                sent = sent[place:] or sent
            case 4:
                sent[place] += chance.choice(sent)  # the fields of both
            case _:
                message = chance.choice(messages)
                for _ in range(chance.choice([1, 2, 5])):
                    change_somewhere(chance, message)
                sent[place] = message.SerializeToString()
    return sent


def some_opening(chance: random.Random) -> pb.SessionOpening:
    text = [chance.randrange(9) for _ in range(chance.choice([0, 1, 5, 100, 2000]))]
    opening = pb.SessionOpening(
        selection=pb.Selection(datastores=[chance.choice(["one", "one", "two"])]),
        tokens=np.array(text, "<i4").tobytes(),
        prompt_lookup=chance.random() < 0.5,
        fixed_calibration=chance.random() < 0.2,
    )
    if chance.random() < 0.5:
        opening.recycled_logits = chance.choice([b"", b"key", chance.randbytes(64)])
    if chance.random() < 0.3:
        opening.shared_calibration = chance.choice(NAMES[:6])
    return opening


def some_accepted(chance: random.Random) -> pb.Accepted:
    tokens = [token % 9 for token in some_tokens(chance)] or [1]
    accepted = pb.Accepted(tokens=tokens)
    if chance.random() < 0.4:
        accepted.top_k.CopyFrom(some_top_k(chance, len(tokens)))
    if chance.random() < 0.01:  # seldom of the tree that was drafted last
        accepted.node_top_k.CopyFrom(some_top_k(chance, chance.choice([1, 9, 65])))
    return accepted


def some_top_k(chance: random.Random, rows: int) -> pb.TopK:
    k = chance.choice([1, 8, 64])
    tokens = np.random.default_rng(chance.randrange(2**32)).choice([-1, 0, 1, 5, 8, 299, 300, 2**31 - 1], (rows, k))
    return pb.TopK(k=k, tokens=tokens.astype("<i4").tobytes())
