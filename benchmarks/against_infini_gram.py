"""infini-gram against a datastore of the same tokens: build, size, counts, next tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datastores import laid_out
from peer_process import PeerProcess
from timing import percentiles, time_each

from rest_store.bench.recordings import Recording
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id

LENGTH = 16
SUPPORT = 1_000  # infini-gram's default
SIZES = (1, 2, 3, 5, 8)  # tokens of the counted sequences
ROUNDS = 9  # in which both take turns; the first one warms up
Contexts = list[list[int]]

# Sorts the suffixes of a tokens file and writes them, as the builder does; prints seconds and peak resident memory.
BUILD = """
import json, resource, sys, time
from pathlib import Path
from build_index.suffix_array import suffix_array
from rest_store.datastore.shard import TokensFile, write_suffixes
start = time.perf_counter()
tokens, out, vocabulary_size = TokensFile.open(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
order = suffix_array(tokens.payload.reshape(-1, tokens.header.width), vocabulary_size=vocabulary_size)
write_suffixes(out, tokens, order)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak_of_one_process": peak}))
"""


def compare_infini_gram(
    recordings: Sequence[Recording], source: Path, *, peers: str, work: Path, count: int, memory: int, seed: int
) -> dict[str, Any]:
    """Build with both, ask both the same, and return the figures.

    Args:
        recordings: whose outputs the contexts are taken from.
        source: a datastore.
        peers: interpreter in whose environment infini-gram is installed.
        work: folder for files.
        count: number of contexts.
        memory: GiB for infini-gram's build.
        seed: of the choice of contexts.
    """
    store = Datastore.open(source)
    if len(store.shards) > 1:
        store = Datastore.open(laid_out(source, work / f"{source.name}-1-shards", None, 1))
    folder = work / f"{source.name}-infini-gram"
    write_tokens(store, folder)
    contexts = some_contexts(recordings, count, seed)
    with PeerProcess(peers, "peer_infini_gram.py", str(folder.resolve()), str(store.vocabulary_size)) as peer:
        theirs = peer.ask("build", memory=memory)
        ours = build_ours(store, work / "ours.suffixes")
        tokens = store.manifest.token_count
        result: dict[str, Any] = {"tokens": tokens, "version": peer.ask("open"), "contexts": len(contexts)}
        result["build"] = {
            "infini-gram": {**theirs, "bytes_per_token": theirs.pop("size") / tokens},
            "rest-store": {**ours, "bytes_per_token": store.info().size / tokens},
        }
        print(json.dumps(result["build"], indent=1), flush=True)
        lengths = [min(3, store.longest_suffix_match(context).length) for context in contexts]
        occurring = [context[-length:] for context, length in zip(contexts, lengths, strict=True) if length]
        counted = [context[-SIZES[place % len(SIZES)] :] for place, context in enumerate(contexts)]

        def next_token(context: list[int]) -> Any:
            return store.draft(context, max_suffix=len(context), max_depth=1)

        def after_longest_suffix(context: list[int]) -> Any:
            return store.draft(context, max_suffix=LENGTH, max_depth=1)

        for name, asked, request, ours_of in (
            ("count", counted, {"what": "count"}, store.count),
            ("next token", occurring, {"what": "next_tokens", "max_support": SUPPORT}, next_token),
            (
                "longest suffix and next token",
                contexts,
                {"what": "longest", "max_support": SUPPORT},
                after_longest_suffix,
            ),
        ):
            result[name] = take_turns(peer, name, asked, request, ours_of)
    return result


def write_tokens(store: Datastore, folder: Path) -> None:
    """Write the datastore's documents as infini-gram's first step would: a separator before each, and offsets."""
    folder.mkdir(parents=True, exist_ok=True)
    (shard,) = store.shards
    symbols = shard.tokens.symbols().astype("<u2")
    assert separator_id(store.vocabulary_size) == 0xFFFF
    text = np.concatenate([[np.uint16(0xFFFF)], symbols[:-1]]).astype("<u2")  # ours come after each document
    text.tofile(folder / "tokenized.0")
    (np.flatnonzero(text == 0xFFFF) * 2).astype("<u8").tofile(folder / "offset.0")


def build_ours(store: Datastore, out: Path) -> dict[str, Any]:
    """Sort and write the suffixes of the same tokens, in a process of its own."""
    command = [sys.executable, "-c", BUILD, str(store.shards[0].tokens.path), str(out), str(store.vocabulary_size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    out.unlink()
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def some_contexts(recordings: Sequence[Recording], count: int, seed: int) -> Contexts:
    """Return the tokens before random places of the outputs."""
    rng = np.random.default_rng(seed)
    contexts = []
    for number in rng.integers(0, len(recordings), count):
        recording = recordings[number]
        text = np.concatenate([recording.prompt, recording.output])
        end = int(rng.integers(recording.prompt.size, text.size))
        contexts.append(text[max(0, end - LENGTH) : end].tolist())
    return contexts


def take_turns(
    peer: PeerProcess, name: str, contexts: Contexts, request: dict[str, Any], ours_of: Callable[[list[int]], Any]
) -> dict[str, Any]:
    """Ask both about the same contexts, in turns, and compare their answers."""
    times: dict[str, list[float]] = {"infini-gram": [], "rest-store": []}
    equal = approximate = asked = 0
    for number in range(ROUNDS):
        part = contexts[number::ROUNDS]
        ours: list[Any] = []
        theirs: Any = None
        own_times: list[float] = []
        for who in sorted(times, reverse=number % 2 == 1):
            if who == "infini-gram":
                theirs = peer.ask(contexts=part, **request)
            else:
                own_times = time_each(lambda context: ours.append(ours_of(context)), part)  # noqa: B023
        if number == 0:
            continue
        times["infini-gram"] += theirs["microseconds"]
        times["rest-store"] += own_times
        asked += len(part)
        for their, answer in zip(theirs["value"], ours, strict=True):
            if name == "count":
                equal += their == answer
            elif name == "next token":
                equal += their[0] == answer.match.count
                approximate += bool(their[2])
            else:
                equal += (their[0], their[1] if their[0] else 0) == tuple(answer.match)  # it counts all for length 0
    row: dict[str, Any] = {"asked": asked, "equal": equal, "infini-gram approximate": approximate}
    row |= {who: percentiles(values) for who, values in times.items()}
    figures = "   ".join(f"{who} {row[who]['median']:.1f} / {row[who]['p99']:.0f}" for who in times)
    print(f"{name:<32} median / 99th us: {figures}   equal {equal} of {asked}", flush=True)
    return row
