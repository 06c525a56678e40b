"""Tables of figures for Markdown files and the report, each made from results alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rest_store.bench.exhibits import Cell, Table

FAMILIES = {
    "humaneval-raw": "HumanEval, raw",
    "humaneval-chat": "HumanEval, chat",
    "mt_bench": "MT-Bench",
    "mt_bench, first turn": "MT-Bench, first turn",
    "mt_bench, second turn": "MT-Bench, second turn",
    "qa": "questions",
    "math_reasoning": "mathematics",
    "translation": "translation",
    "summarization": "summarization",
    "rag": "retrieval-augmented",
}
RULES = {
    "REST's rule, longest match of all": "REST's rule, longest match of all datastores",
    "prompt lookup, 3-gram, 10 tokens": "prompt lookup, 3-gram, 10 tokens",
    "session": "`DraftSession`",
}
DRAFTED = {
    "transformers assisted generation": "transformers' assisted generation",
    "transformers prompt lookup": "transformers' prompt lookup",
    "prompt lookup": "prompt lookup",
    "REST's rule": "REST's rule",
    "DraftSession": "`DraftSession`",
    "DraftSession through a service": "`DraftSession` through a service",
}
QUERIES = {
    "draft, 1 shards": "`draft`, one shard",
    "draft, 8 shards": "`draft`, eight shards",
    "longest_suffix_match": "`longest_suffix_match`",
}
VLLM = {
    "none": "none",
    "empty": "an empty drafter",
    "ngram": "n-gram lookup",
    "suffix, cold": "suffix decoding, cold",
    "suffix, warm": "suffix decoding, warm",
    "corpora": "rest-store, corpora",
    "corpora and memory, cold": "rest-store, corpora and memory, cold",
    "corpora and memory, warm": "rest-store, corpora and memory, warm",
}
_TRANSPORTS = {"TCP": "TCP", "Unix": "Unix socket"}
_CLIENTS = {**_TRANSPORTS, "TCP on one core": "TCP, client on one core"}
_ALTERNATION = "in process and echo"  # of sessions; earlier results have none


def microseconds(value: float) -> str:
    """Return microseconds as text, with one decimal below ten."""
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def drafting_table(results: Mapping[str, Any]) -> Table:
    """M of the session and of the rules it is compared with.

    Args:
        results: figures of `bench quality`, by what was replayed.
    """
    values = {
        name: {(row["drafting"], row["nodes"]): row["M"] for row in result["rows"]} for name, result in results.items()
    }
    first = next(iter(values.values()))
    rows: list[list[Cell]] = []
    for rule, name in RULES.items():
        for nodes in sorted(nodes for drafting, nodes in first if drafting == rule):
            rows.append([name, nodes, *(_decimals(column.get((rule, nodes))) for column in values.values())])
    return Table("Mean tokens of a forward pass (M)", ["drafting", "nodes", *values], rows)


def curves_table(results: Mapping[str, Any]) -> Table:
    """M of the session against the nodes of a step, the size of the datastores and the longest suffix.

    Args:
        results: figures of `bench quality --curves`, by what was replayed.
    """
    first = next(iter(results.values()))["curves"]
    rows: list[list[Cell]] = []
    for curve, what, shown in (
        ("nodes", "nodes of a step", "{:g}"),
        ("size", "size of the datastores", "{:.0%}"),
        ("suffix", "longest suffix, tokens", "{:g}"),
    ):
        name = f"{what}: {' / '.join(shown.format(x) for x, _ in first[curve])}"
        curves = [result["curves"][curve] for result in results.values()]
        rows.append([name, *(" / ".join(f"{m:.2f}" for _, m in points) for points in curves)])
    return Table("M of the session", ["what varies", *results], rows)


def speed_table(figures: Mapping[str, Any]) -> Table:
    """Speed against plain generation and M, by family of prompts; the last row is over all."""
    families: dict[str, Any] = dict(figures["families"])
    methods = [name for name in (*DRAFTED, *families["all"]) if name in families["all"]]
    shown = [name for name in dict.fromkeys(methods) if name not in ("plain", "no drafts", "assistant")]
    rows: list[list[Cell]] = []
    for family in in_order(families):
        of_family = families[family]
        cells = [f"{of_family[name]['speedup']:.2f} ({of_family[name]['mean_tokens']:.2f})" for name in shown]
        rows.append(["**all**" if family == "all" else FAMILIES.get(family, family), *cells])
    return Table(
        "Speed relative to plain generation, and M", ["family", *(DRAFTED.get(name, name) for name in shown)], rows
    )


def short_answers_table(figures: Mapping[str, Any]) -> Table:
    """Speed against plain generation of short answers, by number of tokens; of prompts the median and the least."""
    lengths = figures["lengths"]
    parts = list(next(iter(lengths.values())))
    rows: list[list[Cell]] = [
        [int(length), *(f"{of[part]['median']:.2f} ({of[part]['least']:.2f})" for part in parts)]
        for length, of in lengths.items()
    ]
    return Table("Speed of short answers relative to plain generation", ["new tokens", *parts], rows)


def decodings_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Speed against plain generation and M by family and decoding, as Table 1 of REST's paper has them.

    The last rows are the share of texts equal to those of plain generation with the same seed.

    Args:
        results: figures of `bench speed`, by the name of the decoding.
    """
    tables = {decoding: speed_table(figures) for decoding, figures in results.items()}
    header = list(dict.fromkeys(name for table in tables.values() for name in table.header))
    rows: list[list[Cell]] = []

    def add(name: str, cells: Mapping[str, Cell]) -> None:
        rows.append([name, *(cells.get(column) for column in header[1:])])

    for family in dict.fromkeys(str(row[0]) for table in tables.values() for row in table.rows):
        for decoding, table in tables.items():
            for row in table.rows:
                if row[0] == family:
                    add(f"{family}, {decoding}", dict(zip(table.header, row, strict=True)))
    for decoding, figures in results.items():
        overall = figures["families"]["all"].items()
        add(
            f"the text of plain generation, {decoding}",
            {DRAFTED.get(name, name): f"{100 * figures['identical']:.0f} %" for name, figures in overall},
        )
    return Table("Speed relative to plain generation, and M, by decoding", header, rows)


