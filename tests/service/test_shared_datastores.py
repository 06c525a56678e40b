"""Live datastores of a service that are shared after several groups have written the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rest_store.drafting.session import DraftSession
from rest_store.errors import DocumentError, PermissionDeniedError
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.service_upstream import ServiceUpstream
from rest_store.v1 import datastore_pb2 as pb
from tests.service.test_server_security import bearer
from tests.shared.live import until
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.strategies import refused

TOKENS = """
front write
ann write group=ann
bob write group=bob
several write group=bob group=cleo
"""


@pytest.fixture(scope="module")
def service(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat", shared after two groups."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "tokens").write_text(TOKENS)
    options = ["--live", str(folder / "chat"), "--token-file", str(folder / "tokens")]
    options += ["--live-shared-after", "2"]
    with running(f"a={directory}", options=options) as service:
        yield service


def client(
    service: Service, token: str, group: str = "", namespace: str = "", **options: str
) -> DatastoreClient:
    return DatastoreClient(
        service.target,
        datastore=options.get("datastore", "chat"),
        namespace=namespace,
        group=group,
        token=token,
        timeout=PATIENCE,
    )


def session_tokens(source: DatastoreClient, prompt: list[int], group: str = "") -> list[int]:
    with DraftSession([source], prompt, group=group) as session:
        tokens: list[int] = session.draft(8).tokens.tolist()
        assert not session.statistics.absent
        return tokens


def test_each_answer_tells_a_group_of_its_own_and_of_what_enough_groups_wrote(
    service: Service,
) -> None:
    with client(service, "front", namespace="answers") as front:
        front.add([[20, 21, 22, 23]], group="ann")
        front.add([[20, 21, 22, 24]], group="bob")
        for group, tokens in (("ann", [22, 23]), ("bob", [22, 24]), ("cleo", [22])):
            is_ann = group == "ann"
            assert session_tokens(front, [20, 21], group) == tokens
            with client(service, "front", group, namespace="answers") as own:
                assert session_tokens(own, [20, 21]) == tokens
                assert own.draft([20, 21]).tokens.tolist() == tokens
                assert [tree.tokens.tolist() for tree in own.draft_batch([[20, 21]])] == [tokens]
                assert own.longest_suffix_match([20, 21, 22, 23]).length == (4 if is_ann else 0)
                assert own.count([22, 23]) == int(is_ann)
        assert session_tokens(front, [20, 21]) == [22]
        with client(service, "front", "cleo", datastore="a") as frozen:
            assert frozen.draft([1]).tokens.tolist() == [2, 3]
    refused(DocumentError, lambda: client(service, "front", "x" * 257), "a group")


def test_a_client_adds_to_its_group(service: Service) -> None:
    with client(service, "front", "ann", namespace="added") as ann:
        ann.add([[20, 21, 22]])
        ann.add([[20, 25, 26]], group="bob")
        assert (ann.count([20, 21]), ann.count([20, 25])) == (1, 0)


def test_a_token_that_is_limited_to_groups_reads_and_writes_as_these_alone(
    service: Service,
) -> None:
    space = "limited"
    with (
        client(service, "ann", "ann", space) as ann,
        client(service, "bob", "bob", space) as bob,
        client(service, "several", "cleo", space) as several,
        client(service, "bob", "", space) as nobody,
    ):
        ids = ann.add([[20, 21, 22]], ["id"])
        assert ann.add([[20, 21, 22]], ["id"]).added == []
        assert (ann.count([21]), bob.count([21]), nobody.count([21])) == (1, 0, 0)
        for call in (
            lambda: client(service, "bob", "ann", space).count([1]),
            lambda: client(service, "bob", "ann", space).draft([1]),
            lambda: bob.add([[1]], group="ann"),
            lambda: nobody.add([[1]]),
        ):
            refused(PermissionDeniedError, call, "group is ")
        with DraftSession([bob], [20, 21], group="ann") as session:
            assert session.draft(4).tokens.size == 0
            assert "group is 'ann'" in next(iter(session.statistics.absent.values())).reason
        document = pb.Document(tokens=bytes(4))
        request = pb.AddRequest(datastore="chat", documents=[document], group="bob")
        with service.stub() as stub, pytest.raises(grpc.RpcError) as caught:
            stub.Add(request, metadata=bearer("bob"), timeout=PATIENCE)
        assert reason_of(caught.value) == "DOCUMENT", "it has no id"
        # An id tells nothing of another group's document.
        assert bob.add([[30, 31]], ["id"]).added == ["id"]
        assert bob.delete(["other"]) == 0
        assert several.add([[40, 41]], ["id"]).added == ["id"]
        assert several.delete(["id"]) == 1
        assert (bob.count([30]), several.count([40])) == (0, 0), "those of both of its groups"
        assert ann.count([21]) == 1
        assert ann.delete(ids) == 1


def test_a_token_that_is_limited_to_groups_follows_nothing(service: Service) -> None:
    upstream = ServiceUpstream(f"{service.target}/chat", "ann")
    try:
        refused(PermissionDeniedError, lambda: next(iter(upstream.changes(0, ""))), "names groups")
    finally:
        upstream.close()


def test_a_replica_shares_as_its_service_does(service: Service, tmp_path: Path) -> None:
    with client(service, "front", namespace="copied") as front:
        front.add([[20, 21, 22, 23]], group="ann")
        front.add([[20, 21, 22, 24]], group="bob")
        with service.stub() as stub:
            description = stub.Describe(
                pb.DescribeRequest(),
                metadata=bearer("ann"),
                timeout=PATIENCE,
            )
        assert [some.shared_after for some in description.datastores] == [0, 2]
        location = f"{service.target}/chat"
        with LiveDatastore.open(location, cache=tmp_path, token="front", read_only=True) as replica:
            copied = replica.namespace("copied")
            until(lambda: copied.read_as("ann").count([22, 23]))
            assert replica.info().shared_after == 2
            assert copied.read_as("ann").draft([20, 21]).tokens.tolist() == [22, 23]
            until(lambda: copied.count([20, 21, 22]))
            with DraftSession([copied], [20, 21], group="cleo") as session:
                assert session.draft(8).tokens.tolist() == [22]
        front.add([[20, 21, 22, 23]], group="cleo")
