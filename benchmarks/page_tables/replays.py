"""The tables of tokens per pass in replays, by rule, source, number of nodes and history."""

from __future__ import annotations

from page_tables.table import SESSION, digits, find, markdown, results


def tokens_per_pass() -> str:
    """M of replays by rule."""
    trace_run = results("quality_traces")
    answer_run = results("quality_answers")
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
            for run in (trace_run, answer_run)
        ]
        table_rows.append([label, str(nodes), *map(digits, means)])
    traces = f"SmolLM2-135M, {trace_run['reported']} outputs"
    answers = f"7B to 13B models, {answer_run['reported']} answers"
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


def history() -> str:
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
    for sources, datastores in (("history alone", False), ("history and corpora", True)):
        for shape in ("tree", "chain"):
            rows = [
                row
                for row in again
                if row["datastores"] == datastores and row.get("shape", "tree") == shape
            ]
            means = [digits(find(rows, nodes=nodes)["M"]) for nodes in budgets]
            table_rows.append([f"{sources}, {shape}s", *means])
    return markdown(["sources", *(f"{nodes} nodes" for nodes in budgets)], table_rows)


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
        f"`{SESSION}`, history alone": "session",
        f"`{SESSION}`, history and recycled logits": "session, recycled logits",
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
