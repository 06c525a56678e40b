"""Write the tables of figures in README.md and docs/ from benchmarks/results/: `make docs-tables`.

A page marks the place of a table by two comments:

    <!-- table: speed -->
    <!-- end of table -->

Everything between them is replaced. Each function of `TABLES` makes one table from the results that
the benchmark's command wrote; the functions are in the modules of `benchmarks/page_tables/`.
`--check` writes nothing and exits with status 1 if a page differs from its results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from page_tables import agents, engines, models, replays, rollouts, speed, times
from page_tables.table import ROOT

PAGES = ("README.md", "docs")
_MARKED = re.compile(
    r"(?P<begin><!-- table: (?P<name>[a-z0-9-]+) -->\n).*?(?P<end><!-- end of table -->)", re.DOTALL
)

TABLES: dict[str, Callable[[], str]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        speed.speed,
        speed.speed_by_family,
        speed.speed_by_setting,
        replays.tokens_per_pass,
        replays.sources_alone,
        replays.tokens_per_pass_by_nodes,
        replays.history,
        replays.again,
        times.draft_time,
        engines.heads,
        engines.lag,
        engines.lag_times,
        times.live_times,
        times.additions,
        times.replicas,
        times.service,
        times.service_at_once,
        engines.modelled_speed,
        engines.batches,
        rollouts.rollouts,
        rollouts.rollouts_replayed,
        engines.few_nodes,
        agents.agents,
        agents.agent_means,
        agents.shared_history,
        agents.attacked_history,
        agents.compaction,
        agents.references,
        agents.other_texts_in_history,
        replays.peers,
        models.structured,
        models.recurrent,
        times.threads,
        models.architectures_by_release,
        models.architectures,
        engines.sglang,
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
