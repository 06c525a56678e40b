"""Clients give the answers of the datastores behind the service, and the same errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import rest_store
from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from rest_store.errors import (
    ArgumentError,
    AuthenticationError,
    RestStoreError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnknownDatastoreError,
)
from rest_store.service.channel import Tls, target_groups
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.descriptions import ServiceInfo
from tests.shared.clients import Waiting
from tests.shared.services import PATIENCE, Certificates, Service, failed, running
from tests.shared.strategies import Corpus, contexts, identity, refused, write_datastore

VOCABULARY = 300
CHANCE = random.Random(7)
SHARD = [[CHANCE.randrange(6) for _ in range(CHANCE.randrange(1, 60))] for _ in range(20)]
CORPUS = Corpus(VOCABULARY, [SHARD, SHARD[::2]])
SECOND = Corpus(VOCABULARY, [[[token + 3 for token in document] for document in SHARD]])


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("datastores")
    corpora = {"one": CORPUS, "two": SECOND, "other": Corpus(70_000, [SHARD])}
    return {name: write_datastore(root / name, corpus) for name, corpus in corpora.items()}


@pytest.fixture(scope="module")
def stores(directories: dict[str, Path]) -> dict[str, Datastore]:
    return {name: Datastore.open(path) for name, path in directories.items()}


@pytest.fixture(scope="module")
def service(directories: dict[str, Path]) -> Iterator[Service]:
    options = ["--max-contexts", "100"]
    with running(*directories.values(), unix=True, options=options) as service:
        yield service


@pytest.fixture(scope="module", params=[DatastoreClient, Waiting], ids=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make a client of either kind; with time for a busy machine, unless told otherwise."""
    made: list[Any] = []

    def connect(*arguments: Any, **options: Any) -> Any:
        made.append(request.param(*arguments, **{"timeout": PATIENCE, **options}))
        return made[-1]

    yield connect
    for client in made:
        client.close()
        if isinstance(client, Waiting):
            client.loop.close()


@pytest.fixture(scope="module")
def client(connect: Callable[..., Any], service: Service) -> Any:
    return connect(service.unix, datastore="one")


LIMITS = st.fixed_dictionaries(
    {
        "max_nodes": st.integers(1, 80),
        "max_suffix": st.integers(1, 64),
        "max_depth": st.integers(1, 32),
    }
)


@settings(max_examples=60)
@given(st.data(), LIMITS)
def test_answers_are_those_of_the_datastore(
    client: Any, stores: dict[str, Datastore], data: st.DataObject, limits: dict[str, int]
) -> None:
    queries = data.draw(st.lists(contexts(CORPUS), max_size=6))
    store = stores["one"]
    assert client.draft_batch(queries, **limits) == store.draft_batch(queries, **limits)
    rows = np.array([context[-1:] for context in queries])
    assert client.draft_batch(rows, **limits) == store.draft_batch(rows, **limits)
    for context in queries[:2]:
        sequence = data.draw(st.sampled_from([list, tuple, np.array]))(context)
        assert client.draft(sequence, **limits) == store.draft(context, **limits)
        suffix = limits["max_suffix"]
        actual = client.longest_suffix_match(sequence, max_suffix=suffix)
        assert actual == store.longest_suffix_match(context, max_suffix=suffix)
        assert client.count(sequence[-3:]) == store.count(context[-3:])


BAD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("draft", ([],), {}),
    ("draft", ([1, VOCABULARY],), {}),
    ("draft", ([1, "a"],), {}),
    ("draft", (np.zeros((2, 2), dtype=int),), {}),
    ("draft", ([1],), {"max_nodes": 0}),
    ("draft", ([1],), {"max_suffix": 65}),
    ("draft", ([1],), {"max_depth": "3"}),
    ("draft_batch", (7,), {}),
    ("draft_batch", ([[1], [2, VOCABULARY]],), {}),
    ("longest_suffix_match", ([1],), {"max_suffix": 0}),
    ("count", ([1] * 97,), {}),
    ("count", ([VOCABULARY],), {}),
]


