"""Random messages to a real service, and random answers to its clients.

What must hold: the service lives, answers a request of ours as before, and needs memory and time
for a message in proportion to its size; each refusal has a status of the table in
`rest_store.service.statuses`, none of them UNKNOWN or INTERNAL. Whatever a service answers, clients
return something valid or raise an error of ours.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message

import rest_store
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import RestStoreError
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.fuzz import campaign
from tests.shared.clients import Waiting, connected
from tests.shared.messages import (
    STREAMS,
    begin,
    begin_live_datastore,
    damaged,
    ending,
    fuzzed,
    outcome_of,
    outcomes,
    some_message,
    some_tokens,
    write_two_datastores,
)
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Relay, sessions_of
from tests.shared.trees import tree_fault

RESPONSES: dict[str, type[Message]] = {
    "Draft": pb.DraftResponse,
    "DraftSession": pb.DraftSessionResponse,
    "Count": pb.CountResponse,
    "Describe": pb.DescribeResponse,
}
UNKNOWN = b"\x9a\x06\x00"  # field 99, of no length
MEMORY = 256 << 20  # bytes that a service may have grown by after any messages
SECONDS, SECONDS_PER_BYTE = 1.0, 1.5e-6  # of processors, that a message may cost
PROBE = pb.DraftRequest(
    contexts=[pb.Context(tokens=[2, 3, 4])], selection=pb.Selection(datastores=["one"])
).SerializeToString()


# --- What is sent ---------------------------------------------------------------------------------


def some_heavy_message(chance: random.Random) -> tuple[str, bytes]:
    """A method and a message of up to 4 MiB that is small for what is in it."""
    number = int(10 ** chance.uniform(2, 6.3))
    context = chance.choice([pb.Context(), pb.Context(tokens=[1]), pb.Context(tokens=[1, 2] * 32)])
    limits = pb.DraftRequest(limits=pb.TreeLimits(max_nodes=chance.choice([0, 1024]), max_depth=32))
    selection = pb.Selection(datastores=[chance.choice(["one", "two", "", "none"])])
    sequence = pb.CountRequest(tokens=[1] * chance.choice([1, 64]))
    method, begin, repeated = chance.choice(
        [
            ("Draft", limits, pb.DraftRequest(contexts=[context])),
            ("Draft", limits, pb.DraftRequest(selection=selection)),
            ("Count", pb.CountRequest(selection=selection), sequence),
        ]
    )
    data = begin.SerializeToString()
    return method, data + times(
        chance.choice([repeated.SerializeToString()] * 5 + [UNKNOWN]), number
    )


def times(data: bytes, number: int) -> bytes:
    """The same so often, within what a service takes."""
    return data * min(number, 4_190_000 // max(1, len(data)))


def some_session(chance: random.Random) -> list[bytes]:
    """The messages of one session; in half of the cases all are as they should be."""
    text = [chance.randrange(9) for _ in range(chance.choice([1, 5, 100, 2000]))]
    opening = pb.SessionOpening(
        tokens=np.array(text, "<i4").tobytes(),
        prompt_lookup=True,
        recycled_logits=chance.choice([b"", b"key"]),
    )
    opening.selection.datastores.append(chance.choice(["one", "two"]))
    opening.references.extend([opening.tokens] * chance.choice([0, 0, 1, 3]))
    messages = [pb.DraftSessionRequest(open=opening)]
    for _ in range(chance.randrange(12)):
        tokens = [token % 9 for token in some_tokens(chance)] or [1]
        top_k = pb.TopK(
            k=8, tokens=np.full(8 * len(tokens), chance.randrange(-1, 9), "<i4").tobytes()
        )
        messages.append(pb.DraftSessionRequest(accepted=[pb.Accepted(tokens=tokens, top_k=top_k)]))
    for message in messages:
        if chance.random() < 0.8:
            message.draft.max_nodes = chance.choice([1, 8, 64, 1024])
    sent = [message.SerializeToString() for message in messages]
    if chance.random() < 0.5:
        return sent
    place = chance.randrange(len(sent))
    match chance.randrange(5):
        case 0:
            sent[place] = damaged(chance, sent[place])
        case 1:
            sent[place] = some_message(chance, pb.DraftSessionRequest).SerializeToString()
        case 2:
            sent.insert(place, sent[chance.randrange(len(sent))])
        case 3:
            sent = sent[place:]
        case _:
            sent[place] += chance.choice(sent)  # the fields of both
    return sent


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
            return chance.choice(
                [b"", b"\xff" * 9, bytes(chance.randrange(40)), true + true, bytes(5 << 20)]
            )


# --- The service ----------------------------------------------------------------------------------


class Victim:
    """The service that is written to, and what it answered when nothing had been."""

    def __init__(self, datastores: list[Path], stack: ExitStack) -> None:
        options = ["--metrics", "127.0.0.1:0", "--max-session-memory", str(50 << 20)]
        options += begin_live_datastore(datastores[0].parent)
        self.service: Service = stack.enter_context(running(*datastores, options=options))
        self.channel = stack.enter_context(self.service.channel())
        self.read = 0
        with DatastoreClient(self.service.target, datastore="one", timeout=PATIENCE) as client:
            assert client.draft([2, 3, 4]) == rest_store.Datastore.open(datastores[0]).draft(
                [2, 3, 4]
            )
        self.expected = self._probe()
        self.memory = self.service.resident_bytes()

    def _probe(self) -> bytes:
        until = time.monotonic() + PATIENCE
        while True:
            answers, code, reason = ending(begin(self.channel, "Draft", PROBE), stream=False)
            if code == "OK":
                return answers[0]
            assert code in ("RESOURCE_EXHAUSTED", "CANCELLED"), f"a valid request: {code} {reason}"
            assert time.monotonic() < until, "still overloaded"
            time.sleep(0.1)

    def seconds(self) -> float:
        """Return the processor time that the service has used."""
        fields = (
            Path(f"/proc/{self.service.process.pid}/stat")
            .read_text(encoding="ascii")
            .rpartition(")")[2]
            .split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def require_sound(self) -> None:
        """Raise AssertionError unless the service answers as before, in the same memory."""
        assert self.service.process.poll() is None, "the service ended: " + "".join(
            self.service.log[-30:]
        )
        assert self._probe() == self.expected
        grown = self.service.resident_bytes() - self.memory
        assert grown < MEMORY, f"the service holds {grown >> 20} MiB more than at first"
        new = self.service.log[self.read :]
        self.read = len(self.service.log)
        defects = [line for line in new if "Traceback" in line or "internal" in line.lower()]
        assert not defects, "in the log: " + "".join(new[:40])


class Fuzzer(campaign.Fuzzer):
    """Writes to a service, and answers its clients."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._datastores = write_two_datastores(directory)
        self._victim: Victim | None = None

    @property
    def victim(self) -> Victim:
        """The service, another one if it has ended."""
        if self._victim is None or self._victim.service.process.poll() is not None:
            self._victim = Victim(self._datastores, self.stack)
        return self._victim

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        kind = chance.choices(
            [self._requests, self._heavy, self._sessions, self._clients], weights=[5, 3, 5, 6]
        )[0]
        self.case = kind.__name__.strip("_")
        victim = self.victim
        try:
            results = kind(chance)
            victim.require_sound()
        except BaseException:  # what follows has a service without this behind it
            victim.service.kill()
            raise
        return Counter({f"{self.case}: {outcome}": number for outcome, number in results.items()})

    def _requests(self, chance: random.Random) -> Counter[str]:
        return Counter(outcomes(self.victim.channel, [fuzzed(chance) for _ in range(40)]))

    def _heavy(self, chance: random.Random) -> Counter[str]:
        victim = self.victim
        method, data = some_heavy_message(chance)
        began = victim.seconds()
        _, code, reason = ending(begin(victim.channel, method, data), stream=method in STREAMS)
        spent = victim.seconds() - began
        where = f"{method}, {len(data)} bytes that begin {data[:60]!r}"
        assert spent < SECONDS + SECONDS_PER_BYTE * len(data), (
            f"{where}: {spent:.1f} s of processors ({code} {reason})"
        )
        return Counter([outcome_of(code, reason, where)])

    def _sessions(self, chance: random.Random) -> Counter[str]:
        victim = self.victim
        results = self._talked(
            chance, [some_session(chance) for _ in range(chance.randrange(1, 30))]
        )
        end = time.monotonic() + PATIENCE
        while sessions_of(victim.service)[0] > 0:  # those that were left
            assert time.monotonic() < end, "sessions without streams"
        return results

    def _talked(self, chance: random.Random, talks: list[list[bytes]]) -> Counter[str]:
        """Send the messages of several streams at once, and leave some of these before they end."""
        results: Counter[str] = Counter()
        calls = [begin(self.victim.channel, "DraftSession", *sent) for sent in talks]
        for call in calls:
            if chance.random() < 0.3:
                for _ in range(chance.randrange(3)):
                    with contextlib.suppress(grpc.RpcError, StopIteration):
                        next(call)
                call.cancel()
                results["left"] += 1
            else:
                _, code, reason = ending(call, stream=True)
                results[outcome_of(code, reason, "a session")] += 1
        return results

    # --- Its clients ------------------------------------------------------------------------------

    def _clients(self, chance: random.Random) -> Counter[str]:
        # Of the relay's threads.
        own = random.Random(chance.random())
        honesty = chance.choice([0.2, 0.5, 0.9])

        def answer(name: str, true: bytes) -> bytes | None:
            if own.random() < honesty:
                return true
            if own.random() < 0.1:
                time.sleep(0.4)
            return (
                None
                if name in STREAMS and own.random() < 0.1
                else some_answer(own, RESPONSES[name], true)
            )

        results: Counter[str] = Counter()
        kind: Any = chance.choice([DatastoreClient, Waiting])
        datastore = chance.choice(["one", "one", "one", "two", None, ["one", "two"]])
        with Relay(self.victim.service.target, answer) as relay:
            with connected(kind, relay.target, datastore=datastore, timeout=0.3) as client:
                for _ in range(12):
                    relay.aborts = chance.choice([None] * 8 + [*grpc.StatusCode][1:])
                    results[asked_of(chance, client)] += 1
            if chance.random() < 0.3:
                results += drafted_through(chance, relay.target)
        return results


