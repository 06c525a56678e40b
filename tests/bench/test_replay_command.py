"""`rest-store bench replay` on unusual input, and the order of its checks."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rest_store.bench.baselines import PromptLookupRule, RestRule
from rest_store.bench.recordings import Recording
from rest_store.bench.replay import replay, walk
from rest_store.bench.replay_command import measure
from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.models import byte_level_bpe
from tests.shared.strategies import Corpus, identity, write_datastore

VOCABULARY = 300
LINE = [1, 2, 3, 4, 5] * 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replays")
    for name, documents in (
        ("a", [LINE]),
        ("b", [[6, 7, 8, 9] * 10]),
        ("other/a", [[6, 7, 8, 9] * 2]),
    ):
        write_datastore(folder / name, Corpus(VOCABULARY, [documents]))
    rows = [{"prompt": [1, 2, number], "output": [3, 4, 5, 1, 2]} for number in range(30)]
    (folder / "recordings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def recording(prompt: list[int], output: list[int], family: str = "all") -> Recording:
    none = np.zeros((0, 0), np.int32)
    return Recording(family, 9, np.array(prompt, np.int32), np.array(output, np.int32), none)


def bench(folder: Path, *options: object) -> Result:
    common = [
        "bench",
        "replay",
        "--recordings",
        str(folder / "recordings.jsonl"),
        "--max-nodes",
        "4",
    ]
    return CliRunner().invoke(main, [*common, *map(str, options)])


def test_json_is_all_of_standard_output(folder: Path) -> None:
    options = ["--datastore", folder / "a", "--no-ablations", "--json"]
    done = bench(folder, *options, "--out", folder / "printed.json")
    facts = json.loads(done.stdout)
    assert facts == json.loads((folder / "printed.json").read_text())
    assert facts["benchmark"] == "replay"
    assert "recordings, " in done.stderr, "what a person reads"


def test_outputs_and_prompts_may_be_empty_and_outside_the_vocabulary(folder: Path) -> None:
    store = Datastore.open(folder / "a")
    calibration = Calibration.default()
    odd = [
        recording(LINE[:7], [], "none"),
        recording([], LINE[:20], "unprompted"),
        recording([1, 2, 70_000, 2**31 - 1], LINE[:20], "outside"),
        recording(LINE[:7], [3, 4, 70_000, 3, 4, 5], "leaving"),
    ]
    for outcome in (
        walk(odd, lambda prompt: nullcontext(RestRule([store], prompt)), max_nodes=24),
        walk(odd, lambda prompt: nullcontext(PromptLookupRule(prompt)), max_nodes=10),
        replay(odd, [PromptLookup(), store], calibration),
    ):
        assert outcome.families.keys() == {"unprompted", "outside", "leaving"}
        assert outcome.tokens == 46
        assert outcome.as_json()["M"] > 1
    rows = measure(odd, {"a": store}, calibration, budgets=(4,), ablations=False)
    assert {row["tokens"] for row in rows} == {46}


def test_a_live_datastore_is_measured_as_a_frozen_one(folder: Path) -> None:
    with LiveDatastore.open(folder / "live", tokenizer=identity(VOCABULARY)) as live:
        live.add([LINE])
    done = bench(folder, "--datastore", folder / "live", "--out", folder / "live.json")
    assert done.exit_code == 0, done.output
    results = json.loads((folder / "live.json").read_text())["results"]
    assert results["datastores"] == {"live": len(LINE)}
    (alone,) = (row for row in results["rows"] if row["drafting"] == "session, live alone")
    assert alone["M"] > 2


@pytest.mark.parametrize(
    ("option", "message"), [("--datastore", "none: datastore is"), ("--calibration", "none: cal")]
)
def test_bad_options_are_refused_before_anything_is_replayed(
    folder: Path, option: str, message: str
) -> None:
    done = bench(folder, "--datastore", folder / "a", option, folder / "none")
    assert (done.exit_code, done.stdout, message in done.stderr) == (1, "", True), done.output


def test_options_of_the_release_before_work_with_a_note(folder: Path) -> None:
    common = ["--datastore", folder / "a", "--no-ablations", "--json"]
    recordings = folder / "recordings.jsonl"
    new = bench(folder, *common, "--history", "--history-from", recordings)
    old = bench(folder, *common, "--memory", f"--remember={recordings}")
    replayed = [
        {row["remembered"] for row in json.loads(done.stdout)["results"]["known"]}
        for done in (old, new)
    ]
    assert replayed[0] == replayed[1] >= {"nothing", "those before it"}
    assert "Warning: --memory is now --history; " in old.stderr
    assert "Warning: --remember is now --history-from; " in old.stderr
    assert "Warning" not in new.stderr


def test_a_schema_of_the_outputs(folder: Path, tmp_path: Path) -> None:
    """Its grammar is a source of further rows; outputs that leave it are drafted for without it."""
    pytest.importorskip("llguidance")
    tokenizer = byte_level_bpe()
    place = tmp_path / "tokenizer.json"
    tokenizer.save(str(place))
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"enum": ["vermilion", "aquamarine"]}))
    words = ['"vermilion"', '"aquamarine"', '"vermilion"', "something else"] * 8
    lines = [{"prompt": f"color {number}", "output": word} for number, word in enumerate(words)]
    recordings = tmp_path / "texts.jsonl"
    recordings.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["bench", "replay", "--recordings", recordings, "--max-nodes", "8", "--no-ablations"]
    options = ["--json", "--tokenizer", place, "--json-schema", schema]
    done = CliRunner().invoke(main, [*map(str, command), *map(str, options)])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert results["satisfying"] * 4 == results["reported"] * 3
    of = {row["drafting"]: row["M"] for row in results["rows"]}
    assert of["session with the grammar"] > 1.2 * of["session"]
    assert of["session with the grammar"] >= of["session, the grammar alone"] > 1
    done = CliRunner().invoke(main, [*map(str, command), "--json-schema", str(schema)])
    assert done.exit_code == 1


def test_the_same_asked_again_is_replayed_as_trees_and_chains(folder: Path) -> None:
    options = ["--datastore", folder / "a", "--no-ablations", "--json", "--again"]
    known = json.loads(bench(folder, *options).stdout)["results"]["known"]
    again = [row for row in known if row["remembered"] == "all outputs, the same one, too"]
    assert [(row["datastores"], row.get("shape", "tree")) for row in again] == [
        (True, "tree"),
        (False, "tree"),
        (True, "chain"),
        (False, "chain"),
    ]
    nothing = {row["M"] for row in known if row["remembered"] == "nothing"}
    assert min(row["M"] for row in again) > max(nothing)
    assert all(0 <= row["auc"] <= 1 and row["brier_skill"] <= 1 for row in known)