@pytest.mark.parametrize(("method", "arguments", "options"), BAD, ids=repr)
def test_bad_queries_raise_what_the_datastore_raises(
    client: Any,
    stores: dict[str, Datastore],
    method: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    with pytest.raises(RestStoreError) as caught:
        getattr(stores["one"], method)(*arguments, **options)
    refused(
        type(caught.value),
        lambda: getattr(client, method)(*arguments, **options),
        str(caught.value),
    )


def test_several_datastores(
    connect: Callable[..., Any], service: Service, stores: dict[str, Datastore]
) -> None:
    client = connect(service.target, datastore=["two", "one"])
    one = stores["one"]
    two = stores["two"]
    for context in ([1, 2, 3], [4, 5, 6, 4], [3, 4], [0], [299]):
        first = two.draft(context)
        second = one.draft(context)
        best = second if second.match.length > first.match.length else first
        assert client.draft(context) == best
        assert client.draft_batch([context, [3]])[0] == best
        assert client.longest_suffix_match(context) == best.match
        assert client.count(context) == one.count(context) + two.count(context)
        for name, store in (("one", one), ("two", two)):  # as `add` selects
            assert client.draft(context, datastore=name) == store.draft(context)
            assert client.draft_batch([context], datastore=name) == store.draft_batch([context])
            assert client.longest_suffix_match(
                context, datastore=name
            ) == store.longest_suffix_match(context)
            assert client.count(context, datastore=name) == store.count(context)
    unknown = connect(service.target, datastore=["one", "three"])
    refused(UnknownDatastoreError, lambda: unknown.draft([1]), "'three'", "'two'")
    refused(
        UnknownDatastoreError,
        lambda: client.draft([1], datastore="three"),
        "name of a datastore is 'three'",
    )
    refused(
        UnknownDatastoreError, lambda: client.count([1], datastore=""), "client: datastore is ''"
    )


def test_info_says_what_is_served(
    client: Any, connect: Callable[..., Any], service: Service, stores: Any
) -> None:
    actual = client.info()
    expected = stores["one"].info()
    assert isinstance(actual, ServiceInfo)
    (described,) = actual.datastores
    for name in ("tokenizer", "token_count", "document_count", "shard_count", "size"):
        assert getattr(described, name) == getattr(expected, name)
    assert abs((described.built - expected.built).total_seconds()) < 1
    assert actual.tokenizer == expected.tokenizer
    assert str(rest_store.DatastoreClient("a:1")) == "a:1"
    assert (
        str(rest_store.DatastoreClient("a:1,b:1", datastore=["one", "two"]))
        == "one, two at a:1,b:1"
    )
    assert (actual.version, actual.limits["max_contexts"]) == (rest_store.__version__, 100)
    both = connect(service.target, tokenizer=identity(VOCABULARY)).info()
    assert [one.name for one in both.datastores] == ["one", "two"]


def test_another_tokenizer_is_refused_saying_how(
    connect: Callable[..., Any], service: Service
) -> None:
    for options in ({"datastore": "one"}, {}):
        wrong = connect(service.target, tokenizer=identity(9), **options)
        for _ in range(2):  # not only the first time
            refused(TokenizerMismatchError, lambda: wrong.draft([1]), "vocabulary of 9", "300")
    refused(
        TokenizerMismatchError,
        lambda: connect(service.target).draft([1]),
        "name datastores or a tokenizer",
    )


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e6, "1", True, 1j])
def test_timeouts_are_checked(connect: Callable[..., Any], timeout: Any) -> None:
    refused(ArgumentError, lambda: connect("localhost:1", timeout=timeout), "timeout")
    refused(ArgumentError, lambda: connect("localhost:1").info(timeout=timeout), "timeout")


NEVER_WORK: list[tuple[type[RestStoreError], dict[str, Any]]] = [
    *(
        (ArgumentError, {"datastore": names})
        for names in (["a", "a"], [], (), "", ["a", ""], ["a", None], 5, b"a")
    ),
    (ArgumentError, {"datastore": "\ud800"}),
    *((ArgumentError, {"tls": tls}) for tls in ("ca.pem", True, Path("ca.pem"), {})),
    *((ArgumentError, {"token": token}) for token in ("", " a", "two\nlines", "\xe4", 5, b"a")),
]


@pytest.mark.parametrize(("error", "options"), NEVER_WORK, ids=repr)
def test_arguments_that_can_never_work_are_refused(
    connect: Callable[..., Any], error: type[RestStoreError], options: dict[str, Any]
) -> None:
    refused(error, lambda: connect("localhost:1", **options), f"client: {next(iter(options))}")


def test_one_text_has_the_endpoints_of_all_partitions() -> None:
    assert (
        target_groups("a:1,b:1;unix:/x")
        == target_groups([["a:1", "b:1"], ["unix:/x"]])
        == [["a:1", "b:1"], ["unix:/x"]]
    )
    assert target_groups(["a:1", "b:1"]) == [["a:1", "b:1"]]


