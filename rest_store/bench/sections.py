"""The section of a report for each kind of result, as tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rest_store.bench.any_figures import any_exhibits
from rest_store.bench.exhibits import Bars, Cell, Exhibit, Lines, Section, Table
from rest_store.bench.results import Result
from rest_store.bench.tables import (
    DRAFTED,
    FAMILIES,
    VLLM,
    batches_table,
    drafting_table,
    in_order,
    infini_gram_table,
    live_table,
    paper_tables,
    query_table,
    service_table,
    sessions_at_once_table,
    sessions_table,
    sizes_table,
    speed_table,
    suffix_decoding_table,
    typical_table,
    vllm_decoding_table,
    vllm_table,
)

_CURVES = {
    "nodes": ("M against nodes of a step", "nodes", "x"),
    "size": ("M against the size of the datastores", "relative size", "x"),
    "suffix": ("M against the longest suffix", "longest suffix, tokens", "x"),
}


def section_of(result: Result) -> Section:
    """Return the section of `result`; figures of an unknown kind or shape are listed as they are."""
    title, about, show = _KINDS.get(result.kind, (result.kind.replace("_", " ").capitalize(), "", any_exhibits))
    try:
        exhibits = show(result.figures)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, StopIteration):
        exhibits = any_exhibits(result.figures)
    variant = result.name.removeprefix(result.kind).lstrip("_")
    title = f"{title}: {variant.replace('_', ' ')}" if variant else title
    return Section(title, about, sample_of(result), exhibits, result.arguments, result.facts)


def sample_of(result: Result) -> str:
    """Return what `result` was measured on, such as "81 recordings, 9,936 tokens"; empty if it does not say."""
    figures = result.figures if isinstance(result.figures, Mapping) else {}
    parts = [figures, *(part for part in figures.values() if isinstance(part, Mapping)), _numbers(result.arguments)]
    for key, noun in _SAMPLES.items():
        for part in parts:
            number = len(part[key]) if isinstance(part.get(key), list) else part.get(key)
            if isinstance(number, int) and number:
                rows = part.get("rows")
                tokens = rows[0].get("tokens") if isinstance(rows, list) and rows and isinstance(rows[0], dict) else 0
                counted = f"{number:,} {noun}{'' if number == 1 else 's'}"
                return f"{counted}, {tokens:,} tokens" if isinstance(tokens, int) and tokens else counted
    return ""


_SAMPLES = {
    "reported": "recording",
    "contexts": "context",
    "prompts": "prompt",
    "recordings": "recording",
    "requests": "request",
}


def _numbers(arguments: Mapping[str, str]) -> dict[str, int]:
    return {name: int(value) for name, value in arguments.items() if value.isdecimal() and len(value) < 20}


_QUERY_RATIOS = [  # part of the results, figure in it, and its name
    ("batch of 64", "median", "single call / context of a batch of 64, medians"),
    ("batch of 64", "mean", "single call / context of a batch of 64, means"),
    ("two threads", "single calls, ratio", "two threads / one, single calls"),
    ("two threads", "batches of 64, ratio", "two threads / one, batches of 64"),
]


def _query(figures: Mapping[str, Any]) -> list[Exhibit]:
    exhibits: list[Exhibit] = [query_table(figures)]
    sizes = figures.get("sizes") or []
    if sizes:
        exhibits.append(sizes_table(sizes))
    if len(sizes) > 1:
        parts = [(f"{kind}, {part}", kind, part) for kind in ("warm", "cold") for part in ("median", "mean")]
        lines = {
            name: [(float(size["tokens"]), float(size[kind][part])) for size in sizes] for name, kind, part in parts
        }
        title = "Time of a draft against the size of the datastore"
        exhibits.append(Lines(title, "tokens", "microseconds", lines, logarithmic="xy"))
    rows: list[list[Cell]] = []
    for part, key, what in _QUERY_RATIOS:
        if key in figures.get(part, {}):
            rows.append([what, float(figures[part][key])])
    for shards, cost in figures.get("open", {}).items():
        rows.append([f"opening {shards} shards, milliseconds", float(cost["milliseconds"])])
        rows.append([f"opening {shards} shards, MB of memory", cost["resident_bytes"] / 1e6])
    exhibits.append(Table("Batches, threads, opening", ["", "figure"], rows))
    return exhibits


def _service(figures: Mapping[str, Any]) -> list[Exhibit]:
    load = figures["load"]
    kinds = [name for name in figures if name.endswith(("TCP", "Unix"))]
    together = [name for name in figures if "clients, " in name]
    rows: list[list[Cell]] = [
        [name, *(figures[name].get(what) for what in ("echo", "service", "share"))] for name in together
    ]
    callers = [name.removesuffix(" median us") for name in figures[kinds[0]] if name.endswith(" median us")]
    medians = {who: [figures[kind].get(f"{who} median us") for kind in kinds] for who in callers}
    latencies = {
        f"{who}, {part}": [(row["offered"], row[f"{part} us"] / 1e3) for row in load[who]]
        for who in load
        for part in ("median", "p99")
    }
    sessions = figures.get("sessions", {})
    batches: list[list[Cell]] = [[name, float(value)] for name, value in figures.get("batches", {}).items()]
    return [
        *([sessions_table(sessions), sessions_at_once_table(sessions)] if sessions else []),
        service_table(figures),
        Bars("One client", "median microseconds", kinds, medians),
        Table("Many clients at once", ["", "echo, a second", "service, a second", "share"], rows),
        Table("Batches of 256 contexts", ["", "contexts a second"], batches),
        Lines("Latency against offered load", "requests offered a second", "milliseconds", latencies, logarithmic="y"),
    ]


def _quality(figures: Mapping[str, Any]) -> list[Exhibit]:
    rows = figures["rows"]
    families = sorted(rows[0]["families"], key=lambda name: [*FAMILIES, name].index(name))
    shown = [row for row in rows if not row["drafting"].startswith(("session,", "session without"))]
    series = {
        f"{row['drafting']}, {row['nodes']} nodes": [row["families"].get(family) for family in families]
        for row in shown
    }
    names = [FAMILIES.get(name, name) for name in families]
    if len(families) == 1:
        names, series = list(series), {"M": [row["M"] for row in shown]}
    exhibits: list[Exhibit] = [
        drafting_table({"M": figures}),
        Bars("M by family" if len(families) > 1 else "M", "M", names, series, origin=1.0),
        *_brought(rows),
    ]
    for name, points in figures.get("curves", {}).items():
        title, across, scale = _CURVES.get(name, (f"M against {name}", name, ""))
        if len(points) > 1:
            exhibits.append(Lines(title, across, "M", {"session": _pairs(points)}, scale, origin=1.0))
    return [*exhibits, *_reliability(rows)]


def _brought(rows: Sequence[Mapping[str, Any]]) -> list[Exhibit]:
    """Return what each source brings, if it was left out and tried alone."""
    measured = {(row["drafting"], row["nodes"]): row["M"] for row in rows}
    sources = dict.fromkeys(
        row["drafting"].removeprefix("session without ") for row in rows if "session without " in row["drafting"]
    )
    budgets = sorted({row["nodes"] for row in rows if row["drafting"] == "session"})
    cells: list[list[Cell]] = []
    for name in sources:
        of_source: list[Cell] = [name]
        for nodes in budgets:
            alone, without = measured.get((f"session, {name} alone", nodes)), measured[f"session without {name}", nodes]
            of_source += [alone, without, f"{measured['session', nodes] - without:+.2f}"]
        cells.append(of_source)
    header = ["source"]
    for nodes in budgets:
        header += [f"M of it alone, {nodes} nodes", "M without it", "it brings"]
    note = "What a source brings is what the session loses without it; sources that know the same bring less."
    return [Table("What each source brings", header, cells, note)] if cells else []


def _pairs(points: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in points]


def _reliability(rows: Sequence[Mapping[str, Any]]) -> list[Exhibit]:
    lines = {}
    for row in rows:
        if "reliability" in row:
            nodes, promised, accepted = row["reliability"]
            there = [place for place, count in enumerate(nodes) if count]
            points = [(promised[place] / nodes[place], accepted[place] / nodes[place]) for place in there]
            lines[f"{row['nodes']} nodes"] = points
    if not lines:
        return []
    exact = {"as promised": [(0.0, 0.0), (1.0, 1.0)]}
    return [Lines("How often draft tokens are accepted", "score of a draft token", "accepted", {**exact, **lines})]


def _speed(figures: Mapping[str, Any]) -> list[Exhibit]:
    families = figures["families"]
    methods = [name for name in families["all"] if name != "plain"]
    rows: list[list[Cell]] = [
        [
            DRAFTED.get(name, name).replace("`", ""),
            figures["speedup"],
            figures["median_speedup"],
            figures["mean_tokens"],
            figures["tokens_per_second"],
            f"{100 * figures['identical']:.1f} %",
        ]
        for name, figures in families["all"].items()
    ]
    header = ["", "speed", "median over prompts", "M", "tokens a second", "the plain text"]
    order = in_order(families)
    labels = [FAMILIES.get(name, "all prompts" if name == "all" else name) for name in order]
    if len(order) == 2:  # one family, which is all
        order, labels = ["all"], ["all prompts"]
    bars = {
        DRAFTED.get(name, name).replace("`", ""): [families[family][name]["speedup"] for family in order]
        for name in methods
    }
    exhibits: list[Exhibit] = [
        Table("Speed relative to plain generation", header, rows),
        Bars("Speed" + " by family" * (len(order) > 1), "times plain generation", labels, bars, origin=1.0),
    ]
    if len(order) > 1:
        table = speed_table(figures)
        exhibits.append(Table("Speed and M by family", table.header, table.rows[:-1], "Speed, and M in brackets."))
    return exhibits


def _build(figures: Sequence[Mapping[str, Any]]) -> list[Exhibit]:
    stages = [name for name in figures[0]["tokens_per_second"] if name != "all"]
    rows: list[list[Cell]] = [
        [
            f"{' then '.join(build['encoders'])}{_allocator(build)}, shards: {build['shard_tokens']}, "
            f"processes: {build.get('workers', 1)}",
            build["shards"],
            build["tokens"],
            build["tokens_per_second"]["all"] / 1e6,
            *(build["tokens_per_second"][stage] / 1e6 for stage in stages),
            build["peak_memory"] / 2**20,
            build["bytes_per_token"],
            build.get("of_tokenizers"),
        ]
        for build in figures
    ]
    header = [
        "",
        "shards",
        "tokens",
        "million a second",
        *stages,
        "peak MiB",
        "bytes a token",
        "of tokenizers' own rate",
    ]
    return [Table("From files to a datastore", header, rows, "Stages in million tokens a second, each by itself.")]


def _allocator(build: Mapping[str, Any]) -> str:
    return f" with {build['allocator']}" if "allocator" in build else ""


def _peers(figures: Mapping[str, Any]) -> list[Exhibit]:
    exhibits: list[Exhibit] = []
    if "infini-gram" in figures:
        exhibits.append(infini_gram_table(figures["infini-gram"]))
    if "suffix decoding" in figures:
        decoding = figures["suffix decoding"]
        exhibits.append(suffix_decoding_table(decoding))
        families = list(decoding["rows"][0]["families"])
        bars = {
            f"{row['drafting']}, {row['knows']}": [row["families"][family] for family in families]
            for row in decoding["rows"]
            if row["nodes"] == 16 and row["knows"] in ("outputs", "everything") and "defaults" not in row["drafting"]
        }
        labels = [FAMILIES.get(family, family) for family in families]
        exhibits.append(Bars("M by family, 16 nodes", "M", labels, bars, 1.0))
    return exhibits


def _live(figures: Mapping[str, Any]) -> list[Exhibit]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in figures["rows"]:
        name = f"{row['nodes']} nodes, {'datastores' if row['datastores'] else 'no datastores'}"
        for part in row.get("curve", ()):
            curves.setdefault(name, []).append((float(part["remembered"]), part["M"] / part["M without"]))
    title = "M by tokens remembered, relative to M of the same recordings without"
    return [live_table(figures), Lines(title, "tokens remembered", "M, relative", curves, origin=1.0)]


def _vllm(figures: Mapping[str, Any]) -> list[Exhibit]:
    batches = figures["batches"]
    ways = list(next(iter(batches.values())))
    speeds = {VLLM.get(way, way): [part[way]["of none"] for part in batches.values()] for way in ways if way != "none"}
    shares: list[list[Cell]] = [
        [VLLM.get(way, way), *(f"{100 * part[way]['share of propose']:.1f} %" for part in batches.values())]
        for way in ways
        if way != "none"
    ]
    categories = [f"{batch} at once" for batch in batches]
    decoding = (
        [vllm_decoding_table(figures)]
        if all("decoding" in row for row in next(iter(batches.values())).values())
        else []
    )
    return [
        vllm_table(figures),
        *decoding,
        Bars("Speed by rows at once", "times no drafts", categories, speeds, origin=1.0),
        *_vllm_against("an empty drafter", "of empty", figures),
        *_vllm_against("suffix decoding, cold or warm as it is", "of suffix", figures),
        Table("Share of time in `propose`", ["drafting", *categories], shares),
    ]


def _vllm_against(other: str, key: str, figures: Mapping[str, Any]) -> list[Exhibit]:
    """Return the table of speeds relative to another way; none if that was not measured."""
    parts = {"": figures["batches"], "nothing to draft; ": figures["nothing to draft"]}
    rows: list[list[Cell]] = [
        [name + VLLM.get(way, way), *cells]
        for name, part in parts.items()
        for way in next(iter(part.values()))
        if any(cells := [batch[way].get(key) for batch in part.values()])
    ]
    header = ["drafting", *(f"{batch} at once" for batch in figures["batches"])]
    return [Table(f"Speed relative to {other}", header, rows)] if rows else []


def _paper(figures: Mapping[str, Any]) -> list[Exhibit]:
    rows = figures["rows"]
    exhibits: list[Exhibit] = [*paper_tables(figures)]
    sizes = [(float(row["tokens in it"]), row["M"]) for row in rows if row["experiment"] == "size"]
    suffixes = [(float(row["longest suffix"]), row["M"]) for row in rows if row["experiment"] == "suffix"]
    if len(sizes) > 1:
        exhibits.append(Lines("M against the size of the datastore", "tokens", "M", {"REST's rule": sizes}, "x", 1.0))
    title = "M against the longest suffix"
    exhibits.append(Lines(title, "longest suffix, tokens", "M", {"REST's rule": suffixes}, origin=1.0))
    return exhibits


_Show = Callable[[Any], list[Exhibit]]
_KINDS: dict[str, tuple[str, str, _Show]] = {
    "speed": (
        "Generation",
        "The same prompts continued by each method in turn, on one model. Speed is relative to plain generation.",
        _speed,
    ),
    "quality": (
        "Drafts",
        "Replayed recordings: tokens per forward pass of the session, of its parts, and of known rules.",
        _quality,
    ),
    "live": (
        "Remembering",
        "Replayed recordings: tokens per forward pass while a live datastore holds outputs of other recordings.",
        _live,
    ),
    "paper": (
        "REST's experiments",
        "The paper's tables with its own rule, 64 nodes, by replay: pages in memory, trees not in the cache.",
        _paper,
    ),
    "vllm": (
        "vLLM",
        "The same prompts answered by vLLM with each way of drafting in turn.",
        _vllm,
    ),
    "typical": (
        "Typical acceptance",
        "Exact sampling and typical acceptance: speed, and how far the texts are from the model's distribution.",
        lambda figures: [typical_table(figures)],
    ),
    "query": ("Queries", "What a draft costs through the Python API, for contexts of recorded outputs.", _query),
    "service": (
        "Service",
        "What sessions and single drafts cost through the service, beside a gRPC echo of the same messages.",
        _service,
    ),
    "batches": (
        "Batches through the service",
        "Sessions drafted together: on one stream, on streams of their own, and in process.",
        lambda figures: [batches_table(figures)],
    ),
    "peers": ("Peers", "Other engines, from their published packages, on the same tokens and recordings.", _peers),
    "build": ("Building", "Whole builds with a real tokenizer, each in a process of its own.", _build),
    "suffix_sort": ("Suffix sorting", "The suffixes of one shard, sorted in several packings.", any_exhibits),
}
ORDER = tuple(_KINDS)
