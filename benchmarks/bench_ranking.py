"""How far ranking alone could raise M: the tokens that sessions propose, and M of an oracle.

Outputs are replayed token by token. Before each token a session drafts, and the token is among the
candidates of its place (proposed), is the likeliest of them (ranked first), or neither. An oracle
drafts the tokens of the output as long as the sources propose them, up to the budget of nodes: no
ranking of the same candidates has a greater M. Chains of the tokens that are ranked first are
reported beside it. Both place each token after the true text, and never after a wrong token.

Sessions know nothing at first, or the outputs of the recordings of --history-from, and the outputs
that were replayed before, in a live datastore.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from rest_store.bench.measurement_options import (
    Destination,
    datastores_option,
    every_option,
    history_from_option,
    recordings_option,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recorded_history import in_turn, new_live_datastore
from rest_store.bench.recordings import (
    Recording,
    read_all,
    remembered,
    tokenizer_identity,
    unfitted,
)
from rest_store.bench.replay import fresh, known_top_k
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS, max_nodes_option
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.live.open_store import open_datastores

Flags = npt.NDArray[np.bool_]


class Ranks(NamedTuple):
    """The ranks of an output's tokens among the candidates of their places.

    Attributes:
        proposed: bool[tokens]: whether each is among them.
        first: bool[tokens]: whether each is the likeliest of them.
    """

    proposed: Flags
    first: Flags


def ranks(recording: Recording, sources: Sequence[object], calibration: Calibration) -> Ranks:
    """Replay one recording token by token."""
    text = np.concatenate([recording.prompt, recording.output])
    begin = recording.prompt.size
    proposed, first = np.zeros((2, recording.output.size), np.bool_)
    with DraftSession(sources, recording.prompt, calibration=calibration) as session:
        session.record_candidates(True)
        for place in range(recording.output.size):
            end = begin + place + 1
            tree = session.draft(1)
            first[place] = bool(len(tree)) and int(tree.tokens[0]) == int(text[end - 1])
            known = max(0, begin - 1) if place == 0 else end - 2
            session.accept(text[end - 1 : end], known_top_k(recording.top_k, known, end))
            labels = session.recorded_candidates()[1]
            proposed[place] = any(labels)
    return Ranks(proposed, first)


def steps(is_drafted: Flags, max_nodes: int) -> int:
    """Return the target forward passes for an output.

    Args:
        is_drafted: for each token, whether a draft that has reached it holds it.
        max_nodes: budget of a step; one more token comes from the pass itself.
    """
    passes = position = 0
    while position < is_drafted.size:
        rest = is_drafted[position : position + max_nodes]
        missing = np.flatnonzero(~rest)
        position += (int(missing[0]) if missing.size else rest.size) + 1
        passes += 1
    return passes


def figures(ranked: Iterable[Ranks], budgets: Sequence[int]) -> list[dict[str, Any]]:
    """Return the shares and both M, for each budget of nodes."""
    known = list(ranked)
    tokens = sum(one.proposed.size for one in known)
    rows = []
    for nodes in budgets:
        oracle = sum(steps(one.proposed, nodes) for one in known)
        chains = sum(steps(one.first, nodes) for one in known)
        row = {
            "nodes": nodes,
            "tokens": tokens,
            "proposed": round(sum(int(one.proposed.sum()) for one in known) / tokens, 4),
            "ranked first": round(sum(int(one.first.sum()) for one in known) / tokens, 4),
            "M of an oracle": round(tokens / oracle, 4),
            "M of the first": round(tokens / chains, 4),
        }
        rows.append(row)
    return rows


def ranks_in_turn(
    recordings: Sequence[Recording],
    known: Sequence[Recording],
    tokenizer: TokenizerIdentity,
    sources: Sequence[object],
) -> list[Ranks]:
    """Return the ranks of all recordings, each beside those before it and the `known` ones."""
    calibration = Calibration.default()
    ranks_of_all = []
    with new_live_datastore(tokenizer) as live:
        own = [*fresh(sources), live]
        for one, before in in_turn([*known, *recordings], live):
            if len(before) >= len(known) and one.output.size:
                ranks_of_all.append(ranks(one, own, calibration))
    return ranks_of_all


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_ranking.py --recordings traces.jsonl.gz --history-from"
        " earlier.jsonl --tokenizer MODEL"
    ),
)
@recordings_option()
@history_from_option
@datastores_option
@tokenizer_option
@max_nodes_option((16, 64), multiple=True)
@every_option
@result_options
def main(
    recordings: tuple[Path, ...],
    history_from: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    max_nodes: tuple[int, ...],
    every: int,
    out: Destination,
) -> None:
    stores = open_datastores(datastores)
    identity = tokenizer_identity(stores, tokenizer)
    replayed = unfitted(
        read_all(recordings, stores, tokenizer)[::every], Calibration.default(), "bench_ranking.py"
    )
    local: list[object] = [PromptLookup()]
    if any(one.top_k.size for one in replayed):
        local.append(RecycledLogits())
    sources_by_name = {"session": local}
    if stores:
        sources_by_name["session, corpora"] = [*local, *stores.values()]
    histories = {"nothing": [], **remembered(history_from, replayed, stores, tokenizer)}
    table_rows: list[dict[str, Any]] = []
    for knows, known in histories.items():
        for name, sources in sources_by_name.items():
            ranked = ranks_in_turn(replayed, known, identity, sources)
            for row in figures(ranked, max_nodes):
                table_rows.append({"knows": knows, "drafting": name, **row})
                shown = ", ".join(f"{key} {value}" for key, value in table_rows[-1].items())
                click.echo(shown)
    write_result(out, "ranking", click.get_current_context().params, ("numpy",), table_rows)


if __name__ == "__main__":
    main()