TARGETS = [
    "",
    "host",
    "host:port",
    "host:70000",
    "unix:relative",
    "http://a:1",
    5,
    ["a:1", "b"],
    [],
    None,
]
TARGETS += ["a:1,", "a:1;", ["a:1;b:1"], [["a:1"], []], [["a:1"], 5]]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: ascii(target)[:40])
def test_targets_are_checked(connect: Callable[..., Any], target: Any) -> None:
    refused(ArgumentError, lambda: connect(target), "client: ")


def test_files_that_are_no_certificates_are_named(
    connect: Callable[..., Any], tmp_path: Path
) -> None:
    made = Certificates.make(tmp_path / "made")
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))  # as in the format DER
    certificate, key = made.client
    refused(ArgumentError, lambda: connect("a:1", tls=Tls(tmp_path / "absent")), "unreadable")
    refused(ArgumentError, lambda: connect("a:1", tls=Tls(certificate=certificate)), "certificate")
    for tls, file in (
        (Tls(garbage), garbage),
        (Tls(binary), binary),
        (Tls(key), key),
        (Tls(made.authority, key, certificate), key),
        (Tls(made.authority, certificate, made.authority), certificate),
        (Tls(made.authority, certificate, made.server[-1]), certificate),
    ):
        refused(ArgumentError, lambda tls=tls: connect("a:1", tls=tls), "unusable", str(file))
    connect("a:1", tls=Tls(str(made.authority), str(certificate), str(key)))
    refused(ArgumentError, lambda: connect("a:1", tls=Tls(server_name="\udcff")), "server_name")


def test_certificates_and_tokens(
    connect: Callable[..., Any], directories: dict[str, Path], tmp_path: Path
) -> None:
    made = Certificates.make(tmp_path / "a")
    others = Certificates.make(tmp_path / "b")
    (tmp_path / "tokens").write_text("secret\n")
    options = [
        *made.server,
        "--tls-client-ca",
        str(made.authority),
        "--token-file",
        str(tmp_path / "tokens"),
    ]
    mutual = Tls(made.authority, *made.client)
    with running(directories["one"], options=options, unix=True) as service:
        for target, tls in ((service.target, mutual), (service.unix, None)):
            assert len(connect(target, tls=tls, token="secret").draft([1, 2]))
        for token in ("wrong", None):
            refused(
                AuthenticationError,
                lambda: connect(service.target, tls=mutual, token=token).draft([1]),
            )
        for tls, said in (
            (
                Tls(others.authority, *made.client),
                "its certificate is not trusted: name its authority with --tls-ca",
            ),
            (Tls(made.authority, *made.client, server_name="other"), "is for another name"),
            (Tls(made.authority), "a client certificate where it requires one"),
            (Tls(made.authority, *others.client), "it hung up"),
            (None, "if it speaks TLS, name its authority with --tls-ca"),
        ):
            stranger = connect(service.target, tls=tls, token="secret", timeout=1.0)
            failed(ServiceUnavailableError, lambda: stranger.draft([1]), said)
    with running(directories["one"], options=made.expired) as service:
        late = connect(service.target, tls=Tls(made.authority), timeout=1.0)
        failed(ServiceUnavailableError, lambda: late.draft([1]), "certificate")


def test_what_is_no_service_is_named_plainly(
    connect: Callable[..., Any], service: Service, tmp_path: Path
) -> None:
    tls = Tls(Certificates.make(tmp_path).authority)
    for target, options, said in (
        (service.target, {"tls": tls}, "it does not speak TLS"),
        (
            "127.0.0.1:1",
            {},
            "127.0.0.1:1: service is unreachable (connection refused: nothing listens there)",
        ),
        ("unix:/none", {}, "unix:/none: service is unreachable (there is no such socket)"),
    ):
        failed(ServiceUnavailableError, lambda: connect(target, **options).info(timeout=1.0), said)


def test_a_closed_client_says_so(connect: Callable[..., Any], service: Service) -> None:
    client = connect(service.target, datastore="one")
    client.draft([1])
    client.close()
    client.close()
    failed(ServiceUnavailableError, lambda: client.draft([1]), "client is closed")


def test_query_asks_a_service_as_it_asks_a_directory(
    service: Service, directories: dict[str, Path]
) -> None:
    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["query", *map(str, arguments), "--tokens", "1 2"])
        return result.exit_code, result.stdout

    expected = run(directories["one"])
    assert expected[0] == 0
    for target in (service.target, service.unix):
        assert run(target, "--name", "one") == expected
    assert run(service.target, "--name", "three")[0] == 1
    assert run(service.target, "--json", "--name", "one")[1] == run(directories["one"], "--json")[1]
