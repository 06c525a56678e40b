"""The figures that a reader sees are those of benchmarks/results/."""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

import pytest

from tests.shared.pages import PAGES, README, ROOT, section

BENCHMARKS = PAGES["docs/benchmarks.md"]
FAMILIES = {
    "HumanEval, raw": "humaneval-raw",
    "HumanEval, chat": "humaneval-chat",
    "MT-Bench": "mt_bench",
    "questions": "qa",
    "mathematics": "math_reasoning",
    "translation": "translation",
    "summarization": "summarization",
    "retrieval-augmented": "rag",
    "**all**": "all",
}


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["results"]


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of the first table of a text by their first cells."""
    (lines,) = re.findall(r"\A.*?\n((?:\|[^\n]*\n)+)", text, re.DOTALL)
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()]
    return {cells[0]: cells[1:] for cells in table[2:]}


def test_the_table_of_speed() -> None:
    families = results("speed_packed")["families"]
    expected = {}
    for shown, name in FAMILIES.items():
        methods = [families[name][method] for method in ("transformers prompt lookup", "DraftSession")]
        cells = [f"{method['speedup']:.2f} ({method['mean_tokens']:.2f})" for method in methods]
        expected[shown] = [str(families[name]["plain"]["prompts"]), *cells]
    assert rows(section(README, "Speed")) == expected


def test_the_first_screen() -> None:
    families = results("speed_packed")["families"]
    session, lookup = (families["all"][name] for name in ("DraftSession", "transformers prompt lookup"))
    mean = statistics.mean(families[name]["DraftSession"]["speedup"] for name in families if name != "all")
    code = sum(families[name]["plain"]["prompts"] for name in ("humaneval-raw", "humaneval-chat"))
    tokens = sum(results("quality_traces")["datastores"].values())
    screen = " ".join(README.partition("## Start")[0].split())
    for part in (
        f"generates {session['speedup']:.2f} times as many tokens per second",
        f"prompt lookup reaches {lookup['speedup']:.2f} times",
        f"of {session['prompts']} prompts, {code} of them HumanEval's",
        f"the median prompt is {session['median_speedup']:.2f} times as fast",
        f"the mean of the eight families of prompts is {mean:.2f}",
        f"hold about {round(tokens / 1e6, -1):.0f} million tokens",
    ):
        assert part in screen, part
    assert session["identical"] == 1
    remembered = {
        (row["datastores"], row["remembered"]): row["M"]
        for row in results("live_traces")["known"]
        if row["nodes"] == 16
    }
    others = "the recycled logits of all others, no live datastore"
    order = [(False, "nothing"), (True, "nothing"), (False, others), (True, others)]
    assert re.findall(r"\d\.\d\d", screen.partition("per forward pass, is")[2])[:4] == [
        f"{remembered[key]:.2f}" for key in order
    ]


def test_the_first_screen_of_larger_models() -> None:
    screen = " ".join(README.partition("**On larger models**")[2].partition("## Start")[0].split())
    run = results("replay_llama31_8b")
    head = next(row for row in run["other_drafters"] if (row["drafter"], row["batch"]) == ("eagle", 1))
    trees = next(row for row in run["known"] if row["shape"] == "tree" and row["datastores"])
    for row, words in (
        (trees, "times as fast as plain decoding, on four sets of requests"),
        (head, "times; in batches"),
    ):
        speeds = [speed for speed, _ in row["modelled_speeds_of_families"].values()]
        assert f"{min(speeds):.1f} to {max(speeds):.1f} {words}" in screen
    agents = {
        row["drafting"]: f"{row['M']:.2f}"
        for row in results("peers_agents")
        if row["nodes"] == 16 and row["knows"] == "others.jsonl and earlier.jsonl"
    }
    assert re.findall(r"\d\.\d\d", screen) == [
        agents[name] for name in ("session", "session, corpora", "suffix decoding")
    ]


@pytest.mark.parametrize("nodes", [16, 64])
def test_the_table_of_replays(nodes: int) -> None:
    table = [line for line in BENCHMARKS.splitlines() if line.startswith("| `DraftSession` |")]
    expected = [
        next(row["M"] for row in results(name)["rows"] if (row["drafting"], row["nodes"]) == ("session", nodes))
        for name in ("quality_traces", "quality_answers")
    ]
    assert f"| `DraftSession` | {nodes} | {expected[0]:.2f} | {expected[1]:.2f} |" in table
    assert f"{results('quality_traces')['reported']} of the 276 recordings" in " ".join(BENCHMARKS.split())
    assert f"{results('quality_answers')['reported']} recorded answers" in " ".join(BENCHMARKS.split())


def test_the_table_of_remembering() -> None:
    table = rows(BENCHMARKS.partition("### Remembering what the model wrote")[2])
    names = {"recycled logits of all others alone": "the recycled logits of all others, no live datastore"}
    measured = {
        (one["remembered"], one["nodes"], one["datastores"]): one["M"] for one in results("live_traces")["known"]
    }
    for shown, cells in table.items():
        name = names.get(shown, shown)
        assert cells == [f"{measured[name, nodes, stores]:.2f}" for nodes in (16, 64) for stores in (False, True)]


def test_the_table_of_agents() -> None:
    names = {
        "prompt lookup, 3-gram, 10 tokens": "prompt lookup, 3-gram",
        "suffix decoding": "suffix decoding",
        "`DraftSession`, memory alone": "session",
        "`DraftSession`, memory and corpora": "session, corpora",
    }
    measured: dict[str, dict[str, list[str]]] = {}
    for row in results("peers_agents"):
        measured.setdefault(row["drafting"], {}).setdefault(row["knows"], []).append(f"{row['M']:.2f}")
    expected = {shown: [" / ".join(cell) for cell in measured[name].values()] for shown, name in names.items()}
    assert rows(section(BENCHMARKS, "Agents")) == expected


def test_the_table_of_peers() -> None:
    measured = {(row["knows"], row["drafting"]): row["M"] for row in results("peers_traces")}
    shown = rows(section(BENCHMARKS, "Other systems"))
    names = {"suffix decoding": "suffix decoding", "`DraftSession`, memory alone": "session"}
    names |= {"dejavuu, `suffix_decoding`": "dejavuu, suffix_decoding"}
    names |= {"`DraftSession`, memory and recycled logits": "session, recycled logits"}
    for row, name in names.items():
        expected = [f"{measured[knows, name]:.2f}" for knows in ("nothing", "traces_dev.jsonl.gz")]
        assert [cell.split(",")[0] for cell in shown[row]] == expected


def test_the_table_of_memories_with_other_texts() -> None:
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section(BENCHMARKS, "Agents").splitlines()
        if re.search(r"\| \d\.\d\d, ", line)
    ]
    assert len(lines) == 6
    for replayed, also, *cells in lines:
        which = "agents_chats" if "agents" in replayed else "llama31_8b"
        other = next((f"agents_{name}" for name in ("headers", "outdated") if name in also), which)
        group = ", the same task first" if "same task" in replayed else ""
        alone, both = (
            {
                (row["datastores"], row["nodes"], " and " in row["remembered"]): row["M"]
                for row in results(f"remember_{name}")["known"]
                if row["remembered"].endswith(group or ".jsonl")
            }
            for name in (which, other)
        )
        expected = [
            f"{alone[stores, nodes, False]:.2f}, {both[stores, nodes, True]:.2f}"
            for stores in (False, True)
            for nodes in (16, 48)
        ]
        assert cells == expected


def test_what_recordings_made_anew_give() -> None:
    sessions = [row for row in results("anew_traces")["rows"] if row["drafting"] == "session"]
    means = {row["nodes"]: f"{row['M']:.2f}" for row in sessions}
    text = section(BENCHMARKS, "Tokens per forward pass")
    assert f"From 1 to 128 nodes: {', '.join(means[nodes] for nodes in (1, 2, 4, 8, 16, 32, 64, 128))} (" in text
    assert f"{means[16]} / {means[64]} with new recordings" in text.replace("\n", " ")


def test_the_table_of_vllm() -> None:
    runs = [results("lag_traces")["rows"], results("lag_llama31_8b")["rows"]]
    ways = {"vLLM's n-gram lookup": "n-grams alone", "ahead, a chain of 2 K + 1": "ahead, a chain"}
    ways |= {"waiting for the text, a chain of K": "waiting"}
    for shown, cells in rows(section(BENCHMARKS, "In vLLM")).items():
        of_way = [[row for row in run if row["set"] == "all" and row["way"] == ways[shown]] for run in runs]
        assert cells[:4] == [f"{row['M']:.2f}" for run in of_way for row in run]
        nodes = " / ".join(f"{row['nodes']:.0f}" for row in of_way[0])
        assert cells[4] == (nodes if shown != "vLLM's n-gram lookup" else "")


def test_the_figures_of_replicas() -> None:
    measured = results("live_datastore")["fleet"]
    names = ["complete_s", "seen_median_ms", "seen_p99_ms", "documents_per_s", "added_per_s"]
    for state in ("idle", "stopped", "growing"):
        names += [f"{where}_{state}_{part}_us" for where in ("replica", "local") for part in ("median", "p99")]
    text = section(BENCHMARKS, "Live datastores").partition("**Replicas**")[2]
    ingest, _, steps = text.partition(" A step of 16 nodes")
    shown = re.findall(r"[\d.,]*\d(?= s\.| ms| at the| documents of|\.$)", ingest)
    shown += re.findall(r"[\d.]+\d(?= us|\)| \()", steps)
    assert [float(figure.replace(",", "")) for figure in shown] == pytest.approx(
        [measured[name] for name in names], rel=0.01
    )


def test_the_table_of_sglang() -> None:
    shown = rows(PAGES["docs/how-to/sglang.md"].partition("### Against SGLang's own n-gram lookup")[2])
    trees, chains, *lookups = (f"{row['M']:.2f}" for row in results("sglang")["rows"])
    assert [cells[0] for cells in shown.values()] == [trees, chains, ", ".join(lookups)]


def test_the_table_of_a_model_of_8b() -> None:
    shown = rows(section(BENCHMARKS, "A model of 8B on a GPU, modelled"))
    runs = [results("replay_llama31_8b"), results("replay_llama31_8b_batches")]

    def speeds(family: str, chosen: list[dict[str, Any]]) -> str:
        by_batch = sorted(chosen, key=lambda row: row["batch"])
        return " / ".join(f"{row['modelled_speeds_of_families'][family][0]:.2f}" for row in by_batch)

    lookups, heads = (
        [row for run in runs for row in run["other_drafters"] if row["drafter"] == name] for name in ("ngram", "eagle")
    )
    trees = [row for run in runs for row in run["known"] if row["datastores"] and row["shape"] == "tree"]
    both = [row for run in runs for row in run["beside"]]
    peers = [row for name in ("peers_llama31_8b", "peers_llama31_8b_batches") for row in results(name)]

    def best(family: str, drafting: str) -> str:
        of_batch: dict[int, float] = {}
        for row in peers:
            if row["knows"] == "nothing" and row["drafting"] == drafting:
                speed = row["modelled speeds of families"][family]
                of_batch[row["batch"]] = max(speed, of_batch.get(row["batch"], 0.0))
        return " / ".join(f"{of_batch[batch]:.2f}" for batch in sorted(of_batch))

    assert shown == {
        name: [
            speeds(name, lookups),
            best(name, "suffix decoding"),
            best(name, "session"),
            *(speeds(name, column) for column in (heads, trees, both)),
        ]
        for name in shown
    }
    assert len(shown) == 4
