"""Tables of figures in Markdown files, filled from results between markers, so that they stay up to date.

A table stands between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``; `TABLES` has the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from rest_store.bench.exhibits import Table, shown
from rest_store.bench.results import Result
from rest_store.bench.tables import (
    batches_table,
    curves_table,
    decodings_table,
    drafting_table,
    infini_gram_table,
    live_table,
    paper_tables,
    query_table,
    service_table,
    sessions_at_once_table,
    sessions_table,
    short_answers_table,
    sizes_table,
    speed_table,
    suffix_decoding_table,
    typical_table,
    vllm_decoding_table,
    vllm_table,
)
from rest_store.errors import ResultsError, describe

_PLACE = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
_REPLAYED = {
    "quality_traces": "outputs of SmolLM2-135M (code, chat, Spec-Bench)",
    "quality_answers": "answers of 7B-13B models",
}


def filled(text: str, results: Mapping[str, Result], where: Path | str = "Markdown") -> str:
    """Return `text` with every marked table made from `results`.

    Args:
        text: Markdown.
        results: by name.
        where: the file, for messages.

    Raises:
        ResultsError: a table is unknown, or its results are missing.
    """

    def fill(place: re.Match[str]) -> str:
        begin, name, end = place.groups()
        if name not in TABLES:
            raise ResultsError(describe(where, "table", name, "one of " + ", ".join(TABLES)))
        try:
            table = TABLES[name](results)
        except KeyError as error:
            raise ResultsError(describe(where, f"the result {error} of the table {name}", "absent", "it")) from error
        return f"{begin}\n{as_markdown(table)}\n{end}"

    return _PLACE.sub(fill, text)


def as_markdown(table: Table) -> str:
    """Return a table's header and rows as Markdown, without padding."""
    rows = [table.header, ["---"] * len(table.header), *([shown(cell) for cell in row] for row in table.rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _drafting(results: Mapping[str, Result]) -> Table:
    return drafting_table({label: results[name].figures for name, label in _REPLAYED.items()})


def _decodings(results: Mapping[str, Result]) -> Table:
    return decodings_table({name: results[f"speed_{name}"].figures for name in ("greedy", "nucleus")})


def _curves(results: Mapping[str, Result]) -> Table:
    measured = {label: results[name].figures for name, label in _REPLAYED.items()}
    return curves_table({label: figures for label, figures in measured.items() if figures.get("curves")})


def _sizes(results: Mapping[str, Result]) -> Table:
    (beyond,) = results["query_larger_than_memory"].figures["sizes"]
    return sizes_table(results["query"].figures["sizes"], beyond)


def _paper(results: Mapping[str, Result]) -> Table:
    """Return the paper's three tables as one, without the times of single drafts."""
    kinds = ("datastore", "continuations", "longest suffix")
    tables = paper_tables(results["paper"].figures)
    rows = [[f"{kind}: {row[0]}", *row[1:3]] for kind, table in zip(kinds, tables, strict=True) for row in table.rows]
    return Table("REST's rule", ["what varies", *tables[0].header[1:3]], rows)


TABLES: dict[str, Callable[[Mapping[str, Result]], Table]] = {
    "drafting": _drafting,
    "curves": _curves,
    "speed": lambda results: speed_table(results["speed"].figures),
    "speed-packed": lambda results: speed_table(results["speed_packed"].figures),
    "speed-decoding": _decodings,
    "speed-turns": lambda results: speed_table(results["speed_turns"].figures),
    "short-answers": lambda results: short_answers_table(results["short_answers"].figures),
    "queries": lambda results: query_table(results["query"].figures),
    "sizes": _sizes,
    "service": lambda results: service_table(results["service"].figures),
    "sessions": lambda results: sessions_table(results["service"].figures["sessions"]),
    "sessions-at-once": lambda results: sessions_at_once_table(results["service"].figures["sessions"]),
    "batches": lambda results: batches_table(results["batches"].figures),
    "paper": _paper,
    "infini-gram": lambda results: infini_gram_table(results["peers_infini_gram"].figures["infini-gram"]),
    "live": lambda results: live_table(results["live_traces"].figures),
    "suffix-decoding": lambda results: suffix_decoding_table(
        results["peers_suffix_decoding"].figures["suffix decoding"]
    ),
    "typical": lambda results: typical_table(results["typical"].figures),
    "vllm": lambda results: vllm_table(results["vllm"].figures),
    "vllm-decoding": lambda results: vllm_decoding_table(results["vllm"].figures),
}
