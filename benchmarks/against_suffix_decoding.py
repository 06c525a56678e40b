"""Suffix decoding of arctic-inference against draft sessions: tokens and microseconds a step, in the same replays."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from peer_process import PeerProcess

from rest_store.bench.datastores import documents_of, written
from rest_store.bench.recordings import FIT_PARTS, Recording
from rest_store.bench.replay import Outcome, replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits

DEPTH = 64  # of its trees, as documented
DEFAULTS = {"max_spec_factor": 1.0, "min_token_prob": 0.1, "use_tree_spec": False}
BUDGETS = (16, 64)
TRIED = [
    {"max_spec_factor": factor, "min_token_prob": least, "use_tree_spec": tree}
    for tree in (False, True)
    for factor in (1.0, 4.0, 16.0, 64.0)
    for least in (0.1, 0.0)
]


def compare_suffix_decoding(
    recordings: Sequence[Recording], stores: dict[str, Datastore], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Choose its settings on the recordings for fitting, replay the others with it and with sessions, in turns."""
    fit = [one for one in recordings if one.part < FIT_PARTS]
    held = [one for one in recordings if one.part >= FIT_PARTS]
    *_, last = stores.values()
    outputs = [one.output for one in fit]
    documents = list(documents_of(last, min(arguments.cache_tokens, last.manifest.token_count)))
    small = Datastore.open(written(last, arguments.work / "outputs", iter(outputs)))
    large = Datastore.open(written(last, arguments.work / "outputs-and-tokens", iter([*outputs, *documents])))
    contents: dict[str, list[npt.NDArray[Any]]] = {
        "nothing": [],
        "outputs": outputs,
        "outputs and tokens": [*outputs, *documents],
    }
    with PeerProcess(arguments.peers, "peer_arctic.py") as peer:
        best = {nodes: best_settings(peer, fit, outputs, nodes) for nodes in BUDGETS}
        result: dict[str, Any] = {"best settings": best, "reported": len(held), "caches": {}}
        rows: list[dict[str, Any]] = []
        for content, texts in contents.items():
            for way in ways_of(best, peer):
                made = peer.ask("new_cache", cache=way, outputs=[text.tolist() for text in texts], depth=DEPTH)
            made["tokens"] = sum(len(text) for text in texts)
            result["version"] = made.pop("version")
            result["caches"][content] = made
            print(f"cache of {content}: {made['tokens']:,} tokens, {made['bytes'] / 1e6:.0f} MB", flush=True)
            own = {"nothing": [], "outputs": [small], "outputs and tokens": [large]}[content]
            rows += replay_in_turns(peer, held, content, best, own)
            peer.ask("forget")
        rows += replay_in_turns(None, held, "everything", best, [RecycledLogits(), small, *stores.values()])
        result["datastore of outputs and tokens, bytes"] = large.info().size
    result["rows"] = rows
    return result


def best_settings(
    peer: PeerProcess, fit: Sequence[Recording], outputs: Sequence[npt.NDArray[Any]], nodes: int
) -> dict[str, Any]:
    """Return the settings with the highest M on every fifth recording for fitting, the others' outputs cached."""
    chosen, others = fit[::5], [output.tolist() for place, output in enumerate(outputs) if place % 5]
    found = []
    for settings in TRIED:
        peer.ask("new_cache", cache="tried", outputs=others, depth=DEPTH)
        steps = sum(ask(peer, "tried", one, number, settings, nodes)["steps"] for number, one in enumerate(chosen))
        found.append((sum(one.output.size for one in chosen) / steps, settings))
        peer.ask("forget")
    return max(found, key=lambda pair: pair[0])[1]


def ask(
    peer: PeerProcess, cache: str, one: Recording, request: int, settings: dict[str, Any], nodes: int
) -> dict[str, Any]:
    answer: dict[str, Any] = peer.ask(
        "replay",
        cache=cache,
        request=request,
        prompt=one.prompt.tolist(),
        output=one.output.tolist(),
        options={"max_spec_tokens": nodes, **settings},
    )
    return answer


def ways_of(best: dict[int, dict[str, Any]], peer: PeerProcess | None) -> dict[str, tuple[int, dict[str, Any] | None]]:
    """Return what is replayed: nodes, and its settings; none for a session."""
    ways: dict[str, tuple[int, dict[str, Any] | None]] = {}
    for nodes in BUDGETS:
        if peer is not None:
            ways[f"suffix decoding, defaults, {nodes}"] = (nodes, DEFAULTS)
            ways[f"suffix decoding, best settings, {nodes}"] = (nodes, best[nodes])
        ways[f"session, {nodes}"] = (nodes, None)
    return ways


def replay_in_turns(
    peer: PeerProcess | None,
    held: Sequence[Recording],
    content: str,
    best: dict[int, dict[str, Any]],
    own: Sequence[object],
) -> list[dict[str, Any]]:
    """Replay each recording with each way and budget, one after the other; each way begins another recording."""
    calibration, ways = Calibration.default(), ways_of(best, peer)
    outcomes = {way: Outcome() for way in ways}
    times: dict[str, list[float]] = {way: [] for way in ways}
    drafted = dict.fromkeys(ways, 0)
    for number, one in enumerate(held):
        for place in range(len(ways)):
            way = list(ways)[(number + place) % len(ways)]
            nodes, settings = ways[way]
            if settings is None:
                taken: list[float] = []
                mine = replay([one], [PromptLookup(), *own], calibration, max_nodes=nodes, times=taken)
                outcomes[way].add(one.family, mine.tokens, mine.steps)
                drafted[way] += int(mine.reliability[0].sum())
                times[way] += [seconds * 1e6 for seconds in taken]
            else:
                assert peer is not None
                theirs = ask(peer, way, one, number, settings, nodes)
                outcomes[way].add(one.family, one.output.size, theirs["steps"])
                drafted[way] += theirs["nodes"]
                times[way] += theirs["microseconds"]
    rows = []
    for way, outcome in outcomes.items():
        median, high = (round(float(q), 1) for q in np.percentile(times[way], [50, 99]))
        name, _, _ = way.rpartition(", ")
        row = {"drafting": name, "knows": content, "nodes": ways[way][0], **outcome.as_json()}
        del row["promised"], row["calibration_error"]
        row |= {"nodes_per_step": round(drafted[way] / outcome.steps, 2)}
        rows.append(
            row | {"microseconds a step": {"median": median, "mean": round(float(np.mean(times[way])), 1), "p99": high}}
        )
        print(
            f"{content:<20}{way:<42} M {outcome.mean_accepted:.3f}  {row['nodes_per_step']:5.1f} nodes"
            f"  {median:.1f} / {high:.0f} us a step",
            flush=True,
        )
    return rows
