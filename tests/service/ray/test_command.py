"""What `rest-store serve --ray` refuses before it starts anything."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.errors import ServeError
from rest_store.service.address import Address
from tests.shared.strategies import refused


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["serve", "code.ds", *words])
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--part", "1/2"],
        ["--live", "x"],
        ["--live-tokenizer", "t"],
    ],
)
def test_what_servers_in_parts_cannot_share_is_bad_usage(words: list[str]) -> None:
    pytest.importorskip("ray")
    status, said = run("--ray", "127.0.0.1:1", *words)
    assert (status, f"{words[0]} is not for --ray" in said) == (2, True), said


def test_parts_and_replicas_are_those_of_a_cluster() -> None:
    for words in (["--parts", "2"], ["--replicas", "2"]):
        status, said = run(*words)
        assert (status, "--parts and --replicas need --ray" in said) == (2, True)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("rest_store.service.ray.")]:
        monkeypatch.delitem(sys.modules, name)
    status, said = run("--ray")
    assert (status, "pip install 'rest-store[ray]'" in said) == (1, True), said


def test_a_cluster_that_is_not_there_is_named() -> None:
    pytest.importorskip("ray")
    for address in ("127.0.0.1:1", "nowhere"):
        status, said = run("--ray", address)
        assert status == 1
        assert said.startswith(f"Error: service: the Ray cluster is '{address}', which cannot be used (")
        assert len(said.splitlines()) == 1


def test_clients_must_reach_all_machines() -> None:
    fleet = pytest.importorskip("rest_store.service.ray.fleet")
    one, two = {"10.0.0.1"}, {"10.0.0.1", "10.0.0.2"}
    for option in ("--listen", "--metrics"):
        assert fleet._host(Address.parse("127.0.0.1:0"), one, option) == "127.0.0.1"
        assert fleet._host(Address.parse("0.0.0.0:1"), two, option) is None
        for text, addresses, found in (
            ("127.0.0.1:0", two, "127.0.0.1:0 on 2 machines"),
            ("10.0.0.1:0", one, "10.0.0.1:0"),
            ("unix:/tmp/socket", one, "unix:/tmp/socket"),
        ):
            address = Address.parse(text)
            refused(
                ServeError,
                lambda address=address, addresses=addresses, option=option: fleet._host(address, addresses, option),
                f"{option} is {found}",
            )
    status, said = run("--ray", "--listen", "0.0.0.0:1", "--listen", "0.0.0.0:2")
    assert (status, "--listen is 2 addresses, expected one" in said) == (1, True), said
