"""Write the tables of figures in README.md and docs/ from benchmarks/results/: `make docs-tables`.

A page marks the place of a table by two comments:

    <!-- table: speed -->
    <!-- end of table -->

Everything between them is replaced. Each function of `TABLES` makes one table from the results that
the benchmark's command wrote. `--check` writes nothing and exits with status 1 if a page differs
from its results.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs")
_MARKED = re.compile(
    r"(?P<begin><!-- table: (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL
)

# The families of prompts as readers know them, and their names in the results.
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
LOOKUP = "transformers prompt lookup"
SESSION = "DraftSession"
STRUCTURED_WITH_MEMORY = (
    "grammar, prompt lookup and logits; choices and logits kept from request to request"
)


def results(name: str) -> Any:
    """Return the figures of `benchmarks/results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]


def markdown(header: Iterable[str], table_rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    cells = [list(header), *map(list, table_rows)]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells]
    lines.insert(1, f"|{' --- |' * len(cells[0])}")
    return "\n".join(lines) + "\n"


def digits(value: float) -> str:
    """Return a ratio or a mean with two decimals."""
    return f"{value:.2f}"


def find(table_rows: Iterable[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return the one row that has these fields."""
    matching = []
    for row in table_rows:
        if all(row[name] == value for name, value in fields.items()):
            matching.append(row)
    (match,) = matching
    return match


def speed() -> str:
    """Rows for the first screen: plain generation, prompt lookup, rest-store, and with a schema."""
    families = results("speed_packed")["families"]
    shown = {
        "transformers `generate`": "plain",
        "transformers prompt lookup": LOOKUP,
        "**rest-store**": SESSION,
    }
    table_rows = []
    for label, method in shown.items():
        total = families["all"][method]
        table_rows.append(
            [
                label,
                f"{digits(total['speedup'])}x",
                f"{digits(total['median_speedup'])}x",
                digits(total["mean_tokens"]),
                f"{round(total['identical'] * total['prompts'])} of {total['prompts']}",
            ]
        )
    structured = next(
        row for row in results("structured")["rows"] if row["drafts"] == STRUCTURED_WITH_MEMORY
    )
    table_rows.append(
        [
            "**rest-store**, structured output",
            f"{digits(structured['speed'])}x",
            "",
            digits(structured["M"]),
            structured["identical"],
        ]
    )
    header = [
        "",
        "speed, all tokens",
        "speed, median prompt",
        "tokens per pass (M)",
        "texts equal to plain",
    ]
    return markdown(header, table_rows)


def speed_by_family() -> str:
    """Speed and M of each family of prompts, and the mean of the families."""
    families = results("speed_packed")["families"]
    table_rows = []
    for label, name in FAMILIES.items():
        cells = [_speed_and_m(families[name][method]) for method in (LOOKUP, SESSION)]
        table_rows.append([label, str(families[name]["plain"]["prompts"]), *cells])
    separate = [families[name] for name in families if name != "all"]
    means = [
        statistics.mean(family[method]["speedup"] for family in separate)
        for method in (LOOKUP, SESSION)
    ]
    table_rows.append(["mean of the families", "", *map(digits, means)])
    return markdown(["family", "prompts", LOOKUP, f"`{SESSION}`"], table_rows)


def _speed_and_m(figures: dict[str, Any]) -> str:
    return f"{digits(figures['speedup'])} ({digits(figures['mean_tokens'])})"


def speed_by_setting() -> str:
    """Speed and M of all prompts in each setting that was measured."""
    settings = {
        "greedy, prepacked weights": "speed_packed",
        "greedy, no prepacked weights": "speed",
        "greedy, prepacked weights, 128 new tokens": "speed_greedy",
        "nucleus sampling, prepacked weights, 128 new tokens": "speed_nucleus",
    }
    table_rows = []
    for label, name in settings.items():
        totals = results(name)["families"]["all"]
        cells = [_speed_and_m(totals[method]) for method in (LOOKUP, SESSION)]
        plain = totals["plain"]
        table_rows.append(
            [
                label,
                str(plain["prompts"]),
                f"{plain['tokens_per_second']:.1f}",
                *cells,
                f"`{name}.json`",
            ]
        )
    header = ["setting", "prompts", "plain, tokens a second", LOOKUP, f"`{SESSION}`", "result"]
    return markdown(header, table_rows)


def tokens_per_pass() -> str:
    """M of replays by rule."""
    of_traces = results("quality_traces")
    of_answers = results("quality_answers")
    shown = [
        ("REST's rule, longest match of all datastores", "REST's rule, longest match of all", 24),
        (
            "REST's rule with suffixes of at most 2 tokens",
            "REST's rule, longest match of all, suffixes of at most 2",
            24,
        ),
        ("prompt lookup, 3-gram, 10 tokens", "prompt lookup, 3-gram, 10 tokens", 10),
        (f"`{SESSION}`", "session", 16),
        (f"`{SESSION}`", "session", 64),
    ]
    table_rows = []
    for label, drafting, nodes in shown:
        means = [
            find(run["rows"], drafting=drafting, nodes=nodes)["M"]
            for run in (of_traces, of_answers)
        ]
        table_rows.append([label, str(nodes), *map(digits, means)])
    traces = f"SmolLM2-135M, {of_traces['reported']} outputs"
    answers = f"7B to 13B models, {of_answers['reported']} answers"
    return markdown(["drafting", "nodes", traces, answers], table_rows)


def sources_alone() -> str:
    """M of each source alone and of a session without it."""
    table_rows = results("quality_traces")["rows"]
    shown = {
        "prompt lookup": "prompt lookup",
        "recycled logits": "recycled logits",
        "datastore of Python": "PYTHON",
        "datastore of chats": "CHAT",
    }
    cells = []
    for label, source in shown.items():
        row = [label]
        for nodes in (16, 64):
            row.append(
                digits(find(table_rows, drafting=f"session, {source} alone", nodes=nodes)["M"])
            )
            row.append(
                digits(find(table_rows, drafting=f"session without {source}", nodes=nodes)["M"])
            )
        cells.append(row)
    full = [digits(find(table_rows, drafting="session", nodes=nodes)["M"]) for nodes in (16, 64)]
    cells.append(["all four", full[0], "", full[1], ""])
    header = [
        "source",
        "16 nodes, alone",
        "16 nodes, without it",
        "64 nodes, alone",
        "64 nodes, without it",
    ]
    return markdown(header, cells)


def tokens_per_pass_by_nodes() -> str:
    """M of a session by the number of nodes, on recordings made anew."""
    sessions = [row for row in results("anew_traces")["rows"] if row["drafting"] == "session"]
    by_nodes = {row["nodes"]: row["M"] for row in sessions}
    return markdown(
        ["nodes", *map(str, by_nodes)],
        [["M", *map(digits, by_nodes.values())]],
    )


def memory() -> str:
    """M by the history before a recording is replayed."""
    shown = {
        "nothing": "nothing",
        "likely tokens of all other outputs": (
            "the recycled logits of all others, no live datastore"
        ),
        "all outputs before it": "those before it",
        "all outputs of other tasks": "all of other tasks",
    }
    known = results("live_traces")["known"]
    table_rows = []
    for label, remembered in shown.items():
        means = [
            find(known, remembered=remembered, nodes=nodes, datastores=datastores)["M"]
            for nodes in (16, 64)
            for datastores in (False, True)
        ]
        table_rows.append([label, *map(digits, means)])
    return markdown(
        ["remembered", "16 nodes", "16, datastores", "64 nodes", "64, datastores"], table_rows
    )


def again() -> str:
    """M where the replayed output itself is remembered, too."""
    known = results("again_traces")["known"]
    again = [row for row in known if row["remembered"].startswith("all outputs")]
    budgets = sorted({row["nodes"] for row in again})
    table_rows = []
    for sources, datastores in (("memory alone", False), ("memory and corpora", True)):
        for shape in ("tree", "chain"):
            rows = [
                row
                for row in again
                if row["datastores"] == datastores and row.get("shape", "tree") == shape
            ]
            means = [digits(find(rows, nodes=nodes)["M"]) for nodes in budgets]
            table_rows.append([f"{sources}, {shape}s", *means])
    return markdown(["sources", *(f"{nodes} nodes" for nodes in budgets)], table_rows)


def draft_time() -> str:
    """The time of a draft."""
    figures = results("drafting")
    table_rows = [
        ["a tree of 16 nodes", f"{figures['16 nodes']['median_us']:.0f} us"],
        ["a tree of 64 nodes", f"{figures['64 nodes']['median_us']:.0f} us"],
        ["a chain of 8", f"{figures['chain of 8']['median_us']:.0f} us"],
        [
            "64 chains of 8, a batch on two cores",
            f"{figures['64 chains of 8 in a batch']['median_ms']:.2f} ms",
        ],
        [
            "opening a session, prompt of 4,000 tokens",
            f"{figures['opening, 4000 tokens']['median_ms']:.2f} ms",
        ],
        [
            "opening a session, prompt of 128,000 tokens",
            f"{figures['opening, 128000 tokens']['median_ms']:.1f} ms",
        ],
    ]
    return markdown(["", "median"], table_rows)


def heads() -> str:
    """Modelled speeds of ways to use a session beside a trained head."""
    rows = results("heads_llama31_8b")["rows"] + results("heads_llama31_8b_batches")["rows"]
    batches = list(dict.fromkeys(row["batch"] for row in rows))
    by_way = {(row["way"], row["batch"]): row for row in rows}
    table_rows = []
    for way, label in (
        ("per step", "tree, head or both, chosen per step (today's choice)"),
        ("long matches", "a match of four tokens overrides the head"),
        ("one tree", "one tree: the head's tokens are nodes"),
        ("oracle", "an oracle's choice of tree or head"),
        ("two chains", "two chains: session or head, chosen per step (today in vLLM)"),
        ("one chain", "one chain: retrieved tokens below the head's"),
    ):
        cells = []
        for batch in batches:
            row = by_way[way, batch]
            share = f" ({row['gap']:.0%})" if way == "one tree" else ""
            cells.append(digits(row["modelled_speed_total"]) + share)
        table_rows.append([label, *cells])
    return markdown(["way", *(f"batch of {batch}" for batch in batches)], table_rows)


def lag() -> str:
    """M where vLLM schedules a step before it knows the text of the one before."""
    agents = results("lag_agents")["rows"]
    llama = results("lag_llama31_8b")["rows"]
    histories = list(dict.fromkeys(row["knows"] for row in agents))
    columns = [[row for row in agents if row["knows"] == history] for history in histories]
    columns.append(llama)
    table_rows = []
    for label, way, nodes, searched in (
        ("vLLM's suffix rule", "vLLM's rule", None, None),
        ("waiting for the text", "waiting", 0, "text and memory"),
        ("ahead, 512 nodes", "ahead", 512, "text and memory"),
        ("ahead, 192 nodes", "ahead", 192, "text and memory"),
        ("ahead, 512 nodes, the device searches the text alone", "ahead", 512, "text"),
        ("ahead, 512 nodes, the foreseen outcomes alone", "ahead", 512, "nothing"),
    ):
        cells = []
        for column in columns:
            means = {
                (row["way"], row.get("nodes"), row.get("device searches")): row["M"]
                for row in column
            }
            mean = means[way, nodes, searched]
            waiting = means["waiting", 0, "text and memory"]
            cells.append(digits(mean) + (f" ({mean / waiting:.0%})" if nodes else ""))
        table_rows.append([label, *cells])
    header = [
        "drafts, M",
        "agents, nothing known",
        "other tasks",
        "the same tasks, too",
        "Llama-3.1-8B, nothing known",
    ]
    return markdown(header, table_rows)


def lag_times() -> str:
    """Times of lookups ahead, by the rows of a batch."""
    table_rows = []
    for row in results("lag_agents")["times"]:
        ratio = row["us, ahead"] / row["us, waiting"]
        table_rows.append(
            [
                str(row["rows"]),
                str(row["nodes"]),
                f"{row['us, ahead']:,.0f} us",
                f"{row['us, waiting']:,.0f} us",
                f"{ratio:.0f}",
            ]
        )
    header = ["rows", "nodes of a row", "a row's lookup ahead", "a row's chain", "ratio"]
    return markdown(header, table_rows)


def live_times() -> str:
    """Times of a live datastore while a thread adds at full speed."""
    queries = results("live_datastore")["queries"]
    names = {
        "draft of 16": "a draft of 16 nodes",
        "step of 16": "a step of 16",
        "step of 64": "a step of 64",
    }
    table_rows = []
    for name, label in names.items():
        figures = queries[name]
        cells = [
            f"{figures[f'{where}, median']:.0f} ({figures[f'{where}, p99']:.0f})"
            for where in ("frozen alone", "frozen meanwhile", "live meanwhile")
        ]
        table_rows.append([label, *cells])
    header = [
        "us, median (99th percentile)",
        "frozen, alone",
        "frozen, beside the additions",
        "live, growing",
    ]
    return markdown(header, table_rows)


def additions() -> str:
    """Times of an addition to a live datastore."""
    figures = results("live_datastore")
    add = figures["add"]
    table_rows = [
        [f"{figures['document']} tokens, durable and visible", add["median_us"], add["p99_us"]],
        [
            "SQLite's bare commit of the same bytes, in turns",
            add["commit_median_us"],
            add["commit_p99_us"],
        ],
    ]
    cells = [
        [label, f"{median / 1000:.2f} ms", f"{p99 / 1000:.2f} ms"]
        for label, median, p99 in table_rows
    ]
    return markdown(["an addition", "median", "99th percentile"], cells)


def replicas() -> str:
    """Times of replicas."""
    fleet = results("live_datastore")["fleet"]
    table_rows = [
        ["a new replica of 4 million tokens is complete", f"{fleet['complete_s']:.2f} s"],
        ["a document added at one is seen at another, median", f"{fleet['seen_median_ms']:.1f} ms"],
        ["the same, 99th percentile", f"{fleet['seen_p99_ms']:.1f} ms"],
        [
            "eight replicas take in, documents of 500 tokens a second",
            f"{fleet['documents_per_s']:,}",
        ],
        ["the service alone takes in, documents a second", f"{fleet['added_per_s']:,}"],
    ]
    for state, label in {
        "idle": "",
        "stopped": ", the service stopped",
        "growing": ", 100 documents a second arriving",
    }.items():
        pairs = [
            f"{fleet[f'{where}_{state}_median_us']:.1f} ({fleet[f'{where}_{state}_p99_us']:.0f})"
            for where in ("replica", "local")
        ]
        table_rows.append(
            [f"a step of 16 nodes{label}: replica, local copy; us, median (p99)", ", ".join(pairs)]
        )
    return markdown(["", ""], table_rows)


def service() -> str:
    """Times of a step through a service."""
    figures = results("service")
    table_rows = []
    for where in (
        "in process",
        "service, TCP",
        "service, Unix socket",
        "a service each, Unix sockets",
    ):
        row = [where]
        for nodes in ("16 nodes", "64 nodes"):
            step = figures[nodes][where]
            row += [f"{step['median us']:,.0f} / {step['p99 us']:,.0f}", digits(step["M"])]
        table_rows.append(row)
    header = ["a step", "16 nodes, us, median / p99", "M", "64 nodes, us, median / p99", "M"]
    return markdown(header, table_rows)


def service_at_once() -> str:
    """Steps a second of many processes."""
    at_once = results("service")["at once"]
    table_rows = [
        ["two processes, in process", f"{at_once['in process']:,.0f}"],
        ["sixteen processes, one service", f"{at_once['service, Unix socket']:,.0f}"],
    ]
    return markdown(["16 nodes", "steps a second, together"], table_rows)


def modelled_speed() -> str:
    """Modelled speed of an 8B model on a GPU by batch."""
    one = results("replay_llama31_8b")
    batches = results("replay_llama31_8b_batches")
    peers = results("peers_llama31_8b") + results("peers_llama31_8b_batches")
    others = one["other_drafters"] + batches["other_drafters"]
    lookups = [row for row in others if row["drafter"] == "ngram"]
    heads = [row for row in others if row["drafter"] == "eagle"]
    known = one["known"] + batches["known"]
    trees = [row for row in known if row["datastores"] and row["shape"] == "tree"]
    both = one["beside"] + batches["beside"]

    def speeds(family: str, chosen: list[dict[str, Any]]) -> str:
        by_batch = sorted(chosen, key=lambda row: row["batch"])
        return " / ".join(digits(row["modelled_speeds_of_families"][family][0]) for row in by_batch)

    def best(family: str, drafting: str) -> str:
        by_batch: dict[int, float] = {}
        for row in peers:
            if row["knows"] == "nothing" and row["drafting"] == drafting:
                value = row["modelled speeds of families"][family]
                by_batch[row["batch"]] = max(value, by_batch.get(row["batch"], 0.0))
        return " / ".join(digits(by_batch[batch]) for batch in sorted(by_batch))

    table_rows = []
    for family in ("instructcoder", "sharegpt", "cnn", "gsm8k"):
        table_rows.append(
            [
                family,
                speeds(family, lookups),
                best(family, "suffix decoding"),
                best(family, "session"),
                speeds(family, heads),
                speeds(family, trees),
                speeds(family, both),
            ]
        )
    header = [
        "requests",
        "vLLM's n-gram lookup",
        "suffix decoding",
        f"`{SESSION}`, memory alone",
        "EAGLE-3",
        f"`{SESSION}`, trees",
        "both, chosen per step",
    ]
    return markdown(header, table_rows)


def batches() -> str:
    """Modelled speed of a batch by the choice of its draft tokens."""
    rows = results("batches_llama31_8b")["rows"]
    sizes = sorted({row["batch"] for row in rows})
    table_rows = []
    for label, padded in (("padded to the longest draft", True), ("not padded", False)):
        for choice in ("2 nodes", "4 nodes", "8 nodes", "alone", "together"):
            cells = [
                digits(find(rows, batch=size, padded=padded, choice=choice)["modelled_speed"])
                for size in sizes
            ]
            name = f"{choice} each" if choice.endswith("nodes") else choice
            table_rows.append([label, name, *cells])
    return markdown(["rows", "draft tokens", *(f"{size} rows" for size in sizes)], table_rows)


def rollouts() -> str:
    """Tokens per pass and processor time of each epoch of a training run that samples."""
    runs = results("rollouts")
    plain = runs["one by one, no drafts"]
    drafted = runs["one by one, memory"]
    means = [
        tokens / passes for tokens, passes in zip(drafted["tokens"], drafted["passes"], strict=True)
    ]
    table_rows = [
        ["M with memory (1 without)", *map(digits, means)],
        [
            "seconds of the processor without drafts",
            *(f"{seconds:.1f}" for seconds in plain["seconds"]),
        ],
        ["with memory", *(f"{seconds:.1f}" for seconds in drafted["seconds"])],
    ]
    return markdown(["", *(f"epoch {number + 1}" for number in range(len(means)))], table_rows)


def rollouts_replayed() -> str:
    """M of the last epoch's samples by method and by the epochs known before."""
    measured = results("peers_rollouts")
    # In the order in which they were measured.
    known = dict.fromkeys(row["knows"] for row in measured)
    labels = ["nothing", "epoch 1", "epochs 1 and 2", "epochs 1 to 3"]
    methods = {
        "prompt lookup, 3-gram": "prompt lookup, 3-gram",
        "suffix decoding": "suffix decoding",
        f"`{SESSION}`, memory": "session",
    }
    table_rows = []
    for label, knows in zip(labels, known, strict=True):
        means = [
            find(measured, knows=knows, drafting=drafting)["M"] for drafting in methods.values()
        ]
        table_rows.append([label, *map(digits, means)])
    return markdown(["known before", *methods], table_rows)


def few_nodes() -> str:
    """M of an 8B model with three nodes by source and kind of request."""
    figures = results("replay_llama31_8b_few_nodes")
    families = ("instructcoder", "sharegpt", "cnn", "gsm8k")
    shown = {
        "no corpora": find(figures["rows"], drafting="session, prompt lookup alone", nodes=3),
        "Python": find(figures["rows"], drafting="session without chat3.ds", nodes=3),
        "chats": find(figures["rows"], drafting="session without py3.ds", nodes=3),
        "Python and chats": find(figures["rows"], drafting="session", nodes=3),
        "both, and all other outputs remembered": find(
            figures["known"], datastores=True, remembered="all of other tasks", nodes=3
        ),
    }
    table_rows = [
        [label, *(digits(row["families"][family]) for family in families)]
        for label, row in shown.items()
    ]
    return markdown(["sources beside the prompt", *families], table_rows)


def agents() -> str:
    """M on an agent's traces by the text that is known."""
    shown = {
        "prompt lookup, 3-gram, 10 tokens": "prompt lookup, 3-gram",
        "suffix decoding": "suffix decoding",
        f"`{SESSION}`, memory alone": "session",
        f"`{SESSION}`, memory and corpora": "session, corpora",
    }
    measured = results("peers_agents")
    table_rows = []
    for label, drafting in shown.items():
        row = [label]
        for knows in ("nothing", "others.jsonl", "others.jsonl and earlier.jsonl"):
            means = [
                find(measured, drafting=drafting, knows=knows, nodes=nodes)["M"]
                for nodes in (16, 48)
            ]
            row.append(" / ".join(map(digits, means)))
        table_rows.append(row)
    return markdown(
        ["drafting, M at 16 / 48 nodes", "nothing", "other tasks", "the same tasks, too"],
        table_rows,
    )


def agent_means() -> str:
    """M on an agent's traces by each means, up to an oracle that ranks the candidates."""
    known = "others.jsonl and earlier.jsonl"
    peers = results("peers_agents")
    ranking = results("ranking_agents")

    def means(rows: list[dict[str, Any]], column: str, **fields: str) -> list[str]:
        return [digits(find(rows, nodes=nodes, **fields)[column]) for nodes in (16, 48)]

    def session(knows: str, drafting: str = "session") -> list[str]:
        return means(peers, "M", knows=knows, drafting=drafting)

    fitted = []
    for name in ("calibration_agents_default", "calibration_agents_fitted"):
        rows = results(name)["known"]
        fitted.append(means(rows, "M", remembered=known))
    shares = find(ranking, knows=known, drafting="session", nodes=16)
    best, first = shares["proposed"], shares["ranked first"]
    shown = {
        "nothing known": (session("nothing"), "peers_agents"),
        "two runs of 35 other tasks": (session("others.jsonl"), "peers_agents"),
        "two runs of the same tasks, too": (session(known), "peers_agents"),
        "these, and corpora": (session(known, "session, corpora"), "peers_agents"),
        "the same runs, the answers themselves not remembered": (
            fitted[0],
            "calibration_agents_default",
        ),
        "that, with a calibration fitted to agents as well": (
            fitted[1],
            "calibration_agents_fitted",
        ),
        f"the same runs, chains of the likeliest candidates ({first:.0%} of the tokens)": (
            means(ranking, "M of the first", knows=known),
            "ranking_agents",
        ),
        f"the same runs, an oracle's choice among the candidates ({best:.0%} of the tokens)": (
            means(ranking, "M of an oracle", knows=known),
            "ranking_agents",
        ),
    }
    table_rows = [[label, *both, f"`{name}.json`"] for label, (both, name) in shown.items()]
    return markdown(["means", "M at 16 nodes", "48 nodes", "result"], table_rows)


def shared_memory() -> str:
    """M on an agent's traces by the number of tasks that have to write what others draft from."""
    measured = results("privacy")["cost"]
    table_rows = []
    for shared_after in (1, 2, 3, 5):
        row = [str(shared_after)]
        for same_task in (False, True):
            for nodes in (16, 48):
                own = find(measured, same_task=same_task, nodes=nodes, shared_after=shared_after)
                all_ = find(measured, same_task=same_task, nodes=nodes, shared_after=1)
                loss = 1 - own["M"] / all_["M"]
                row.append(
                    f"{digits(own['M'])} ({-100 * loss:+.1f}%)" if loss else digits(own["M"])
                )
        table_rows.append(row)
    return markdown(
        [
            "`shared_after`",
            "other tasks, 16 nodes",
            "48 nodes",
            "the same task, too, 16 nodes",
            "48 nodes",
        ],
        table_rows,
    )


def attacked_memory() -> str:
    """What the steps of streamed answers tell of other tenants."""
    table_rows = []
    for row in results("privacy")["attack"]:
        speeds = row["tokens_per_step"]
        table_rows.append(
            [
                str(row["shared_after"]),
                *(digits(speeds[kind]) for kind in speeds),
                *(digits(area) for area in row["guessing"].values()),
                f"{row['read_of_one_tenant']:,} of {row['tokens']:,}",
            ]
        )
    return markdown(
        [
            "`shared_after`",
            "tokens a step: asked by one tenant",
            "by two",
            "by nobody",
            "guessing one tenant's prompts",
            "two tenants' prompts",
            "tokens read of one tenant alone",
        ],
        table_rows,
    )


def compaction() -> str:
    """M of an agent's runs whose prompts have lost their middle."""
    shown = {"as recorded": "compaction_agents", "joined to 60,000 tokens": "compaction_joined"}
    contexts = ("whole", "compacted", "compacted, with an archive")
    table_rows = []
    for label, name in shown.items():
        known = results(name)["known"]
        for memory, remembered in (("none", "nothing"), ("earlier runs", "earlier_all.jsonl")):
            means = [
                find(known, context=context, remembered=remembered)["M"] for context in contexts
            ]
            changes = [f"{digits(mean)} ({mean / means[0] - 1:+.1%})" for mean in means[1:]]
            table_rows.append([label, memory, digits(means[0]), *changes])
    return markdown(
        ["runs", "memory", "whole prompts", "compacted", "compacted, with an archive"], table_rows
    )


def references() -> str:
    """M on an agent's traces with earlier outputs of the same task as references."""
    known = results("remember_agents_chats")["known"]
    shown = {"no references": "nothing", "references": "related.jsonl, the same task alone"}
    table_rows = []
    for label, remembered in shown.items():
        row = [label]
        for datastores in (False, True):
            means = [
                find(known, datastores=datastores, remembered=remembered, nodes=nodes)["M"]
                for nodes in (16, 48)
            ]
            row.append(" / ".join(map(digits, means)))
        table_rows.append(row)
    return markdown(["M at 16 / 48 nodes, no memory", "no corpora", "corpora"], table_rows)


def other_texts_in_memory() -> str:
    """M with related texts remembered, and with nine times as many other texts beside them."""
    shown = [
        ("agents, the same task first", "chats, which the corpus has, too", "agents_chats"),
        ("agents, the same task first", "C++ headers", "agents_headers"),
        ("agents, the same task first", "outdated copies", "agents_outdated"),
        ("agents", "chats", "agents_chats"),
        ("agents", "outdated copies", "agents_outdated"),
        ("Llama's outputs", "agents' traces and such chats", "llama31_8b"),
    ]
    table_rows = []
    for replayed, also, name in shown:
        group = ", the same task first" if "same task" in replayed else ""
        alone_name = "agents_chats" if name.startswith("agents") else name
        row = [replayed, also]
        for datastores in (False, True):
            for nodes in (16, 48):
                alone = _remembered(alone_name, datastores, nodes, group, joined=False)
                beside = _remembered(name, datastores, nodes, group, joined=True)
                row.append(f"{digits(alone)}, {digits(beside)}")
        table_rows.append(row)
    header = [
        "replayed",
        "also remembered",
        "16 nodes",
        "48 nodes",
        "16 nodes, corpora",
        "48 nodes, corpora",
    ]
    return markdown(header, table_rows)


def _remembered(name: str, datastores: bool, nodes: int, group: str, *, joined: bool) -> float:
    """Return M of the one row of `remember_NAME.json` with one file remembered, or two `joined`."""
    matching = [
        row["M"]
        for row in results(f"remember_{name}")["known"]
        if row["datastores"] == datastores
        and row["nodes"] == nodes
        and row["remembered"].endswith(group or ".jsonl")
        and (" and " in row["remembered"]) == joined
    ]
    (mean,) = matching
    return float(mean)


def peers() -> str:
    """M and time of a step of other systems."""
    measured = results("peers_traces")
    shown = {
        "prompt lookup, 3-gram, 10 tokens": "prompt lookup, 3-gram",
        "suffix decoding (arctic-inference)": "suffix decoding",
        "dejavuu, `rest`": "dejavuu, rest",
        "dejavuu, `sam_decoding`": "dejavuu, sam_decoding",
        "dejavuu, `asam`": "dejavuu, asam",
        "dejavuu, `suffix_decoding`": "dejavuu, suffix_decoding",
        "dejavuu, `token_recycling`": "dejavuu, token_recycling",
        "dejavuu, `logit_spec`": "dejavuu, logit_spec",
        "dejavuu, `stand`": "dejavuu, stand",
        f"`{SESSION}`, memory alone": "session",
        f"`{SESSION}`, memory and recycled logits": "session, recycled logits",
    }
    table_rows = []
    for label, drafting in shown.items():
        row = [label]
        for knows in ("nothing", "traces_dev.jsonl.gz"):
            one = find(measured, drafting=drafting, knows=knows)
            row += [digits(one["M"]), f"{one['us a step, median']:,.0f}"]
        table_rows.append(row)
    return markdown(
        ["drafting", "nothing known: M", "us", "other recordings known: M", "us"], table_rows
    )


def structured() -> str:
    """M and speed under JSON schemas by source of the drafts."""
    figures = results("structured")
    table_rows = []
    for row in figures["rows"]:
        speed_of_row = "" if "speed" not in row else f"{digits(row['speed'])}x"
        forbidden = row.get("draft tokens forbidden")
        forced = row.get("forced nodes accepted")
        share = row.get("grammar's share of a pass")
        table_rows.append(
            [
                row["drafts"],
                digits(row["M"]),
                speed_of_row,
                "" if forbidden is None else f"{forbidden:.0%}",
                "" if forced is None else f"{forced:.1%}",
                "" if share is None else f"{share:.1%}",
                row.get("identical", ""),
            ]
        )
    header = [
        "drafts",
        "M",
        "speed",
        "draft tokens forbidden",
        "forced ones accepted",
        "grammar, of a pass",
        "texts equal to plain",
    ]
    return markdown(header, table_rows)


def recurrent() -> str:
    """Passes, speed with drafts of known quality, and memory of models with recurrent state."""
    figures = results("recurrent")
    table_rows = []
    for shape, speeds in figures["speed"].items():
        costs = figures["pass"][shape]
        peaks = figures["memory"][shape]
        table_rows.append(
            [
                f"{shape}, {costs['parameters_m']}M",
                *(digits(costs[f"{width}_tokens"]) for width in (9, 17)),
                *(
                    f"{digits(speeds[f'speed at {right}'])} ({digits(speeds[f'M at {right}'])})"
                    for right in ("60%", "80%")
                ),
                f"{100 * (peaks['drafts_mb'] / peaks['plain_mb'] - 1):+.1f}%",
                speeds["transformers' prompt lookup"],
            ]
        )
    header = [
        "shape",
        "9 tokens",
        "17 tokens",
        "speed (M) at 60%",
        "speed (M) at 80%",
        "peak memory",
    ]
    return markdown([*header, "transformers' prompt lookup"], table_rows)


def threads() -> str:
    """Speed of passes by the way in which threads wait, relative to nothing set."""
    figures = results("threads")
    shown = {name: ways for name, ways in figures.items() if name.startswith(("as", "beside"))}
    rows = []
    for way in shown["as it is"]:
        cells = (ways[way] for ways in shown.values())
        ranges = (
            f"{digits(cell['speed'])} ({digits(cell['low'])} to {digits(cell['high'])})"
            for cell in cells
        )
        rows.append([way if " " in way else f"`{way}`", *ranges])
    return markdown(["", *(f"the machine {name}" for name in shown)], rows)


# Results of each release of transformers, from the newest on.
RELEASES = ("architectures_newest", "architectures", "architectures_oldest")


def outcomes() -> dict[str, dict[str, dict[str, str]]]:
    """Return the outcome of each family of models, by release of transformers and `model_type`."""
    by_release = {}
    for name in RELEASES:
        fields = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        families = {row["family"]: row for row in fields["results"]}
        by_release[fields["packages"]["transformers"]] = families
    return by_release


def architectures_by_release() -> str:
    """Numbers of families by outcome and release of transformers."""
    kinds = ("equal, trees", "equal, chains", "refused", "not made")
    table_rows = []
    for release, families in outcomes().items():
        counts = [sum(row["kind"] == kind for row in families.values()) for kind in kinds]
        table_rows.append([release, *map(str, counts)])
    return markdown(["transformers", *kinds], table_rows)


def architectures() -> str:
    """The outcome of each family with the newest release that has it, and differing outcomes."""
    by_release = outcomes()
    table_rows = []
    for family in sorted(set().union(*by_release.values())):
        row = next(families[family] for families in by_release.values() if family in families)
        latest = _outcome(row)
        others = []
        for release, families in by_release.items():
            outcome = _outcome(families[family]) if family in families else "absent"
            if outcome != latest:
                others.append(f"{release}: {outcome}")
        table_rows.append([f"`{family}`", f"`{row['model']}`", latest, "; ".join(others)])
    return markdown(["family", "class", "outcome", "with other releases"], table_rows)


def _outcome(row: dict[str, str]) -> str:
    """Return an outcome with its note, as text of a cell."""
    note = row["note"].replace("|", "/").replace("<", "&lt;").replace("*", "\\*")
    return f"{row['kind']}: {note}" if note else row["kind"]


def sglang() -> str:
    """M in SGLang's engine."""
    trees, chains, *lookups = (digits(row["M"]) for row in results("sglang")["rows"])
    table_rows = [
        ["`REST_STORE`, trees", trees],
        ["`REST_STORE`, chains", chains],
        ["`NGRAM`, 15, 8 or 4 of its draft tokens from the corpus", ", ".join(lookups)],
    ]
    return markdown(["drafts", "M"], table_rows)


TABLES: dict[str, Callable[[], str]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        speed,
        speed_by_family,
        speed_by_setting,
        tokens_per_pass,
        sources_alone,
        tokens_per_pass_by_nodes,
        memory,
        again,
        draft_time,
        heads,
        lag,
        lag_times,
        live_times,
        additions,
        replicas,
        service,
        service_at_once,
        modelled_speed,
        batches,
        rollouts,
        rollouts_replayed,
        few_nodes,
        agents,
        agent_means,
        shared_memory,
        attacked_memory,
        compaction,
        references,
        other_texts_in_memory,
        peers,
        structured,
        recurrent,
        threads,
        architectures_by_release,
        architectures,
        sglang,
    )
}


def pages() -> list[Path]:
    """Return README.md and the pages of docs/."""
    listed: list[Path] = []
    for name in PAGES:
        path = ROOT / name
        listed += sorted(path.rglob("*.md")) if path.is_dir() else [path]
    return listed


def with_tables(text: str) -> str:
    """Return a page's text with each marked table made anew.

    Raises:
        KeyError: a mark names no table of `TABLES`.
    """

    def table(match: re.Match[str]) -> str:
        return f"{match['begin']}{TABLES[match['name']]()}{match['end']}"

    return _MARKED.sub(table, text)


def main(arguments: list[str]) -> int:
    """Write each page whose tables changed; with `--check`, only say which ones differ."""
    changed = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = with_tables(text)
        if new != text:
            changed.append(page)
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    for page in changed:
        print(page.relative_to(ROOT))
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
