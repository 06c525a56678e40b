"""Tokens that only read, that may write, and that are for some datastores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from rest_store.errors import PermissionDeniedError, UnknownDatastoreError
from rest_store.service.client.client import DatastoreClient
from rest_store.service.server.rights import BearerTokens
from rest_store.service.tokens import Grant, grants_in
from rest_store.v1 import datastore_pb2 as pb
from tests.service.reloads import reload
from tests.service.test_server_security import bearer
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.sessions import SessionTalk, opening, step
from tests.shared.strategies import refused

FILE = """
# what the fleet asks with
plain
writer write
bound datastore=a
both \twrite  datastore=chat datastore=a,b
elsewhere write datastore=other
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(FILE)
    return file


@pytest.fixture(scope="module")
def service(directory: Path, file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and live ones "chat" and "more"."""
    live = tmp_path_factory.mktemp("live")
    options = ["--live", str(live / "chat"), "--live", str(live / "more"), "--token-file", str(file)]
    with running(f"a={directory}", options=options, environment={"REST_STORE_TOKEN": "variable"}) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[Callable[..., DatastoreClient]]:
    """Makes clients, each with a token."""
    made: list[DatastoreClient] = []

    def make(token: str, **options: object) -> DatastoreClient:
        made.append(DatastoreClient(service.target, token=token, timeout=PATIENCE, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_line_is_a_token_and_what_it_allows(file: Path) -> None:
    assert grants_in(file) == [
        Grant("plain"),
        Grant("writer", True),
        Grant("bound", False, frozenset(["a"])),
        Grant("both", True, frozenset(["chat", "a,b"])),
        Grant("elsewhere", True, frozenset(["other"])),
    ]


def test_the_last_line_of_a_token_holds(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("one write\none datastore=a\nvariable write\n")
    tokens = BearerTokens(tmp_path / "tokens", "variable")
    one, variable = (tokens.require(bearer(name)) for name in ("one", "variable"))
    assert (one.may_write, one.datastores) == (False, {"a"})
    assert (variable.may_write, variable.datastores) == (True, None)


@pytest.mark.parametrize("token", ["plain", "variable", "bound"])
def test_a_token_only_reads_unless_its_line_says_more(
    token: str, service: Service, client: Callable[..., DatastoreClient]
) -> None:
    expected = "token is one that only reads, expected one whose line in the token file says `write`"
    reader = client(token)
    assert reader.draft([1]).tokens.tolist() == [2, 3]
    refused(PermissionDeniedError, lambda: reader.add([[1, 2]], datastore="chat"), expected)
    refused(PermissionDeniedError, lambda: reader.delete(["x"], datastore="chat"), expected)
    assert not any(one.is_writable for one in reader.info().datastores)
    with service.stub() as stub, pytest.raises(grpc.RpcError) as caught:
        stub.Add(pb.AddRequest(), metadata=bearer(token), timeout=PATIENCE)  # before anything is made of it
    assert (caught.value.code().name, reason_of(caught.value)) == ("PERMISSION_DENIED", "PERMISSION_DENIED")


def test_a_token_that_writes(client: Callable[..., DatastoreClient]) -> None:
    writer = client("writer")
    ids = writer.add([[7, 8, 9]], datastore="chat")
    assert client("plain").count([7, 8, 9]) == 1
    assert writer.delete(ids, datastore="chat") == 1
    assert [one.is_writable for one in writer.info().datastores if one.is_live] == [True, True]


def test_a_token_for_some_datastores_sees_no_others(service: Service, client: Callable[..., DatastoreClient]) -> None:
    client("writer").add([[7, 7, 7]], datastore="more")
    both = client("both")
    assert [one.name for one in both.info().datastores] == ["chat"]
    assert both.count([7, 7, 7]) == 0
    assert both.delete(both.add([[7, 7, 7]])) == 1  # the only live one for it
    expected = "name of a datastore is 'more', expected one of ['chat']"
    refused(UnknownDatastoreError, lambda: both.add([[1]], datastore="more"), expected)
    refused(UnknownDatastoreError, lambda: both.delete(["x"], datastore="a"), "expected one of ['chat']")
    with service.stub() as stub:
        for ask, request in (
            (stub.Draft, pb.DraftRequest(selection=pb.Selection(datastores=["chat", "more"]))),
            (stub.Count, pb.CountRequest(selection=pb.Selection(datastores=["more"]))),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                ask(request, metadata=bearer("both"), timeout=PATIENCE)
            assert reason_of(caught.value) == "UNKNOWN_DATASTORE"
            assert "expected one of ['chat']" in caught.value.details()
        talk = SessionTalk(stub, bearer("both"))
        with pytest.raises(grpc.RpcError) as caught:
            talk.ask(opening(1, selection=pb.Selection(datastores=["more"])))
        assert reason_of(caught.value) == "UNKNOWN_DATASTORE"
        talk.leave()


def test_a_token_for_datastores_that_are_not_served(client: Callable[..., DatastoreClient]) -> None:
    expected = "token is one for other datastores, expected one for a datastore of this service"
    refused(PermissionDeniedError, client("elsewhere").connect, expected)


def test_a_reload_changes_what_tokens_allow(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("one write\ntwo\nthree write\n")
    options = ["--token-file", str(file), "--live", str(tmp_path / "chat")]
    with running(f"a={directory}", options=options) as service, service.stub() as stub:

        def outcome(token: str) -> str | None:
            """Add; return the reason of the refusal, if it is one."""
            documents = [pb.Document(tokens=b"\1\0\0\0")]
            try:
                stub.Add(pb.AddRequest(datastore="chat", documents=documents), metadata=bearer(token), timeout=PATIENCE)
            except grpc.RpcError as error:
                return reason_of(error)
            return None

        assert [outcome(token) for token in ("one", "two", "three")] == [None, "PERMISSION_DENIED", None]
        one, two, three = (SessionTalk(stub, bearer(token)) for token in ("one", "two", "three"))
        for talk in (one, two, three):
            talk.ask(opening(1))
        file.write_text("one write datastore=chat\ntwo\n")
        reload(service)
        assert [outcome(token) for token in ("one", "two", "three")] == [None, "PERMISSION_DENIED", "UNAUTHENTICATED"]
        for talk, reason in ((one, "DRAINING"), (three, "UNAUTHENTICATED")):
            with pytest.raises(grpc.RpcError) as caught:
                next(talk.call)
            assert reason_of(caught.value) == reason  # its client opens another, with what the token allows now
            talk.leave()
        assert two.ask(step(1)).nodes
        two.close()
