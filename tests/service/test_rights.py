"""Tokens that only read, and tokens that may write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from rest_store.errors import PermissionDeniedError
from rest_store.service.client.client import DatastoreClient
from rest_store.service.tokens import BearerTokens, Grant, grants_in
from rest_store.v1 import datastore_pb2 as pb
from tests.service.test_server_security import bearer
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.strategies import refused

FILE = """
# what the fleet asks with
plain
writer \twrite
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(FILE)
    return file


@pytest.fixture(scope="module")
def service(directory: Path, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat"."""
    live = tmp_path_factory.mktemp("live")
    options = ["--live", str(live / "chat"), "--token-file", str(file)]
    with running(f"a={directory}", options=options, environment={"REST_STORE_TOKEN": "variable"}) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[Callable[[str], DatastoreClient]]:
    """Makes clients, each with a token."""
    made: list[DatastoreClient] = []

    def make(token: str) -> DatastoreClient:
        made.append(DatastoreClient(service.target, token=token, timeout=PATIENCE))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_line_is_a_token_and_what_it_allows(file: Path) -> None:
    assert grants_in(file) == [Grant("plain"), Grant("writer", True)]


def test_the_last_line_of_a_token_holds(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("one write\none\nvariable write\n")
    tokens = BearerTokens(tmp_path / "tokens", "variable")
    assert tokens.require(bearer("one")) == Grant("one")
    assert tokens.require(bearer("variable")) == Grant("variable", True)


@pytest.mark.parametrize("token", ["plain", "variable"])
def test_a_token_only_reads_unless_its_line_says_more(
    token: str, service: Service, client: Callable[[str], DatastoreClient]
) -> None:
    expected = "token is one that only reads, expected one whose line in the token file says `write`"
    reader = client(token)
    assert reader.draft([1]).tokens.tolist() == [2, 3]
    assert [one.is_writable for one in reader.info().datastores] == [False, False]
    refused(PermissionDeniedError, lambda: reader.add([[1, 2]], datastore="chat"), expected)
    refused(PermissionDeniedError, lambda: reader.delete(["x"], datastore="chat"), expected)
    with service.stub() as stub, pytest.raises(grpc.RpcError) as caught:
        stub.Add(pb.AddRequest(), metadata=bearer(token), timeout=PATIENCE)  # before anything is made of it
    assert (caught.value.code().name, reason_of(caught.value)) == ("PERMISSION_DENIED", "PERMISSION_DENIED")


def test_a_token_that_writes(client: Callable[[str], DatastoreClient]) -> None:
    writer = client("writer")
    assert [one.is_writable for one in writer.info().datastores] == [False, True]
    ids = writer.add([[7, 8, 9]], datastore="chat")
    assert client("plain").count([7, 8, 9]) == 1
    assert writer.delete(ids, datastore="chat") == 1