def in_order(families: Mapping[str, Any]) -> list[str]:
    """Return the names of families: known ones first, "all" last."""
    others = [name for name in families if name not in FAMILIES and name != "all"]
    return [*(name for name in FAMILIES if name in families), *others, "all"]


def query_table(figures: Mapping[str, Any]) -> Table:
    """Microseconds of a draft, for each context."""
    rows: list[list[Cell]] = [
        [name, *(microseconds(figures[key][part]) for part in ("median", "mean", "p99"))]
        for key, name in QUERIES.items()
        if key in figures
    ]
    return Table("Microseconds for each context", ["", "median", "mean", "99th percentile"], rows)


def sizes_table(sizes: Sequence[Mapping[str, Any]], beyond_memory: Mapping[str, Any] | None = None) -> Table:
    """Microseconds of a draft by size of the datastore.

    Args:
        sizes: as `bench_query.py --sizes` writes them.
        beyond_memory: one of them, measured with less memory available than the datastore's size.
    """

    def row(name: str, times: Mapping[str, Any]) -> list[Cell]:
        parts = [[microseconds(times[kind][part]) for part in ("median", "mean", "p99")] for kind in ("warm", "cold")]
        return [name, *(" / ".join(part) for part in parts)]

    rows = []
    for size in sizes:
        synthetic = f", synthetic, {size['shards']} shards" if size["synthetic"] else ""
        rows.append(row(f"{size['tokens'] / 1e6:,.0f} million{synthetic}", size))
    if beyond_memory is not None:
        gibibytes = beyond_memory["tokens"] * beyond_memory["bytes_per_token"] / 2**30
        rows.append(row(f"the same {gibibytes:.1f} GiB with 3 GiB of memory available", beyond_memory))
    return Table(
        "Microseconds by size of the datastore",
        ["tokens", "warm: median / mean / 99th", "pages dropped first: median / mean / 99th"],
        rows,
    )


def service_table(figures: Mapping[str, Any]) -> Table:
    """Median microseconds of one client through the service, beside an echo of the same messages."""
    rows: list[list[Cell]] = []
    for transport, name in _TRANSPORTS.items():
        for kind in ("unary", "stream"):
            both = [figures[f"{kind}, {calls}, {transport}"] for calls in ("sync", "asyncio")]
            cells = [" / ".join(f"{run[f'{who} median us']:.0f}" for run in both) for who in ("echo", "service")]
            cells.append(" / ".join(f"{run['ratio']:.2f}" for run in both))
            cells.append(f"{both[0]['client median us']:.0f} ({both[0]['client ratio']:.2f})")
            rows.append([f"{kind}, {name}, blocking / asyncio", *cells])
    columns = ["one client", "echo", "service", "ratio", "`DatastoreClient`, blocking"]
    return Table("One client, median microseconds", columns, rows)


