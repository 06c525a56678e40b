"""Rights of tokens: to read, to write, and in which namespaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rest_store.drafting.session import DraftSession
from rest_store.errors import DocumentError, PermissionDeniedError
from rest_store.service.bearer_tokens import BearerTokens, Grant, grants_in
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.service_upstream import ServiceUpstream
from rest_store.v1 import datastore_pb2 as pb
from tests.service.test_server_security import bearer
from tests.service.test_service_files import caught_up
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.strategies import refused

TOKENS = """
# what the fleet asks with
reader
writer \twrite
one write namespace=one
two namespace=two namespace=three
"""


@pytest.fixture(scope="module")
def service(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat"."""
    folder = tmp_path_factory.mktemp("rights")
    (folder / "tokens").write_text(TOKENS)
    options = ["--live", str(folder / "chat"), "--token-file", str(folder / "tokens")]
    with running(
        f"a={directory}", options=options, environment={"REST_STORE_TOKEN": "variable"}
    ) as service:
        yield service


def client(
    service: Service, token: str, namespace: str = "", datastore: str = "chat"
) -> DatastoreClient:
    return DatastoreClient(
        service.target, datastore=datastore, namespace=namespace, token=token, timeout=PATIENCE
    )


def test_a_line_is_a_token_and_what_it_allows(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKENS + "reader write\nvariable write\n")
    two = Grant("two", namespaces=frozenset(["two", "three"]))
    grants = [Grant("reader"), Grant("writer", True), Grant("one", True, frozenset(["one"])), two]
    assert grants_in(tmp_path / "tokens")[:4] == grants
    tokens = BearerTokens(tmp_path / "tokens", "variable")
    for token in ("reader", "variable"):  # the last line of a token holds
        assert tokens.require(bearer(token)) == Grant(token, True)


@pytest.mark.parametrize("token", ["reader", "variable"])
def test_a_token_only_reads_unless_its_line_says_more(token: str, service: Service) -> None:
    expected = (
        "token is one that only reads, expected one whose line in the token file says `write`"
    )
    with client(service, token, datastore="a") as reader:
        assert reader.draft([1]).tokens.tolist() == [2, 3]
        refused(PermissionDeniedError, lambda: reader.add([[1, 2]], datastore="chat"), expected)
        refused(PermissionDeniedError, lambda: reader.delete(["x"], datastore="chat"), expected)
    with service.stub() as stub, pytest.raises(grpc.RpcError) as caught:
        # Before anything is made of it.
        stub.Add(pb.AddRequest(), metadata=bearer(token), timeout=PATIENCE)
    assert (caught.value.code().name, reason_of(caught.value)) == (
        "PERMISSION_DENIED",
        "PERMISSION_DENIED",
    )


def test_a_token_reads_writes_and_follows_its_namespaces_alone(service: Service) -> None:
    def followed(token: str) -> tuple[str, set[str]]:
        """Return the datastore id that the replica of a token sees, and the namespaces it gets."""
        some = caught_up(ServiceUpstream(f"{service.target}/chat", token).changes(0, ""))
        return some[0].datastore_id, {
            document.namespace for changes in some for document in changes.added
        }

    with (
        client(service, "writer", "one") as every,
        client(service, "one", "one") as one,
        client(service, "two", "two") as two,
    ):
        others = every.add([[20, 21, 22]], namespace="two", group="g", epoch=1)
        every.add([[20]], namespace="")
        ids = one.add([[20, 21, 23]], ["id"])
        assert (one.count([20, 21]), two.count([20, 21]), every.count([20, 21])) == (1, 1, 1)
        with DraftSession([one], prompt=[20, 21]) as session:
            assert session.draft(4).tokens.tolist() == [23]
        for call in (
            lambda: one.add([[1]], namespace="two"),
            lambda: one.delete(["id"], namespace=""),
            lambda: one.delete(others, namespace="two"),
            lambda: client(service, "two", "one").count([1]),
            lambda: client(service, "one").draft([1]),
        ):
            refused(PermissionDeniedError, call, "namespace is ")
        refused(PermissionDeniedError, lambda: two.delete(["id"]), "one that only reads")
        changes = {token: followed(token) for token in ("one", "two", "reader")}
        assert [spaces for _, spaces in changes.values()] == [
            {"one"},
            {"two"},
            {"", "one", "two"},
        ]
        assert len({id for id, _ in changes.values()}) == 3, (
            "a token of other namespaces begins anew"
        )
        assert one.delete(ids) == 1
        assert every.delete(others, namespace="two") == 1
    refused(DocumentError, lambda: client(service, "writer", "x" * 257), "a namespace")
