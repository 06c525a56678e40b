"""Suffix decoding of arctic-inference against draft sessions: tokens and microseconds a step, in the same replays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_process import PeerProcess
from timing import percentiles

from rest_store.bench.datastores import documents_of, write_datastore
from rest_store.bench.recordings import Recording, split
from rest_store.bench.replay import Outcome, replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits

DEPTH = 64  # of its trees, as documented
BUDGETS = (16, 64)
DEFAULTS = {"max_spec_factor": 1.0, "min_token_prob": 0.1, "use_tree_spec": False}
# By budget: the best on the recordings for fitting, of chains and trees, factors 1 to 64, probabilities 0.1 and 0.
BEST = {
    nodes: {"max_spec_factor": factor, "min_token_prob": 0.0, "use_tree_spec": True}
    for nodes, factor in ((16, 16.0), (64, 64.0))
}
Settings = dict[str, Any]
Ways = dict[str, tuple[int, Settings | None]]  # nodes and settings by name; no settings: a session


def compare_suffix_decoding(
    recordings: Sequence[Recording],
    stores: Sequence[Datastore],
    *,
    peers: str,
    work: Path,
    cache_tokens: int,
) -> dict[str, Any]:
    """Replay held-out recordings with suffix decoding and with sessions, in turns.

    Args:
        recordings: all of them.
        stores: datastores of the sessions; the tokens of the cache come from the last one.
        peers: interpreter in whose environment arctic-inference is installed.
        work: folder for datastores of the caches' content.
        cache_tokens: tokens of the last datastore in the largest cache.
    """
    fitting, held_out = split(recordings, "bench_peers.py")
    last = stores[-1]
    outputs = [recording.output for recording in fitting]
    documents = [*outputs, *documents_of(last, min(cache_tokens, last.manifest.token_count))]
    small = Datastore.open(write_datastore(last, work / "outputs", outputs))
    large = Datastore.open(write_datastore(last, work / "outputs-and-tokens", documents))
    contents: dict[str, tuple[Sequence[Any], list[object]]] = {
        "nothing": ([], []),
        "outputs": (outputs, [small]),
        "outputs and tokens": (documents, [large]),
    }
    with PeerProcess(peers, "peer_arctic.py") as peer:
        sessions: Ways = {f"session, {nodes}": (nodes, None) for nodes in BUDGETS}
        ways: Ways = {f"suffix decoding, defaults, {nodes}": (nodes, DEFAULTS) for nodes in BUDGETS}
        ways |= {f"suffix decoding, best settings, {nodes}": (nodes, BEST[nodes]) for nodes in BUDGETS}
        result: dict[str, Any] = {"best settings": BEST, "reported": len(held_out), "caches": {}}
        rows: list[dict[str, Any]] = []
        for content, (texts, sources) in contents.items():
            for way in ways:
                cache = peer.ask("new_cache", cache=way, outputs=[text.tolist() for text in texts], depth=DEPTH)
            cache["tokens"] = sum(len(text) for text in texts)
            result["version"] = cache.pop("version")
            result["caches"][content] = cache
            print(f"cache of {content}: {cache['tokens']:,} tokens, {cache['bytes'] / 1e6:.0f} MB", flush=True)
            rows += replay_in_turns(peer, held_out, content, {**ways, **sessions}, sources)
            peer.ask("forget")
        rows += replay_in_turns(peer, held_out, "everything", sessions, [RecycledLogits(), small, *stores])
    result["datastore of outputs and tokens, bytes"] = large.info().size
    return {**result, "rows": rows}


def ask(
    peer: PeerProcess, cache: str, recording: Recording, request: int, settings: Settings, nodes: int
) -> dict[str, Any]:
    answer: dict[str, Any] = peer.ask(
        "replay",
        cache=cache,
        request=request,
        prompt=recording.prompt.tolist(),
        output=recording.output.tolist(),
        options={"max_spec_tokens": nodes, **settings},
    )
    return answer


def replay_in_turns(
    peer: PeerProcess, held_out: Sequence[Recording], content: str, ways: Ways, sources: Sequence[object]
) -> list[dict[str, Any]]:
    """Replay each recording in each way, one after the other; each recording begins with another way."""
    calibration, names = Calibration.default(), list(ways)
    outcomes = {way: Outcome() for way in ways}
    times: dict[str, list[float]] = {way: [] for way in ways}
    drafted = dict.fromkeys(ways, 0)
    for number, recording in enumerate(held_out):
        for place in range(len(names)):
            way = names[(number + place) % len(names)]
            nodes, settings = ways[way]
            if settings is None:
                seconds: list[float] = []
                ours = replay([recording], [PromptLookup(), *sources], calibration, max_nodes=nodes, times=seconds)
                outcomes[way].add(recording.family, ours.tokens, ours.steps)
                drafted[way] += int(ours.reliability[0].sum())
                times[way] += [value * 1e6 for value in seconds]
            else:
                theirs = ask(peer, way, recording, number, settings, nodes)
                outcomes[way].add(recording.family, recording.output.size, theirs["steps"])
                drafted[way] += theirs["nodes"]
                times[way] += theirs["microseconds"]
    rows = []
    for way, outcome in outcomes.items():
        row = {"drafting": way.rpartition(", ")[0], "knows": content, "nodes": ways[way][0], **outcome.as_json()}
        del row["promised"], row["calibration_error"]
        row["nodes_per_step"] = round(drafted[way] / outcome.steps, 2)
        row["microseconds a step"] = percentiles(times[way])
        rows.append(row)
        print(f"{content:<20}{way:<42} M {row['M']:.3f}  {row['nodes_per_step']:5.1f} nodes", flush=True)
    return rows