def sessions_table(figures: Mapping[str, Any]) -> Table:
    """Microseconds of a session's step, in process and through the service, by nodes and transport.

    Args:
        figures: of `bench_service.py` on sessions.
    """
    rows: list[list[Cell]] = []
    steps = _steps(figures)
    alternation = [_ALTERNATION] if f"{_ALTERNATION} median us" in figures[steps[0]] else []
    for kind in steps:
        one, (nodes, transport) = figures[kind], kind.split(", ")
        echo = min(("echo, sync", "echo, asyncio"), key=lambda way: one[f"{way} median us"])
        cells = [
            " / ".join(microseconds(one[f"{way} {part} us"]) for part in ("median", "p99"))
            for way in ("in process", echo, *alternation, "service", "merging")
        ]
        rows.append([f"{nodes}, {_CLIENTS[transport]}", *cells[:-1], f"{one['ratio']:.2f}", cells[-1]])
    columns = ["median / 99th percentile", "in process", "echo", *alternation]
    columns += ["in the service", "ratio", "merging in the client"]
    return Table("A session's step, microseconds", columns, rows)


def sessions_at_once_table(figures: Mapping[str, Any]) -> Table:
    """Steps a second of many sessions at once, what the cores allow, and M, by nodes; `figures` as `sessions_table`."""
    ways = ("in process", "service", "merging")
    rows: list[list[Cell]] = []
    for nodes in dict.fromkeys(kind.split(", ")[0] for kind in _steps(figures)):
        at_once, means = figures[f"{nodes}, at once"], figures[f"{nodes}, M"]
        rates: list[Cell] = [f"{at_once[way]['steps a second']:,.0f}" for way in ways]
        allowed = [at_once["the cores allow"], at_once["share"]]
        rows.append([nodes, *rates, *allowed, " / ".join(f"{means[way]:.3f}" for way in ways)])
    columns = ["steps a second", "in process", "in the service", "merging in the client"]
    columns += ["the cores allow", "share of it in the service", "M: in process / in the service / merging"]
    return Table("Many sessions at once", columns, rows)


def batches_table(figures: Mapping[str, Any]) -> Table:
    """Steps a second of batches of sessions, in process and through the service; `figures` of `bench_batches.py`."""
    ways = ("in process", "one stream", "own streams")
    rows: list[list[Cell]] = []
    for name in (name for name in figures if "sessions, " in name):
        rates = [figures[name][way]["steps a second"] for way in ways]
        rows.append([name, *(f"{rate:,}" for rate in rates), f"{rates[1] / rates[2]:.2f}"])
    columns = [
        "steps a second",
        "in process",
        "service, one stream",
        "service, own streams",
        "one stream / own streams",
    ]
    return Table("Batches of sessions", columns, rows)


def _steps(figures: Mapping[str, Any]) -> list[str]:
    return [name for name in figures if name.endswith(tuple(_CLIENTS))]


def infini_gram_table(figures: Mapping[str, Any]) -> Table:
    """infini-gram and rest-store on the same tokens."""
    both = ("infini-gram", "rest-store")
    build = figures["build"]
    rows: list[list[Cell]] = [
        ["build from tokens, seconds", *(f"{build[who]['seconds']:.0f}" for who in both)],
        ["bytes a token", *(f"{build[who]['bytes_per_token']:.2f}" for who in both)],
    ]
    for name in ("count", "next token", "longest suffix and next token"):
        cells = [[microseconds(figures[name][who][part]) for part in ("median", "mean", "p99")] for who in both]
        rows.append([f"{name}, microseconds: median / mean / 99th", *(" / ".join(cell) for cell in cells)])
    tokens = f"{figures['tokens'] / 1e6:,.0f} million tokens"
    return Table("infini-gram on the same tokens", [tokens, f"infini-gram {figures['version']}", "rest-store"], rows)


def suffix_decoding_table(figures: Mapping[str, Any]) -> Table:
    """Suffix decoding and draft sessions in the same replays: M, nodes and microseconds a step, by budget."""
    ways: dict[str, dict[int, str]] = {}
    for row in figures["rows"]:
        name = "`DraftSession`" if row["drafting"] == "session" else row["drafting"]
        median = microseconds(row["microseconds a step"]["median"])
        cell = f"{row['M']:.2f} / {row['nodes_per_step']:.1f} / {median}"
        ways.setdefault(f"{name}; {_knows(row)}", {})[row["nodes"]] = cell
    budgets = sorted({row["nodes"] for row in figures["rows"]})
    header = ["drafting; what it knows beside the prompt"]
    header += [f"at most {nodes} nodes: M / nodes / us a step" for nodes in budgets]
    rows: list[list[Cell]] = [[way, *(cells.get(nodes) for nodes in budgets)] for way, cells in ways.items()]
    return Table("Suffix decoding of arctic-inference in the same replays", header, rows)


def live_table(figures: Mapping[str, Any]) -> Table:
    """M of sessions by what a live datastore remembers, with the other datastores and without."""
    measured = {(row["remembered"], row["nodes"], row["datastores"]): row["M"] for row in figures["rows"]}
    ways = sorted({key[1:] for key in measured})
    header = ["remembered", *(f"{nodes} nodes" + (", datastores" if besides else "") for nodes, besides in ways)]
    rows: list[list[Cell]] = [
        [remembered, *(_decimals(measured.get((remembered, *way))) for way in ways)]
        for remembered in dict.fromkeys(row["remembered"] for row in figures["rows"])
    ]
    return Table("M by what is remembered", header, rows)


