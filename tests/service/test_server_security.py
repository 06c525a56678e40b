"""Access to a service: addresses, TLS, client certificates, bearer tokens."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rest_store.errors import ArgumentError, AuthenticationError, ServeError
from rest_store.service.address import Address
from rest_store.service.bearer_tokens import BearerTokens, Grant
from rest_store.service.channel import Dialer, Tls, parse_target
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE, Certificates, reason_of, running
from tests.shared.strategies import refused

ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def test_tokens_are_asked_of_every_method_but_health(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# of the first fleet\nfirst\n\n second \n")
    options = ["--token-file", str(file)]
    environment = {"REST_STORE_TOKEN": "third"}
    with (
        running(directory, options=options, environment=environment) as service,
        service.stub() as stub,
        service.channel() as channel,
    ):
        for token in ("first", "second", "third"):
            assert len(stub.Draft(ASKED, metadata=bearer(token)).trees) == 1
        wrong = [
            None,
            [],
            bearer(""),
            bearer("firs"),
            bearer("first2"),
            bearer("# of the first fleet"),
        ]
        for metadata in [*wrong, [("authorization", "first")], [("authorization", "Basic first")]]:
            for call in (
                lambda metadata=metadata: stub.Draft(ASKED, metadata=metadata),
                lambda metadata=metadata: list(stub.DraftSession(iter([]), metadata=metadata)),
                lambda metadata=metadata: stub.Describe(pb.DescribeRequest(), metadata=metadata),
            ):
                with pytest.raises(grpc.RpcError) as caught:
                    call()
                assert reason_of(caught.value) == "UNAUTHENTICATED"
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        health = health_pb2_grpc.HealthStub(channel)
        assert (
            health.Check(health_pb2.HealthCheckRequest()).status
            == health_pb2.HealthCheckResponse.SERVING
        )
        mirror = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        listing = [reflection_pb2.ServerReflectionRequest(list_services="")]
        with pytest.raises(grpc.RpcError) as caught:
            list(mirror(iter(listing), timeout=PATIENCE))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert len(list(mirror(iter(listing), metadata=bearer("first"), timeout=PATIENCE))) == 1


def test_a_service_that_cannot_start_says_why(
    directory: Path, certificates: Certificates, tmp_path: Path
) -> None:
    empty, absent, binary = tmp_path / "empty", tmp_path / "absent", tmp_path / "binary"
    empty.write_text("# none\n")
    binary.write_bytes(bytes(range(256)))
    key_of_another = ["--tls-cert", certificates.server[1], "--tls-key", certificates.expired[3]]
    token = {"REST_STORE_TOKEN": "secret"}
    for options, environment, fragment in [
        (["--listen", "0.0.0.0:0"], {}, "without TLS and a token, expected a loopback address"),
        (["--listen", "0.0.0.0:0"], token, "without TLS, expected"),
        (["--listen", "[::]:0", *certificates.server], {}, "without a token, expected"),
        (["--token-file", str(empty)], {}, "without a token, expected"),
        (key_of_another, {}, "unusable (KEY_VALUES_MISMATCH)"),
        ([*certificates.server, "--tls-client-ca", str(binary)], {}, "certificate is unusable"),
        (["--tls-cert", str(absent), "--tls-key", str(absent)], {}, "unreadable"),
        (["--listen", f"unix:{empty}"], {}, "not a socket, expected"),
        (["--metrics", "unix:/x"], {}, "--metrics is unix:/x, expected HOST:PORT"),
        (
            ["--metrics", "0.0.0.0:0", *certificates.server],
            token,
            "0.0.0.0:0 is public, without TLS and a token",
        ),
        (["--live", f"{directory.name}={directory}"], {}, "expected distinct ones"),
        ([str(directory)], {}, "expected distinct ones"),
        ([str(absent)], {}, "absent (no such directory)"),
    ]:
        said = r"status 1:\n.+ INFO opening .+\nError: .+ is .+, expected .+\n$"
        with (
            pytest.raises(RuntimeError, match=said) as caught,
            running(directory, options=options, environment=environment),
        ):
            pass
        assert fragment in str(caught.value)
    for wrong in (certificates.server[:2], ["--max-streams", "0"]):
        with pytest.raises(RuntimeError, match="status 2"), running(directory, options=wrong):
            pass


def test_public_addresses_are_served_with_tls_and_a_token_or_when_asked_to(
    directory: Path, certificates: Certificates
) -> None:
    secured = [*certificates.server, "--listen", "0.0.0.0:0"]
    with (
        running(directory, options=secured, environment={"REST_STORE_TOKEN": "secret"}) as service,
        DatastoreClient(
            service.target, tls=Tls(certificates.authority), token="secret", timeout=PATIENCE
        ) as client,
    ):
        assert len(service.targets) == 2
        assert len(client.draft([1, 2])) == 1
    with running(
        directory, options=[*secured, "--tls-client-ca", str(certificates.authority)]
    ) as service:
        assert len(service.targets) == 2
    with running(
        directory, listen=["0.0.0.0:0"], options=["--insecure", "--metrics", "0.0.0.0:0"]
    ) as service:
        assert service.metrics is not None
        target = service.target.replace("0.0.0.0", "127.0.0.1")
        with service.stub(target) as stub:
            assert len(stub.Draft(ASKED).trees) == 1


def test_an_address_that_cannot_be_bound_is_refused_saying_why(
    directory: Path, tmp_path: Path
) -> None:
    for address, reason in (
        ("192.0.2.1:0", "Cannot assign requested address"),
        (
            "no-such-host.invalid:0",
            "Name or service not known|Temporary failure in name resolution",
        ),
        (f"unix:{tmp_path}/absent/socket", "absent or cannot be written"),
    ):
        with (
            pytest.raises(RuntimeError, match=rf"address \S+ cannot be bound \(.*({reason})\)"),
            running(directory, listen=[address], options=["--insecure"]),
        ):
            pass
    with running(directory, unix=True, options=["--metrics", "127.0.0.1:0"]) as service:
        assert service.metrics is not None
        metrics = service.metrics.split("/")[2]
        for options in (
            ["--listen", service.target],
            ["--listen", service.unix],
            ["--metrics", metrics],
        ):
            with (
                pytest.raises(RuntimeError, match=r"in use") as caught,
                running(directory, options=options),
            ):
                pass
            assert "Traceback" not in str(caught.value)
        with (
            pytest.raises(RuntimeError, match=r"127\.0\.0\.1:65536 of metrics cannot be bound"),
            running(directory, options=["--workers", "2", "--metrics", "127.0.0.1:65535"]),
        ):
            pass
        with service.stub(service.unix) as stub:
            assert len(stub.Draft(ASKED).trees) == 1


def test_a_socket_left_behind_is_no_obstacle(directory: Path) -> None:
    with running(directory, unix=True) as service:
        service.kill()
        assert Path(service.unix.removeprefix("unix:")).exists()
        service.restart()
        with service.stub(service.unix) as stub:
            assert len(stub.Draft(ASKED).trees) == 1


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/a/b", True),
        ("0.0.0.0:1", False),
        ("192.0.2.1:65535", False),
    ],
)
def test_addresses_know_whether_they_are_local(text: str, local: bool) -> None:
    address = Address.parse(text)
    assert address.is_local is local
    assert address.text == text
    if address.port is not None:
        assert address.with_port(address.port) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", "host:65536", "::1:50051", "unix:relative", "a b:1", "h:\u0661"),
        *("\udcff:1", "a\0b:1", "\xe9:1", "unix:/\udcff", "unix:/a\0b", "unix:/a\nb", "unix:/a%41"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    refused(ServeError, lambda: Address.parse(text), ascii(text))
    refused(ArgumentError, lambda: parse_target(text), ascii(text))


def test_a_path_too_long_for_a_socket_is_refused() -> None:
    refused(ServeError, lambda: Address.parse("unix:/" + "x" * 107), "108 bytes long")
    assert Address.parse("unix:/" + "x" * 106).path is not None


BAD_TOKENS = {
    "newline": "secret\n",
    "blank before": " secret",
    "blanks": "  ",
    "NUL": "a\0b",
    "not ASCII": "geheim-\u00e4",
    "empty": "",
    "too long": "x" * 4097,
}


@pytest.mark.parametrize("token", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_what_no_client_can_send_is_no_token(token: str) -> None:
    """A service that took it would refuse everyone."""
    refused(
        ServeError, lambda: BearerTokens(token=token), "service: REST_STORE_TOKEN is not a token"
    )
    refused(ArgumentError, lambda: Dialer(token, None), "client: token is not a token")


@pytest.mark.parametrize("token", ["geheim~!", "x" * 4096])
def test_what_clients_can_send_is_a_token(token: str) -> None:
    tokens = BearerTokens(token=token)
    grant = tokens.require([("x", "y"), *Dialer(token, None).metadata])
    assert grant == Grant(token)
    for wrong in (
        [("authorization", "bearer geheim")],
        [("authorization", b"bearer \xff")],
        [("authorization", "")],
    ):
        refused(AuthenticationError, lambda wrong=wrong: tokens.require(wrong), "not accepted")


BAD_TOKEN_FILES = {
    "absent": (None, "token file is unreadable"),
    "not UTF-8": (b"\xff\n", "token file is unreadable"),
    "not ASCII": (b"p\xc3\xa4ss\n", "line 1 is not a token"),
    "empty": (b"", "token file is without a token"),
    "comments": (b"# none\n\n \t\r\n", "token file is without a token"),
    "NUL": (b"good\nsec\0ret\n", "line 2 is not a token"),
}


@pytest.mark.parametrize(("content", "actual"), BAD_TOKEN_FILES.values(), ids=BAD_TOKEN_FILES)
def test_a_bad_token_file_is_refused(tmp_path: Path, content: bytes | None, actual: str) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)
    refused(ServeError, lambda: BearerTokens(file), f"{file}: {actual}")
