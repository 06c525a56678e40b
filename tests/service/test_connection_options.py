"""Commands that call a service have the same options, and take no token as an argument."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.datastore.locations import is_remote
from rest_store.service.channel import Tls
from rest_store.service.connection_options import Access
from tests.shared.services import Certificates, running
from tests.shared.strategies import identity

ACCESS = {"token_file", "tls", "tls_ca", "tls_cert", "tls_key", "tls_server_name"}


def run(*words: object, environment: dict[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(
        main, [str(word) for word in words], env={"REST_STORE_TOKEN": None, **(environment or {})}
    )
    return done.exit_code, done.output


@pytest.mark.parametrize("name", ["query", "generate", "info"])
def test_every_command_that_calls_a_service_has_the_same_options(name: str) -> None:
    context = click.Context(main)
    command = main.get_command(context, name)
    assert command is not None
    names = {str(parameter.name) for parameter in command.params}
    assert names >= ACCESS
    assert "token" not in names
    texts = [
        parameter.get_help_record(context)
        for parameter in command.params
        if parameter.name in ACCESS
    ]
    info = main.get_command(context, "info")
    assert info is not None
    assert texts == [one.get_help_record(context) for one in info.params if one.name in ACCESS]


def test_a_secured_service_is_asked_by_query_and_info(
    directory: Path, certificates: Certificates, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# for all\nsecret\n")
    options = [
        *certificates.server,
        "--tls-client-ca",
        str(certificates.authority),
        "--token-file",
        str(tokens),
    ]
    certificate, key = certificates.client
    tls = ["--tls-ca", certificates.authority, "--tls-cert", certificate, "--tls-key", key]
    with running(directory, options=options, listen=["127.0.0.2:0"]) as service:
        for words in (["query", service.target, "--tokens", "1"], ["info", service.target]):
            named = [*words, *tls, "--tls-server-name", "localhost"]
            assert run(*named, "--token-file", tokens)[0] == 0
            assert run(*named, environment={"REST_STORE_TOKEN": "secret"})[0] == 0
            status, said = run(*named)
            assert (status, "authorization is absent" in said) == (1, True)
            status, said = run(*named, "--token-file", tmp_path / "none")
            assert (status, "token file is unreadable" in said) == (1, True)
            status, said = run(*words, *tls, "--token-file", tokens, "--timeout", "1")
            # The certificate is not for 127.0.0.2.
            assert (status, "unreachable" in said) == (1, True)


def test_generate_names_a_wrong_token_file_before_it_loads_a_model(tmp_path: Path) -> None:
    words = [
        "generate",
        "--model",
        tmp_path / "none",
        "--prompt",
        "x",
        "--datastore",
        "127.0.0.1:1",
    ]
    status, said = run(*words, "--token-file", tmp_path / "tokens")
    assert (status, "token file is unreadable" in said) == (1, True)


@pytest.mark.parametrize(
    ("value", "tls"),
    [((False, None, None, None, None), None), ((True, None, None, None, None), Tls())],
)
def test_tls_is_as_it_was_asked_for(
    value: Any, tls: Tls | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REST_STORE_TOKEN", raising=False)
    assert Access(None, *value).arguments() == {"token": None, "tls": tls}


@pytest.mark.parametrize(
    ("text", "elsewhere"),
    [
        *[("127.0.0.1:5", True), ("[::1]:5", True), ("unix:/x", True), ("a:1,b:1;a:2,b:2", True)],
        *[
            ("host:50051/code", True),
            ("unix:/x#code", True),
            ("s3://bucket/code", True),
            ("hf://datasets/a/b", True),
        ],
        *[("a.ds", False), ("a:b", False), ("x" * 5000 + ":5", True), ("x" * 5000, False)],
        *[
            ("\0:5", False),
            ("host:5/\0", False),
            ("host:5/\ud800", False),
            ("s3://bucket/\udc80", False),
        ],
    ],
)
def test_locations_are_told_from_directories(text: str, elsewhere: bool) -> None:
    assert is_remote(text) is elsewhere


def test_a_directory_named_as_an_address_is_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("code:5").mkdir()
    assert not is_remote("code:5")


def test_whether_a_service_is_there_is_said_before_what_is_missing(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    status, said = run("query", f"127.0.0.1:{port}", "--text", "a", "--timeout", "1")
    assert (status, "nothing listens there" in said, "--tokenizer" in said) == (1, True, False)
    with running(directory) as service:
        status, said = run("query", service.target, "--text", "a")
    assert status == 2
    assert (
        f"pass --tokenizer (its datastores have {identity(300).name}), or --tokens instead of"
        " --text" in said
    )