def asked_of(chance: random.Random, client: Any) -> str:
    """Ask a client something, check what it returns, and return how that ended."""
    context = [chance.randrange(9) for _ in range(chance.randrange(1, 9))]
    calls: dict[str, Callable[[], Any]] = {
        "draft": lambda: client.draft(context, max_nodes=8),
        "draft_batch": lambda: client.draft_batch([context, [1]], max_nodes=8),
        "match": lambda: client.longest_suffix_match(context),
        "count": lambda: client.count(context),
        "info": lambda: client.info(timeout=0.3),
        "tokenizer": lambda: client.tokenizer if isinstance(client, DatastoreClient) else None,
    }
    name = chance.choice(list(calls))
    try:
        answer = calls[name]()
    except RestStoreError as error:
        return type(error).__name__
    require_valid(answer, name)
    return "answered"


def require_valid(answer: Any, where: str) -> None:
    """Raise AssertionError unless `answer` is something that a datastore could have said."""
    for item in answer if isinstance(answer, list) else [answer]:
        if isinstance(item, TokenTree):
            assert tree_fault(item, 64, 2**31) is None, f"{where}: {tree_fault(item, 64, 2**31)}"
            assert not len(item) or int(np.min(item.counts)) > 0, where
        elif isinstance(item, SuffixMatch):
            assert (item.length > 0) == (item.count > 0), f"{where}: {item}"
        elif isinstance(item, int):
            assert item >= 0, f"{where}: {item}"


def drafted_through(chance: random.Random, target: str) -> Counter[str]:
    """Draft in a session from a client: it never raises."""
    results: Counter[str] = Counter()
    sources = [rest_store.PromptLookup(), rest_store.RecycledLogits()]
    with (
        DatastoreClient(
            target,
            timeout=0.3,
            datastore=chance.choice(["one", "two", None]),
            send_text=chance.random() < 0.8,
        ) as client,
        rest_store.DraftSession(
            [client, *sources], prompt=[1, 2, 3], source_timeout=2.0
        ) as session,
    ):
        for _ in range(10):
            tree = session.draft(8, chance.choice([None, [1 + 0.01 * nodes for nodes in range(9)]]))
            assert tree_fault(tree, 8, 2**31) is None, tree_fault(tree, 8, 2**31)
            assert all(abs(weight) <= 1 for weight in session.calibration.weights), (
                session.calibration.weights
            )
            rows = [[chance.randrange(9), -1]] * (1 + len(tree)) if chance.random() < 0.5 else None
            session.accept([chance.randrange(9)], [[chance.randrange(9)]], node_top_k=rows)
        results["session drafts"] += 10
        results["session goes on without"] += sum(session.statistics.omissions.values())
    return results
