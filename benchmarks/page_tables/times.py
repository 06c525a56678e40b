"""The tables of the times of drafts and live datastores."""

from __future__ import annotations

from page_tables.table import digits, markdown, results


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
