"""Suffix decoding of arctic-inference (arXiv 2411.04975) in the protocol of `rest-store bench live`.

PYTHON is an interpreter with arctic-inference, as for `bench_peers.py`. Its cache holds the outputs of the recordings
before the one that is replayed, or of all other tasks, and gets the prompt of the request. Its settings are the best
ones on the recordings for fitting. Beside it, at equal nodes: sessions with prompt lookup and a live datastore alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from against_suffix_decoding import BEST, BUDGETS, DEPTH, ask
from peer_process import PeerProcess

from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, every_option, recordings_option, result_options
from rest_store.bench.recordings import FIT_PARTS, Recording, encoder, read_recordings
from rest_store.bench.remembering import among_others, in_turn, new_live_datastore
from rest_store.bench.replay import Outcome, replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup
from rest_store.options import PATH, SETTINGS

ORDERS = {"those before it": in_turn, "all of other tasks": among_others}


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_live_peers.py --peers peers/bin/python --recordings traces.jsonl.gz "
    "--datastore python.ds",
)
@recordings_option()
@click.option("--datastore", metavar="DIR", type=PATH, required=True, help="Whose tokenizer the tokens are from.")
@click.option("--peers", metavar="PYTHON", required=True, help="Interpreter with arctic-inference.")
@every_option
@result_options
def main(recordings: tuple[Path, ...], datastore: Path, peers: str, every: int, out: Destination) -> None:
    store = Datastore.open(datastore)
    encode = encoder(store, None)
    chosen = [recording for path in recordings for recording in read_recordings(path, encode)][::every]
    rows: list[dict[str, Any]] = []
    with PeerProcess(peers, "peer_arctic.py") as peer:
        for remembered in ORDERS:
            for nodes in BUDGETS:
                theirs = suffix_decoding(peer, chosen, remembered, nodes)
                with new_live_datastore(store.tokenizer) as live:
                    order = (recording for recording, _ in ORDERS[remembered](chosen, live, is_reported))
                    ours = replay(order, [PromptLookup(), live], Calibration.default(), max_nodes=nodes)
                for drafting, outcome in (("suffix decoding", theirs), ("session", ours)):
                    row = {"drafting": drafting, "remembered": remembered, "nodes": nodes, **outcome.as_json()}
                    del row["promised"], row["calibration_error"]
                    rows.append(row)
                    print(f"{drafting:<16} {remembered:<20} {nodes:>3} nodes  M {row['M']:.3f}", flush=True)
    results = {"best settings": BEST, "reported": sum(map(is_reported, chosen)), "rows": rows}
    write_result(out, "live_peers", click.get_current_context().params, ("numpy",), results)


def is_reported(recording: Recording) -> bool:
    return recording.part >= FIT_PARTS and recording.output.size > 0


def suffix_decoding(peer: PeerProcess, recordings: Sequence[Recording], remembered: str, nodes: int) -> Outcome:
    """Replay the recordings for reporting with arctic-inference's cache."""
    outcome = Outcome()
    tasks = [recording.key or recording.prompt.tobytes() for recording in recordings]
    peer.ask("new_cache", cache="live", outputs=[], depth=DEPTH)
    for number, recording in enumerate(recordings):
        if remembered == "all of other tasks":
            if not is_reported(recording):
                continue
            others = [one.output.tolist() for one, task in zip(recordings, tasks, strict=True) if task != tasks[number]]
            peer.ask("new_cache", cache="live", outputs=others, depth=DEPTH)
        answer = ask(peer, "live", recording, number, BEST[nodes], nodes)
        if is_reported(recording):
            outcome.add(recording.family, recording.output.size, answer["steps"])
    return outcome


if __name__ == "__main__":
    main()
