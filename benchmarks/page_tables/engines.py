"""The tables of drafts in engines: ahead of the text, beside heads, on a modelled GPU."""

from __future__ import annotations

from typing import Any

from page_tables.table import SESSION, digits, find, markdown, results


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
        f"`{SESSION}`, history alone",
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


def sglang() -> str:
    """M in SGLang's engine."""
    trees, chains, *lookups = (digits(row["M"]) for row in results("sglang")["rows"])
    table_rows = [
        ["`REST_STORE`, trees", trees],
        ["`REST_STORE`, chains", chains],
        ["`NGRAM`, 15, 8 or 4 of its draft tokens from the corpus", ", ".join(lookups)],
    ]
    return markdown(["drafts", "M"], table_rows)
