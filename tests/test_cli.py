"""The commands as a user runs them: what they print, in which form, and with which exit status."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import rest_store
from rest_store.cli import build_main, main
from tests.shared.models import byte_level_bpe
from tests.shared.strategies import Corpus, edit_manifest, write_datastore

CORPUS = Corpus(300, [[[1, 2, 3, 4, 9], [1, 2, 3, 5]], [[7, 1, 2, 3, 4, 8]]])


@pytest.fixture
def datastore(tmp_path: Path) -> Path:
    (tmp_path / "ds").mkdir()
    return write_datastore(tmp_path / "ds", CORPUS)


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(
        main, [str(argument) for argument in arguments], prog_name="rest-store"
    )
    return result.exit_code, result.stdout, result.stderr


def test_query_draws_the_tree_of_the_longest_match(datastore: Path) -> None:
    status, out, err = run("query", datastore, "--tokens", "9,1 2 3")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "match: 3 tokens, 3 occurrences: 1 2 3",
        "2 ├─ 4",
        "1 │  ├─ 8",
        "1 │  └─ 9",
        "1 └─ 5",
    ]


def test_query_says_when_nothing_matches_or_nothing_follows(datastore: Path) -> None:
    assert (
        run("query", datastore, "--tokens", "299")[1]
        == "no match: the last token of the context does not occur\n"
    )
    assert (
        run("query", datastore, "--tokens", "9")[1].splitlines()[1]
        == "no continuation: documents end after it"
    )


def test_query_as_json_is_one_object(datastore: Path) -> None:
    status, out, _ = run("query", datastore, "--tokens", "1 2 3", "--json", "--max-nodes", 2)
    assert status == 0
    assert json.loads(out) == {
        "context": [1, 2, 3],
        "match": {"length": 3, "count": 3},
        "nodes": [
            {"token": 4, "parent": -1, "depth": 1, "count": 2},
            {"token": 5, "parent": -1, "depth": 1, "count": 1},
        ],
    }


def test_info_shows_what_and_how_big(datastore: Path) -> None:
    status, out, _ = run("info", datastore)
    assert status == 0
    rows = dict(line.split(":", 1) for line in out.splitlines())
    assert rows["tokens"].strip() == "15 in 3 documents"
    facts = json.loads(run("info", datastore, "--json")[1])
    assert facts["token_count"] == 15
    assert facts["size"] == sum(path.stat().st_size for path in datastore.glob("shard-*"))


def test_info_fits_into_80_columns_the_most_important_first(
    datastore: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["corpora"] = [{"corpus": "a long name " * 9, "documents": 3}]

    edit_manifest(datastore, change)
    monkeypatch.chdir(datastore.parent)
    lines = run("info", datastore.name)[1].splitlines()
    assert max(map(len, lines)) <= 80
    names = [line.split(":")[0] for line in lines if not line.startswith(" ")]
    assert names == ["datastore", "tokens", "size", "tokenizer", "corpus", "built"]
    assert all(line.startswith(" " * 11) or line[10] == " " for line in lines)
    assert "2 shards" in lines[2]


HOSTILE = "a\x1b]0;b\x07\r\nc\x7f\x9b2J\u202ed \u00e9"


def test_what_a_terminal_would_obey_is_shown_as_escapes(datastore: Path) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["created_by"] = fields["tokenizer"]["name"] = HOSTILE
        fields["corpora"] = [{"corpus": HOSTILE}]

    edit_manifest(datastore, change)
    status, out, _ = run("info", datastore)
    assert status == 0
    assert r"a\x1b]0;b\x07 c\x7f\x9b2J\u202ed é, 300 ids" in out
    (datastore / "tokenizer.json").write_bytes(byte_level_bpe(301).to_str().encode())
    failure = run("query", datastore, "--text", "a")[2]
    assert r"a\x1b]0;b\x07 c" in failure
    assert all(line.isprintable() for said in (out, failure) for line in said.split("\n"))
    assert len([line for line in out.splitlines() if not line.startswith(" ")]) == 6


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_check_passes_a_good_datastore_and_names_a_bad_one(
    datastore: Path, full: list[str]
) -> None:
    status, out, _ = run("check", datastore, *full)
    assert status == 0
    assert ": valid: " in out
    assert json.loads(run("check", datastore, "--json", *full)[1])["tokens"] == 15
    path = datastore / "shard-00001.tokens"
    damaged = bytearray(path.read_bytes())
    damaged[260] ^= 1
    path.write_bytes(damaged)
    status, out, err = run("check", datastore, *full)
    assert (status, out) == (1, "")
    assert err.startswith(f"Error: {path}: SHA-256 of the payload is ")


@pytest.mark.parametrize("command", [["info"], ["check"], ["query", "--tokens", "1"]])
def test_a_failure_is_one_line_and_status_1(tmp_path: Path, command: list[str]) -> None:
    status, out, err = run(command[0], tmp_path / "absent", *command[1:])
    assert (status, out) == (1, "")
    assert (
        err == f"Error: {tmp_path / 'absent'}: datastore is absent (no such directory), expected a"
        " built one\n"
    )


@pytest.mark.parametrize("command", [["info"], ["check", "--json"]])
def test_an_output_that_cannot_be_written_is_one_line(datastore: Path, command: list[str]) -> None:
    arguments = [sys.executable, "-m", "rest_store", *command, str(datastore)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_paths_may_be_any_bytes(tmp_path: Path) -> None:
    """Where standard output takes UTF-8 alone, a byte that is no text is shown as an escape."""
    directory = tmp_path / os.fsdecode(b"\xff.ds")
    directory.mkdir()
    write_datastore(directory, CORPUS)
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    for command in (["info"], ["info", "--json"], ["check"], ["check", "--json"]):
        arguments = [sys.executable, "-m", "rest_store", *command, str(directory)]
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, check=True
        )
        assert r"\udcff.ds" in done.stdout
        if "--json" in command:
            facts = json.loads(done.stdout)
            assert facts.get("path", facts.get("datastore")) == str(directory)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--tokens", "1", "--text", "a"],
        ["--tokens", "one"],
        ["--text", "a"],  # this datastore keeps no tokenizer
        ["--tokens", "1", "--max-nodes", "many"],
    ],
)
def test_bad_usage_is_status_2(datastore: Path, arguments: list[str]) -> None:
    status, out, err = run("query", datastore, *arguments)
    assert (status, out) == (2, "")
    assert "Error: " in err


@pytest.mark.parametrize(
    ("option", "most"), [("--max-suffix", 64), ("--max-depth", 32), ("--max-nodes", 1024)]
)
def test_a_limit_out_of_range_is_bad_usage_that_says_the_range(
    datastore: Path, option: str, most: int
) -> None:
    status, _, err = run("query", datastore, "--tokens", "1", option, 5000)
    assert (status, f"5000 is not in the range 1<=x<={most}" in err) == (2, True)


def test_ctrl_c_is_one_line_and_the_status_of_shells(
    datastore: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rest_store.datastore.check.check_datastore", interrupted)
    assert run("check", datastore) == (130, "", "Error: interrupted\n")


@pytest.mark.parametrize(("no_color", "shown"), [("", "\x1b[2mtext\x1b[0m\n"), ("1", "text\n")])
def test_no_color_is_honoured(
    no_color: str, shown: str, datastore: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("rest_store.cli.table", lambda _: click.style("text", dim=True))
    result = CliRunner().invoke(main, ["info", str(datastore)], color=True)
    assert result.output == shown


def test_the_version_is_the_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--version")[1] == f"rest-store, version {rest_store.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "rest_store", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"rest-store, version {rest_store.__version__}\n"
    monkeypatch.setattr(sys, "argv", ["rest-build", "--version"])
    with pytest.raises(SystemExit) as end:
        build_main()
    assert end.value.code == 0
    assert capsys.readouterr().out == f"rest-build, version {rest_store.__version__}\n"


@pytest.mark.parametrize(("variable", "expected"), [(None, "NONE"), ("INFO", "INFO")])
def test_the_log_of_grpc_is_off_unless_it_is_asked_for(
    variable: str | None, expected: str, datastore: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", variable or "")
    if variable is None:
        monkeypatch.delenv("GRPC_VERBOSITY")
    assert run("info", datastore)[0] == 0
    assert os.environ["GRPC_VERBOSITY"] == expected


def test_grpc_is_not_imported_before_its_log_is_off() -> None:
    program = (
        "import sys\nfrom rest_store.cli import main\nassert 'grpc' not in sys.modules\n"
        "main(['query', '127.0.0.1:1', '--tokens', '3', '--timeout', '1'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith("Error: 127.0.0.1:1: ")


def test_serve_sets_what_grpc_reads_as_it_is_imported() -> None:
    program = (
        "import os, sys\nfrom rest_store.cli import main\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'grpc':\n"
        "            print('GRPC_EXPERIMENTS' in os.environ)\n"
        "sys.meta_path.insert(0, Watch())\n"
        "main(['serve', 'absent'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    recent = tuple(map(int, importlib.metadata.version("grpcio").split(".")[:2])) >= (1, 80)
    assert (done.returncode, done.stdout) == (1, f"{recent}\n"), done.stderr


def test_commands_need_no_classes_of_click_that_take_types() -> None:
    """Before 8.4 `click.ParamType` takes no types, and the package's metadata allows 8.1."""
    program = (
        "import click\nclick.ParamType.__class_getitem__ = None\n"
        "from rest_store.cli import main\nmain(['--help'])"  # which imports all commands
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# --- Configuration --------------------------------------------------------------------------------


def test_a_file_says_what_options_are_unless_they_are_given(
    datastore: Path, tmp_path: Path
) -> None:
    config = tmp_path / "rest-store.toml"
    config.write_text(
        f'[query]\ndatastore = "{datastore}"\ntokens = "1 2 3"\nmax-nodes = 1\njson = true\n'
    )
    facts = json.loads(run("--config", config, "query")[1])
    assert (facts["context"], len(facts["nodes"])) == ([1, 2, 3], 1)
    assert len(json.loads(run("--config", config, "query", "--max-nodes", 2)[1])["nodes"]) == 2


def test_a_file_may_name_what_is_served(tmp_path: Path) -> None:
    config = tmp_path / "rest-store.toml"
    config.write_text('[serve]\ndatastores = ["absent.ds"]\nlisten = ["127.0.0.1:0"]\n')
    status, _, err = run("--config", config, "serve")
    assert (status, "absent.ds: datastore is absent" in err) == (1, True), err


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("[query]\nmax-knots = 1", "query: there is no option '--max-knots'"),
        ("[qwery]\nmax-nodes = 1", "'qwery' is no command"),
        ("[bench]\nspeed = 1", "bench: 'speed' is no command with a table"),
        ("query = 1", "'query' is no command with a table"),
        ("[query", "rest-store.toml: "),
    ],
)
def test_a_file_with_what_there_is_not_is_refused(text: str, fragment: str, tmp_path: Path) -> None:
    (tmp_path / "rest-store.toml").write_text(text)
    status, _, err = run("--config", tmp_path / "rest-store.toml", "query")
    assert (status, fragment in err) == (2, True), err


def test_a_file_of_options_that_is_absent_is_named_once(tmp_path: Path) -> None:
    status, _, err = run("--config", tmp_path / "none", "query")
    assert (status, err.count("none"), err.endswith("none: No such file or directory\n")) == (
        2,
        1,
        True,
    ), err


@pytest.mark.parametrize(
    ("words", "similar"),
    [(["bild"], "build"), (["bench", "sped"], "speed"), (["live", "ad"], "add")],
)
def test_a_misspelt_command_gets_a_suggestion(words: list[str], similar: str) -> None:
    status, _, err = run(*words)
    assert (status, f"Error: No such command '{words[-1]}'. Did you mean '{similar}'?" in err) == (
        2,
        True,
    ), err
    assert "Did you mean" not in run("xyzzy")[2]
