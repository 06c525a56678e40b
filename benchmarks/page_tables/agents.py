"""The tables of agents' runs, and of memory that tenants share."""

from __future__ import annotations

from typing import Any

from page_tables.table import SESSION, digits, find, markdown, results


def agents() -> str:
    """M on an agent's traces by the text that is known."""
    shown = {
        "prompt lookup, 3-gram, 10 tokens": "prompt lookup, 3-gram",
        "suffix decoding": "suffix decoding",
        f"`{SESSION}`, history alone": "session",
        f"`{SESSION}`, history and corpora": "session, corpora",
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

    shares = find(ranking, knows=known, drafting="session", nodes=16)
    best = shares["proposed"]
    first = shares["ranked first"]
    shown = {
        "nothing known": (session("nothing"), "peers_agents"),
        "two runs of 35 other tasks": (session("others.jsonl"), "peers_agents"),
        "two runs of the same tasks, too": (session(known), "peers_agents"),
        "these, and corpora": (session(known, "session, corpora"), "peers_agents"),
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


def shared_history() -> str:
    """M on traces by the number of tasks that have to write a text before others draft from it."""
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


def attacked_history() -> str:
    """Tokens a step of streamed answers, and the guesses that they allow about other tenants."""
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
        for history, remembered in (("none", "nothing"), ("earlier runs", "earlier_all.jsonl")):
            means = [
                find(known, context=context, remembered=remembered)["M"] for context in contexts
            ]
            changes = [f"{digits(mean)} ({mean / means[0] - 1:+.1%})" for mean in means[1:]]
            table_rows.append([label, history, digits(means[0]), *changes])
    return markdown(
        ["runs", "history", "whole prompts", "compacted", "compacted, with an archive"], table_rows
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
    return markdown(["M at 16 / 48 nodes, no history", "no corpora", "corpora"], table_rows)


def other_texts_in_history() -> str:
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
