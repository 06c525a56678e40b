"""Sessions over services choose trees, survive failing services, and work with asyncio."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.drafting.batch import accept_all, draft_all
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.clients import LATE
from tests.shared.live import until
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Relay, Request

TEXT = [1, 2, 3, 50, 60, 1, 2]
TOKENS = [3, 1, 2, 3, 50, 1]


@pytest.fixture
def service(numbers: Path) -> Iterator[Service]:
    with running(f"one={numbers}") as service:
        yield service


def trees_of(*sources: object) -> list[list[int]]:
    """The tokens of the trees along a text."""
    trees = []
    with DraftSession([*sources, PromptLookup(), RecycledLogits()], TEXT) as session:
        for token in TOKENS:
            tree = session.draft(8)
            trees.append(tree.tokens.tolist())
            session.accept([token], [[token, 7]], node_top_k=[[5, 6]] * (1 + len(tree)))
        assert session.statistics.omissions == {}
    return trees


@pytest.mark.parametrize("score", [float("nan"), 1.5, -0.5])
def test_a_tree_with_impossible_scores_is_left_out(service: Service, score: float) -> None:
    def wrong(name: str, data: bytes) -> bytes:
        if name != "DraftSession":
            return data
        response = pb.DraftSessionResponse.FromString(data)
        response.tree.scores = np.full(len(response.tree.origins), score, "<f4").tobytes()
        return response.SerializeToString()

    with (
        Relay(service.target, wrong) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE) as client,
        DraftSession([client, PromptLookup()], TEXT) as session,
    ):
        tree = session.draft(8)
        assert tree.tokens[:2].tolist() == [3, 50], "of prompt lookup, which goes on"
        assert list(session.statistics.omissions.values()) == [1]


def test_sessions_of_a_batch_have_a_stream_each(service: Service, numbers: Path) -> None:
    store = Datastore.open(numbers)
    with DatastoreClient(service.target, timeout=PATIENCE) as client:
        client.info()
        sessions, here = (
            [DraftSession([source], [*TEXT, place]) for place in range(5)]
            for source in (client, store)
        )
        for token in TOKENS:
            actual = draft_all(sessions, 8)
            expected = draft_all(here, 8)
            assert [tree.tokens.tolist() for tree in actual] == [
                tree.tokens.tolist() for tree in expected
            ]
            for batch in (sessions, here):
                accept_all(batch, [[token]] * 5)
        assert all(session.statistics.omissions == {} for session in sessions)


def test_one_late_answer_costs_that_step_and_no_session(service: Service) -> None:
    go_on = threading.Event()
    go_on.set()

    def held(name: str, data: bytes) -> bytes:
        assert name != "DraftSession" or go_on.wait(PATIENCE)
        return data

    with (
        Relay(service.target, held) as relay,
        DatastoreClient(relay.target, timeout=LATE) as client,
    ):
        client.info(timeout=PATIENCE)

        def opened() -> int:
            requests = [
                Request.FromString(data) for name, data in relay.received if name == "DraftSession"
            ]
            return sum(request.HasField("open") for request in requests)

        sessions = [DraftSession([client, PromptLookup()], [*TEXT, place]) for place in range(8)]
        until(
            lambda: (
                draft_all(sessions, 8),
                not any(session.statistics.absent for session in sessions),
            )[1]
        )
        before = opened()
        go_on.clear()
        draft_all(sessions, 8)
        assert [session.statistics.absent[str(client)].steps for session in sessions] == [1] * 8
        accept_all(sessions, [[3]] * 8)
        go_on.set()
        until(
            lambda: (
                draft_all(sessions, 8),
                not any(session.statistics.absent for session in sessions),
            )[1]
        )
        assert opened() == before, "each goes on where it was"
        for session in sessions:
            session.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_new_session_does_not_wait_for_a_service_that_answers_nobody(
    service: Service, is_known: bool
) -> None:
    with DatastoreClient(service.target, timeout=1.0) as client:

        def step() -> float:
            began = time.perf_counter()
            with DraftSession([client, PromptLookup()], TEXT) as session:
                assert len(session.draft(8)) > 0
                return math.inf if session.statistics.absent else time.perf_counter() - began

        if is_known:
            client.info(timeout=PATIENCE)
        service.pause()
        began = time.perf_counter()
        assert [step() for _ in range(2)] == [math.inf] * 2
        waited = time.perf_counter()
        assert [step() for _ in range(5)] == [math.inf] * 5
        assert time.perf_counter() - waited < (waited - began) / 2, (
            "all together less than one of the first"
        )
        service.resume()
        until(lambda: step() < math.inf)


def test_a_long_text_keeps_no_step_of_others_waiting(numbers: Path) -> None:
    with (
        running(f"one={numbers}") as service,
        DatastoreClient(service.target, timeout=PATIENCE) as client,
        DatastoreClient(service.target, timeout=PATIENCE) as other,
    ):
        sessions = [DraftSession([client, PromptLookup()], [*TEXT, place]) for place in range(8)]
        draft_all(sessions, 8)
        opened: list[float] = []

        def open_long() -> None:
            began = time.perf_counter()
            with DraftSession(
                [other, PromptLookup()], [place % 9 for place in range(200_000)]
            ) as session:
                assert len(session.draft(8)) > 0
            opened.append(time.perf_counter() - began)

        opening = threading.Thread(target=open_long)
        seconds = []
        opening.start()
        while opening.is_alive():
            accept_all(sessions, [[3]] * 8)
            began = time.perf_counter()
            draft_all(sessions, 8)
            seconds.append(time.perf_counter() - began)
        assert max(seconds) < opened[0]
        assert len(seconds) > 2
        assert not any(session.statistics.omissions for session in sessions)


def test_sessions_for_asyncio(service: Service, numbers: Path) -> None:
    async def drafted() -> list[list[int]]:
        async with AsyncDatastoreClient(service.target, timeout=PATIENCE) as client:
            sources = [client, PromptLookup(), RecycledLogits()]
            trees = []
            async with await client.draft_session(sources, TEXT) as session:
                for token in TOKENS:
                    tree = await session.draft(8)
                    trees.append(tree.tokens.tolist())
                    await session.accept(
                        [token], [[token, 7]], node_top_k=[[5, 6]] * (1 + len(tree))
                    )
                assert session.session.statistics.omissions == {}
            return trees

    assert asyncio.run(drafted()) == trees_of(Datastore.open(numbers))


def test_after_a_cancelled_step_the_next_call_waits_for_its_end(service: Service) -> None:
    go_on = threading.Event()

    def held(name: str, data: bytes) -> bytes:
        assert name != "DraftSession" or go_on.wait(PATIENCE)
        return data

    async def converse(target: str) -> None:
        async with AsyncDatastoreClient(target, timeout=PATIENCE) as client:
            session = await client.draft_session([client, PromptLookup()], TEXT)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.draft(8), LATE)
            accepting = asyncio.ensure_future(session.accept([3]))
            assert not (await asyncio.wait([accepting], timeout=LATE))[0]
            go_on.set()
            await accepting
            assert len(await session.draft(8)) > 0
            assert session.session.statistics.omissions == {}

    with Relay(service.target, held) as relay:
        asyncio.run(converse(relay.target))
