"""The tables of measured speed."""

from __future__ import annotations

import statistics
from typing import Any

from page_tables.table import LOOKUP, SESSION, digits, markdown, results

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
STRUCTURED_WITH_MEMORY = (
    "grammar, prompt lookup and logits; choices and logits kept from request to request"
)


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
