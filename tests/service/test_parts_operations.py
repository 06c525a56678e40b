"""What operators see of parts: `rest-store info`, metrics, and the commands that take a parts file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from tests.shared.parts import Serving, serving
from tests.shared.strategies import Corpus, write_datastore


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shards = [[[1, 2, 3, number]] * (number + 1) for number in range(4)]
    return write_datastore(tmp_path_factory.mktemp("whole"), Corpus(300, shards))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("sockets")) as served:
        yield served


def write_parts(path: Path, groups: list[list[str]]) -> Path:
    path.write_text("".join(f"[[part]]\nendpoints = {json.dumps(group)}\n" for group in groups))
    return path


def test_info_shows_parts_and_which_is_absent(served: Serving, directory: Path, tmp_path: Path) -> None:
    groups = served.start_all(directory, 2, "info")
    parts = str(write_parts(tmp_path / "parts.toml", groups))
    done = CliRunner().invoke(main, ["info", parts])
    assert done.exit_code == 0
    assert done.stdout.count("answers") == 2
    assert "part 2/2" in done.stdout
    whole, facts = (
        Datastore.open(directory).info(),
        json.loads(CliRunner().invoke(main, ["info", parts, "--json"]).stdout),
    )
    assert facts["datastores"][0]["tokens"] == sum(part["tokens"] for part in facts["parts"]) == whole.token_count
    assert [part["part"]["number"] for part in facts["parts"]] == [1, 2]
    assert {part["part"]["build"] for part in facts["parts"]} == {whole.manifest.digest}
    served.stop("info2of2")
    done = CliRunner().invoke(main, ["info", parts, "--json"])
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)["parts"]
    assert (first["fault"], second["tokens"]) == (None, None)
    assert "info2of2" in second["fault"]


def test_info_of_a_service_shows_its_part(served: Serving, directory: Path) -> None:
    [target], [whole] = served.start_all(directory, 2, "one")[:1][0], [served.start("whole", directory, None)]
    done = CliRunner().invoke(main, ["info", target])
    assert done.exit_code == 0
    assert "served, part 1/2" in done.stdout
    assert Datastore.open(directory).manifest.digest in done.stdout
    done = CliRunner().invoke(main, ["info", whole])
    assert ("served" in done.stdout, "part" in done.stdout.replace(whole, "")) == (True, False)
    assert CliRunner().invoke(main, ["info", "127.0.0.1:1", "--timeout", "0.2"]).exit_code == 1


def test_a_query_of_a_parts_file(served: Serving, directory: Path, tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "parts.toml", served.start_all(directory, 4, "query"))
    done = CliRunner().invoke(main, ["query", str(parts), "--tokens", "1 2", "--json"])
    here = CliRunner().invoke(main, ["query", str(directory), "--tokens", "1 2", "--json"])
    assert done.exit_code == here.exit_code == 0
    assert json.loads(done.stdout)["match"] == json.loads(here.stdout)["match"]
    missing = CliRunner().invoke(main, ["query", str(tmp_path / "absent.toml"), "--tokens", "1"])
    assert missing.exit_code == 1
    assert "absent.toml" in missing.stderr


def test_metrics_name_the_part(served: Serving, directory: Path) -> None:
    served.start_all(directory, 2, "metrics")
    samples = [
        (sample.labels, sample.value)
        for family in served.metrics("metrics2of2")
        for sample in family.samples
        if sample.name == "rest_store_datastore_part"
    ]
    assert samples == [({"datastore": "served", "parts": "2", "build": Datastore.open(directory).manifest.digest}, 2)]
