"""The tables of architectures, recurrent state and structured output."""

from __future__ import annotations

import json

from page_tables.table import RESULTS, digits, markdown, results


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
