"""Steps of draft sessions as generation takes them, and echoes of their messages: what `bench_service.py` times.

A step hands over what the model produced (the accepted tokens, their top-k, and the top-k after every node of the
tree) and drafts the next tree. Each function here runs whole sessions, one `Walk` each, and returns when their steps
began and ended; the first step of a session opens it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from service_calls import EOF, OWN_CONNECTION, stub_of
from walks import Walk

from rest_store.bench.serving import TIMEOUT
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ServeError, describe
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb

Times = list[tuple[float, float]]  # begin and end of each step, `time.perf_counter`, which all processes share
Sessions = Callable[[int], Times]  # runs the session of the walk with this number
Echo = Callable[[], None]  # sends what a recorded step has sent, and waits for the answer
Exchange = tuple[list[bytes], bytes]  # the requests of a step, and its response
_now = time.perf_counter


@dataclass(frozen=True)
class Material:
    """What sessions are run with.

    Attributes:
        walks: the generations.
        stores: the datastores.
        exchanges: by nodes of a step, for each walk what its session and the service sent each other.
        service: address of the service.
        echo: address of an echo of its answers.
    """

    walks: Sequence[Walk]
    stores: Sequence[Datastore]
    exchanges: dict[int, list[list[Exchange]]]
    service: str
    echo: str


def session_steps(
    sources: Sequence[object], nodes: int, walk: Walk, then: Callable[[], object] = lambda: None
) -> Times:
    """Run one session of `sources`, prompt lookup and recycled logits; `then` is called at the end of each step.

    Raises:
        ServeError: a step went on without one of the sources.
    """
    place, began = walk.start, _now()
    with DraftSession([*sources, PromptLookup(), RecycledLogits()], walk.text[:place]) as session:
        tree = session.draft(nodes)
        then()
        times = [(began, _now())]
        while (end := walk.end_of(place, path := tree.longest_path(walk.text[place:]))) < walk.text.size:
            tokens, likely = walk.text[place:end].tolist(), walk.likely(place, tree, path)
            began = _now()
            session.accept(tokens, **likely)
            tree = session.draft(nodes)
            then()
            times.append((began, _now()))
            place = end
    if session.statistics.dropped:
        raise ServeError(describe("bench", "steps without a source", str(session.statistics.errors), "none"))
    return times


@contextlib.contextmanager
def in_process(material: Material, nodes: int) -> Iterator[Sessions]:
    yield lambda number: session_steps(material.stores, nodes, material.walks[number])


@contextlib.contextmanager
def through_service(material: Material, nodes: int, *, send_text: bool) -> Iterator[Sessions]:
    """Run sessions with a client of the service: in the service if it sends the text, else merging in the client."""
    with DatastoreClient(material.service, timeout=TIMEOUT, send_text=send_text) as client:
        client.connect()
        yield lambda number: session_steps([client], nodes, material.walks[number])


@contextlib.contextmanager
def echo_sync(material: Material, nodes: int) -> Iterator[Sessions]:
    """Send the recorded requests and read as many answers, with a blocking client."""
    with _echoes(material, nodes) as opened:

        def run(number: int) -> Times:
            times = []
            with opened(number) as echo:
                for _ in material.exchanges[nodes][number]:
                    began = _now()
                    echo()
                    times.append((began, _now()))
            return times

        yield run


@contextlib.contextmanager
def in_process_and_echo(material: Material, nodes: int) -> Iterator[Sessions]:
    """Run sessions in process, with the echo of its messages after each step.

    A step through a service cannot cost much less: like this one, it finds the caches full of what gRPC has just used,
    and gRPC those that drafting has used. Alone, neither is disturbed.
    """
    with _echoes(material, nodes) as opened:

        def run(number: int) -> Times:
            with opened(number) as echo:
                return session_steps(material.stores, nodes, material.walks[number], echo)

        yield run


@contextlib.contextmanager
def _echoes(material: Material, nodes: int) -> Iterator[Callable[[int], contextlib.AbstractContextManager[Echo]]]:
    """Connect to the echo; yield what opens the recorded session of a number."""
    sessions = _messages(material, nodes)
    with grpc.insecure_channel(material.echo, OWN_CONNECTION) as channel:
        stub = stub_of(channel)

        @contextlib.contextmanager
        def opened(number: int) -> Iterator[Echo]:
            requests: queue.SimpleQueue[pb.DraftSessionRequest | None] = queue.SimpleQueue()
            answers = stub.DraftSession(iter(requests.get, None), wait_for_ready=True)
            steps, taken = sessions[number], 0

            def echo() -> None:
                nonlocal taken
                if taken < len(steps):
                    for message in steps[taken]:
                        requests.put(message)
                    next(answers)
                taken += 1

            try:
                yield echo
            finally:
                requests.put(None)
            assert list(answers) == []
            if taken != len(steps):
                raise ServeError(describe("bench", "steps with echoes", taken, str(len(steps))))

        yield opened


@contextlib.contextmanager
def echo_asyncio(material: Material, nodes: int) -> Iterator[Sessions]:
    """Do the same with an asyncio client."""
    sessions = _messages(material, nodes)
    loop = asyncio.new_event_loop()

    async def connected() -> Any:
        return grpc.aio.insecure_channel(material.echo, OWN_CONNECTION)

    async def run(number: int) -> Times:
        call = stub_of(channel).DraftSession(wait_for_ready=True)
        times = []
        for messages in sessions[number]:
            began = _now()
            for message in messages:
                await call.write(message)
            await call.read()
            times.append((began, _now()))
        await call.done_writing()
        assert await call.read() is EOF
        return times

    channel = loop.run_until_complete(connected())
    try:
        yield lambda number: loop.run_until_complete(run(number))
    finally:
        loop.run_until_complete(channel.close())
        loop.close()


def _messages(material: Material, nodes: int) -> list[list[list[pb.DraftSessionRequest]]]:
    """Return the recorded requests: of each session, for each step."""
    parse = pb.DraftSessionRequest.FromString
    return [[[parse(data) for data in requests] for requests, _ in one] for one in material.exchanges[nodes]]


WAYS: dict[str, Callable[[Material, int], contextlib.AbstractContextManager[Sessions]]] = {
    "in process": in_process,
    "echo, sync": echo_sync,
    "echo, asyncio": echo_asyncio,
    "in process and echo": in_process_and_echo,
    "service": functools.partial(through_service, send_text=True),
    "merging": functools.partial(through_service, send_text=False),
}
