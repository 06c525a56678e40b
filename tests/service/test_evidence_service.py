"""Evidence through a real service: the trees of a session in process, errors, limits, and services without evidence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_store.service.client.codec import Codec
from rest_store.service.client.counters import ClientCounters

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting import external_sources
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import LimitError, ProtocolError, ServiceError, TokenRangeError, TreeError
from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.requests import Requests
from rest_store.v1 import datastore_pb2 as pb
from tests.drafting.test_evidence import every_path, replayed, require_same, rows_of
from tests.shared.live import until
from tests.shared.services import PATIENCE, Service, Talk, metrics_of, reason_of, running
from tests.shared.strategies import Corpus, corpus_of_phrases, identity, open_datastore, refused, write_datastore

CHANCE = random.Random(11)
NO_TREE = TokenTree([], [], [], scores=[])


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("datastores")
    for name in ("one", "two"):
        (root / name).mkdir()
    return {
        "one": write_datastore(root / "one", corpus_of_phrases(CHANCE, 4, 20)),
        "two": write_datastore(root / "two", corpus_of_phrases(CHANCE, 3, 6)),
    }


@pytest.fixture(scope="module")
def stores(directories: dict[str, Path]) -> dict[str, Datastore]:
    return {name: Datastore.open(path) for name, path in directories.items()}


@pytest.fixture(scope="module")
def service(directories: dict[str, Path]) -> Iterator[Service]:
    with running(*directories.values(), unix=True, options=["--metrics", "127.0.0.1:0"]) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[DatastoreClient]:
    """One whose sessions are merged here, from evidence."""
    with DatastoreClient(service.unix, timeout=PATIENCE, send_text=False) as client:
        client.connect()
        yield client


@settings(max_examples=30)
@given(data=st.data())
def test_trees_through_the_service_are_those_in_process(
    client: DatastoreClient, service: Service, stores: dict[str, Datastore], data: st.DataObject
) -> None:
    """Over a whole generation, with rows for every path that there is: token for token, learning or not."""
    piece = st.lists(st.integers(0, 3), min_size=1, max_size=10)
    pieces = 2 * data.draw(st.lists(piece, min_size=1, max_size=3))
    text = [0, 1, 2, 3, *(token for one in pieces for token in one)][:60]
    nodes, learn = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    several = data.draw(st.booleans())
    local: list[Any] = data.draw(st.sampled_from([[], [PromptLookup]]))
    recycled = data.draw(st.booleans())

    def with_local(*sources: object) -> list[object]:
        return [*(kind() for kind in local), *([RecycledLogits()] if recycled else []), *sources]

    everything, opened = every_path(range(4), nodes - 1), DatastoreClient.stream

    def stream(client: DatastoreClient) -> Any:
        """A stream on which everything is asked for."""
        answering = opened(client)
        ask = answering.evidence_after

        def evidence_after(context: Any, proposals: TokenTree, **bounds: int) -> Any:
            return ask(context, everything, **{**bounds, "max_rows": 4 * len(everything) + 4})

        return SimpleNamespace(evidence_after=evidence_after, close=answering.close)

    with (
        mock.patch.object(external_sources, "rows_for", return_value=1024),
        mock.patch.object(DatastoreClient, "stream", stream),
    ):
        before = client.statistics.answers
        if several:
            through = replayed(with_local(client), text, nodes, learn=learn)
            assert client.statistics.answers - before == len(through[0])  # one round trip a step
            here = replayed(with_local(*stores.values()), text, nodes, learn=learn)
        else:
            with DatastoreClient(service.unix, datastore="two", timeout=PATIENCE, send_text=False) as own:
                through = replayed(with_local(own), text, nodes, learn=learn)
            here = replayed(with_local(stores["two"]), text, nodes, learn=learn)
    require_same(through, here)


def test_streams_and_both_clients_give_the_same_evidence(client: DatastoreClient, service: Service) -> None:
    proposals = TokenTree([2, 3, 1], [-1, 0, 0], [1, 1, 1], scores=[0.7, 0.5, 0.1])
    bounds = {"max_nodes": 8, "max_suffix": 5, "max_rows": 20}
    expected = client.evidence([1, 2, 3, 0, 1], proposals, **bounds)
    assert expected is not None
    assert [one.datastore for one in expected] == ["one", "two"]
    assert all(1 < one.row_count == len(rows_of(one.rows)) < 20 for one in expected)
    assert client.evidence([9, 9, 9, 1, 2, 3, 0, 1], proposals, **bounds) == expected
    with client.stream() as stream:
        stream.draft([1, 2])
        assert stream.evidence([3, 0, 1], proposals, **bounds) == expected
        assert stream.draft([2]) == client.draft([1, 2, 3, 0, 1, 2])
        assert stream.evidence([], NO_TREE, max_nodes=3) == client.evidence([1, 2, 3, 0, 1, 2], NO_TREE, max_nodes=3)

    async def ask() -> None:
        async with AsyncDatastoreClient(service.unix, timeout=PATIENCE) as own:
            assert await own.evidence([1, 2, 3, 0, 1], proposals, **bounds) == expected
            async with own.stream() as stream:
                assert await stream.evidence([1, 2, 3, 0, 1], proposals, **bounds) == expected

    asyncio.run(ask())


@settings(max_examples=20)
@given(data=st.data())
def test_of_contexts_that_continue_each_other_only_what_is_new_travels(
    client: DatastoreClient, data: st.DataObject
) -> None:
    """The answer is the same as to the whole context, and also where a context does not continue the one before."""
    tokens = st.integers(0, 3)
    size = data.draw(st.sampled_from([1, 3, 16]))
    bounds = {"max_nodes": 6, "max_suffix": size, "max_rows": 20}
    text: list[int] = []
    with client.stream() as stream:
        for new in data.draw(st.lists(st.lists(tokens, max_size=2 * size), min_size=1, max_size=6)):
            text = data.draw(st.lists(tokens, max_size=3)) if data.draw(st.integers(0, 9)) == 0 else text
            text = text + new
            context = np.array(text[-size:], np.int32)
            assert stream.evidence_after(context, NO_TREE, **bounds) == client.evidence(context, NO_TREE, **bounds)


def test_evidence_for_the_largest_tree_is_within_the_limits_of_the_service(client: DatastoreClient) -> None:
    """Two datastores are asked, so half of the rows are left for each."""
    assert (client.info().limits["max_contexts"], client.info().limits["max_evidence_rows"]) == (1024, 1024)
    found = client.evidence([1, 2], NO_TREE, max_nodes=1024)
    with client.stream() as stream:
        assert stream.evidence([1, 2], NO_TREE, max_nodes=1024) == found
    assert found is not None
    assert all(200 < one.row_count <= 512 for one in found)


def test_bad_requests_are_refused_before_they_are_sent(client: DatastoreClient) -> None:
    before = client.statistics
    refused(LimitError, lambda: client.evidence([1], NO_TREE, max_nodes=0), "max_nodes", "1..1024")
    refused(LimitError, lambda: client.evidence([1], NO_TREE, max_nodes=1, max_rows=1025), "max_rows", "1..1024")
    refused(LimitError, lambda: client.evidence([1], NO_TREE, max_nodes=1, max_suffix=65), "max_suffix", "1..64")
    refused(TokenRangeError, lambda: client.evidence([300], NO_TREE, max_nodes=1), "300", "0..299")
    far = TokenTree([300], [-1], [1], scores=[0.5])
    refused(TokenRangeError, lambda: client.evidence([1], far, max_nodes=1), "proposals", "300")
    refused(TreeError, lambda: client.evidence([1], [1], max_nodes=1), "proposals")  # type: ignore[arg-type]
    assert client.statistics.refused - before.refused == 6
    assert client.statistics.answers == before.answers
    with client.stream() as stream:
        refused(LimitError, lambda: stream.evidence([1], NO_TREE, max_nodes=0), "max_nodes")
        stream.evidence([1], NO_TREE, max_nodes=1)


@pytest.mark.parametrize(
    ("context", "limits", "reason"),
    [
        (pb.Context(tokens=[300]), {}, "TOKEN_RANGE"),
        (pb.Context(tokens=[1], proposals=pb.Proposals(tokens=[300], parents=[-1])), {}, "TOKEN_RANGE"),
        (pb.Context(tokens=[1], proposals=pb.Proposals(tokens=[1], parents=[0])), {}, "CONTEXT_TYPE"),
        (pb.Context(tokens=[1], proposals=pb.Proposals(tokens=[1, 1], parents=[-1])), {}, "CONTEXT_TYPE"),
        (pb.Context(tokens=[1], proposals=pb.Proposals(tokens=[1], parents=[-1], scores=[1, 1])), {}, "CONTEXT_TYPE"),
        (pb.Context(tokens=[1], proposals=pb.Proposals(tokens=[1] * 1025, parents=[-1] * 1025)), {}, "LIMIT"),
        (pb.Context(tokens=[1]), {"max_rows": 1025}, "LIMIT"),
        (pb.Context(tokens=[1]), {"max_nodes": 1025}, "LIMIT"),
        (pb.Context(tokens=[1]), {"max_rows": 600}, "LIMIT"),  # of two datastores
    ],
)
def test_the_service_says_what_is_wrong(
    service: Service, context: pb.Context, limits: dict[str, int], reason: str
) -> None:
    asked = pb.EvidenceLimits(**limits)
    with service.stub() as stub:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Draft(pb.DraftRequest(contexts=[context], evidence=asked), timeout=PATIENCE)
        assert reason_of(caught.value) == reason
        talk = Talk(stub)
        with pytest.raises(grpc.RpcError) as ended:
            talk.ask(pb.DraftStreamRequest(tokens=context.tokens, proposals=context.proposals, evidence=asked))
        assert reason_of(ended.value) == reason
        talk.leave()


def test_scores_that_are_not_probabilities_do_no_harm(service: Service) -> None:
    for scores in ([float("nan"), 1.0], [0.0, 1.0], [float("inf"), float("inf")], [-1.0, 5.0], []):
        proposals = pb.Proposals(tokens=[1, 2], parents=[-1, 0], scores=scores)
        request = pb.DraftRequest(contexts=[pb.Context(tokens=[1], proposals=proposals)], evidence=pb.EvidenceLimits())
        with service.stub() as stub:
            answer = stub.Draft(request, timeout=PATIENCE)
        assert len(answer.trees) == 0
        assert [1 <= len(rows_of(one.rows)) <= 80 for one in answer.evidence] == [True, True]


def test_rows_are_counted_and_the_ability_is_published(client: DatastoreClient, service: Service) -> None:
    import urllib.request

    def rows() -> float:
        assert service.metrics is not None
        with urllib.request.urlopen(service.metrics, timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("rest_store_evidence_rows_total "))

    assert client.info().limits["max_evidence_rows"] == 1024
    before = rows()
    found = client.evidence([1, 2], NO_TREE, max_nodes=9, max_rows=7)
    assert found is not None
    assert rows() - before == sum(one.row_count for one in found) > 2


def test_a_service_without_evidence_is_asked_for_trees(
    directories: dict[str, Path], stores: dict[str, Datastore]
) -> None:
    """Its description says so: here because it runs the reference kernel."""
    kernel = {"REST_STORE_KERNEL": "reference"}
    with running(directories["one"], environment=kernel) as old, DatastoreClient(old.target, timeout=PATIENCE) as own:
        assert own.evidence([1], NO_TREE, max_nodes=4) is None
        assert own.info().limits["max_evidence_rows"] == 0
        with own.stream() as stream:
            assert stream.evidence([1, 2], NO_TREE, max_nodes=4) is None
            assert stream.draft([3]) == stores["one"].draft([1, 2, 3])
        with DraftSession([PromptLookup(), own], [0, 1, 2]) as session:
            assert len(session.draft(8)) > 0
            assert session.statistics.dropped == {}
        asked = pb.DraftRequest(contexts=[pb.Context(tokens=[1])], evidence=pb.EvidenceLimits())
        with old.stub() as stub, pytest.raises(grpc.RpcError) as caught:
            stub.Draft(asked, timeout=PATIENCE)
        assert reason_of(caught.value) == "LIMIT"


def test_answers_are_verified() -> None:
    """An answer of trees means that the service has no evidence; anything else unexpected is an error."""
    codec = Codec([], None)
    codec.vocabulary_size = 300
    request = Requests(codec, ClientCounters()).evidence([1], NO_TREE, 4, 16, 20)
    names = ["one"]

    def answered(**fields: Any) -> Any:
        return request.decode(pb.DraftResponse(datastores=names, **fields).SerializeToString(), "peer")

    assert answered(trees=[pb.Tree()]) is None
    refused(ProtocolError, answered, "number of datastores with evidence", "0", "1")
    refused(ProtocolError, lambda: answered(evidence=[pb.Evidence(rows=b"")]), "evidence", "shorter than its head")
    one_row = np.array([1, 0, 0, 2], "<u4").tobytes() + b"\0"
    (found,) = answered(evidence=[pb.Evidence(rows=one_row)])
    assert (found.datastore, found.row_count) == ("one", 1)


def test_a_service_of_another_tokenizer_is_left_out_and_counted(
    client: DatastoreClient, stores: dict[str, Datastore], tmp_path: Path
) -> None:
    """As a datastore in process is, without a call; one with the same tokenizer is asked."""
    other = open_datastore(tmp_path, Corpus(301, [[[0, 1, 200]]]))
    assert client.tokenizer == stores["one"].manifest.tokenizer == identity(300)
    asked = client.statistics.calls
    for sources, tokenizer, place in (([other, client], None, 1), ([client, other], identity(301), 0)):
        local = [stores["one"] if one is client else one for one in sources]
        with (
            DraftSession(sources, [0, 1], tokenizer=tokenizer) as through,
            DraftSession(local, [0, 1], tokenizer=tokenizer) as here,
        ):
            for session in (through, here):
                assert session.draft().tokens.tolist() == [200]
                session.accept([1])
                session.draft()
            assert through.statistics.dropped == here.statistics.dropped == {(place, "tokenizer"): 2}
    assert client.statistics.calls == asked
    with DraftSession([client, other], [0, 1], tokenizer=identity(300)) as session:
        assert len(session.draft()) > 0
        assert session.statistics.dropped == {(1, "tokenizer"): 1}
    assert client.statistics.calls == asked + 1


def test_a_session_knows_the_vocabulary_of_its_service(client: DatastoreClient) -> None:
    """The service is asked about the text after the last token outside its vocabulary."""
    answered = client.statistics.answers
    with DraftSession([client], [0, 1, 5000, 0, 1]) as session:
        assert len(session.draft()) > 0
        assert session.statistics.dropped == {}
    assert client.statistics.answers == answered + 1


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_a_session_asks_over_one_stream_that_ends_with_it(
    client: DatastoreClient, service: Service, timeout: float | None
) -> None:
    def streams() -> float:
        return metrics_of(service)["rest_store_streams",]

    until(lambda: not streams())  # those of earlier tests
    before = client.statistics
    with DraftSession([client, PromptLookup()], [0, 1], source_timeout=timeout) as session:
        for token in (2, 3, 0, 1):
            assert len(session.draft()) > 0
            session.accept([token])
        assert session.statistics.dropped == {}
        assert streams() == 1
    assert client.statistics.streams_opened - before.streams_opened == 1
    assert client.statistics.answers - before.answers == 4
    until(lambda: not streams())


def test_a_session_opens_another_stream_when_its_own_breaks(directories: dict[str, Path]) -> None:
    with (
        running(directories["one"]) as service,
        DatastoreClient(service.target, timeout=PATIENCE, retries=0, send_text=False) as own,
        DraftSession([own], [0, 1]) as session,
    ):
        assert len(session.draft()) > 0
        service.kill()
        session.accept([2, 3])
        assert len(session.draft()) == 0
        service.restart()
        session.accept([0])
        while not len(session.draft()):  # gRPC waits a little before it connects again
            assert session.statistics.steps < 10_000
        assert list(session.statistics.dropped) == [(0, "error")]
        assert own.statistics.streams_opened >= 2


def test_a_session_goes_on_without_a_service_that_is_away_and_counts_it(tmp_path: Path) -> None:
    with DatastoreClient(f"unix:{tmp_path}/none", timeout=0.05, retries=0) as client:
        with pytest.raises(ServiceError):
            _ = client.tokenizer
        with DraftSession([client], [0, 1]) as session:
            assert len(session.draft()) == 0
            assert session.statistics.dropped == {(0, "error"): 1}
    with DatastoreClient(f"unix:{tmp_path}/none", tokenizer=identity(300)) as client:
        assert client.tokenizer == identity(300)
        assert client.statistics.calls == 0


class Awaking:
    """A source whose tokenizer is unknown until it first answers."""

    def __init__(self, store: Datastore, tokenizer: TokenizerIdentity) -> None:
        self._store, self._tokenizer = store, tokenizer
        self.tokenizer: TokenizerIdentity | None = None

    def draft_batch(self, contexts: Any, **limits: int) -> list[TokenTree]:
        self.tokenizer = self._tokenizer
        return self._store.draft_batch(contexts, **limits)


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_a_tokenizer_that_is_known_later_is_compared_then(stores: dict[str, Datastore], timeout: float | None) -> None:
    fits, misfits = (Awaking(stores["one"], identity(size)) for size in (300, 301))
    with DraftSession([fits, misfits], [0, 1], source_timeout=timeout) as session:
        tree = session.draft()
        assert len(tree) > 0
        assert tree.origins is not None
        assert set(tree.origins.tolist()) == {1}
        assert session.statistics.dropped == {(1, "tokenizer"): 1}