def typical_table(figures: Mapping[str, Any]) -> Table:
    """Exact sampling and typical acceptance: M, speed, and how far the distribution of texts is from the model's."""
    rows: list[list[Cell]] = []
    for temperature, ways in figures["temperatures"].items():
        for way, row in ways.items():
            at_steps = row.get("total variation at steps of exact sampling")
            rows.append(
                [
                    f"{temperature}, {way}",
                    f"{row['M']:.2f}",
                    f"{row['speedup']:.2f}",
                    f"{row['kept']:.0%}",
                    f"{row['total variation']:.3f}" + ("" if at_steps is None else f" / {at_steps:.3f}"),
                    f"{row['perplexity']:.2f}",
                    f"{row['entropy']:.2f}",
                    f"{row['distinct 2-grams']:.0%}",
                ]
            )
    header = [
        "temperature, acceptance",
        "M",
        "speed",
        "kept without a draw",
        "total variation: of its texts / of samples",
    ]
    return Table("Typical acceptance", [*header, "perplexity", "entropy, nats", "distinct 2-grams"], rows)


def vllm_table(figures: Mapping[str, Any]) -> Table:
    """Tokens a second in vLLM, relative to no drafts, and of a row and step, by way of drafting and rows at once."""
    header = "tokens a second / relative to none / tokens of a row and step"
    return _vllm_table("Speed in vLLM", header, figures, _vllm_cell)


def vllm_decoding_table(figures: Mapping[str, Any]) -> Table:
    """The speed of the steps in which no prompt is read, also relative to no drafts and to suffix decoding."""
    header = "while no prompt is read: tokens a second / relative to none / to suffix decoding"
    return _vllm_table("Decoding in vLLM", header, figures, _vllm_decoding_cell)


def _vllm_table(title: str, first: str, figures: Mapping[str, Any], cell: Callable[[Mapping[str, Any]], str]) -> Table:
    parts = {"": figures["batches"], "nothing to draft; ": figures["nothing to draft"]}
    batches = list(figures["batches"])
    rows: list[list[Cell]] = []
    for name, part in parts.items():
        for way in dict.fromkeys(way for batch in batches for way in part[batch]):
            rows.append([name + VLLM.get(way, way), *(cell(part[batch][way]) for batch in batches)])
    return Table(title, [first, *(f"{batch} at once" for batch in batches)], rows)


def _vllm_cell(row: Mapping[str, Any]) -> str:
    return f"{row['tokens a second']:.0f} / {row['of none']:.2f} / {row['tokens a row and step']:.2f}"


def _vllm_decoding_cell(row: Mapping[str, Any]) -> str:
    decoding = row["decoding"]
    cells = [f"{decoding['tokens a second']:.0f}", f"{decoding['of none']:.2f}"]
    return " / ".join([*cells, f"{decoding['of suffix']:.2f}"] if "of suffix" in decoding else cells)


def paper_tables(figures: Mapping[str, Any]) -> list[Table]:
    """The tables of REST's paper, from the figures of `bench_paper.py`."""
    rows = figures["rows"]

    def table(title: str, first: str, experiment: str, name: Callable[[Mapping[str, Any]], str]) -> Table:
        header = [first, "M", "us of retrieval a token", "us a draft: median", "mean", "99th percentile"]
        cells: list[list[Cell]] = []
        for row in rows:
            if row["experiment"] == experiment:
                step = row.get("microseconds a step", {})
                times = [row.get("microseconds a token"), *(step.get(part) for part in ("median", "mean", "p99"))]
                shown = [None if time is None else microseconds(time) for time in times]
                cells.append([name(row), f"{row['M']:.2f}", *shown])
        return Table(title, header, cells)

    return [
        table("By size of the datastore", "tokens", "size", lambda row: f"{row['datastore']}, {row['tokens in it']:,}"),
        table(
            "By selection", "continuations", "selection", lambda row: f"{row['continuations']}, {row['nodes']} nodes"
        ),
        table("By longest suffix", "tokens", "suffix", lambda row: str(row["longest suffix"])),
    ]


def _knows(row: Mapping[str, Any]) -> str:
    learns = row["drafting"] != "session"
    return {
        "nothing": "earlier outputs of the replay" if learns else "nothing",
        "outputs": "recorded outputs" + (" and earlier ones" if learns else ""),
        "outputs and tokens": "the same and a million tokens",
        "everything": "all datastores and recycled logits",
    }.get(row["knows"], str(row["knows"]))


def _decimals(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
