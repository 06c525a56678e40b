"""infini-gram against a datastore of the same tokens: build, size, counts, next tokens."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peer_process import PeerProcess

from rest_store.bench.datastores import laid_out
from rest_store.bench.recordings import Recording
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id

LENGTH = 16
SUPPORT = 1_000  # infini-gram's default
SIZES = (1, 2, 3, 5, 8)  # tokens of what is counted
Contexts = list[list[int]]

# Sorts the suffixes of a tokens file, writes them, and prepares drafts, as the builder does; seconds, and the peak of
# resident memory.
BUILD = """
import json, resource, sys, time
from pathlib import Path
from build_index.preparation import prepare_drafts
from build_index.suffix_array import suffix_array
from rest_store.datastore.shard import Shard, SuffixesFile, TokensFile, write_suffixes
began = time.perf_counter()
tokens, out, vocabulary_size = TokensFile.open(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
order = suffix_array(tokens.payload.reshape(-1, tokens.header.width), vocabulary_size=vocabulary_size)
write_suffixes(out / "ours.suffixes", tokens, order)
del order
prepare_drafts(out / "ours.drafts", [Shard(tokens, SuffixesFile.open(out / "ours.suffixes"))], vocabulary_size)
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak_of_one_process": peak}))
"""


def compare_infini_gram(recordings: Sequence[Recording], arguments: argparse.Namespace) -> dict[str, Any]:
    """Build with both, ask both the same, and return the figures."""
    source = arguments.datastore[0]
    store = Datastore.open(source)
    if len(store.shards) > 1:
        store = Datastore.open(laid_out(source, arguments.work / f"{source.name}-1-shard", None, 1))
    folder = arguments.work / f"{source.name}-infini-gram"
    write_tokens(store, folder)
    contexts = some_contexts(recordings, arguments.contexts, arguments.seed)
    with PeerProcess(arguments.peers, "peer_infini_gram.py", str(folder.resolve()), str(store.vocabulary_size)) as peer:
        theirs = peer.ask("build", memory=arguments.memory)
        ours = build_ours(store, arguments.work)
        tokens = store.manifest.token_count
        result: dict[str, Any] = {"tokens": tokens, "version": peer.ask("open"), "contexts": len(contexts)}
        result["build"] = {
            "infini-gram": {**theirs, "bytes_per_token": theirs.pop("size") / tokens},
            "rest-store": {**ours, "bytes_per_token": store.info().size / tokens},
        }
        for name, one in result["build"].items():
            print(
                f"{name:<12} build {one['seconds']:7.1f} s, peak {one['peak_of_one_process'] / 2**20:6.0f} MiB,"
                f" {one['bytes_per_token']:.2f} bytes a token",
                flush=True,
            )
        lengths = [min(3, store.longest_suffix_match(context).length) for context in contexts]
        occurring = [context[-length:] for context, length in zip(contexts, lengths, strict=True) if length]
        questions: dict[str, tuple[Contexts, Callable[[Contexts], Any], Callable[[list[int]], Any]]] = {
            "count": (
                [context[-SIZES[place % len(SIZES)] :] for place, context in enumerate(contexts)],
                lambda asked: peer.ask("count", contexts=asked),
                store.count,
            ),
            "next token": (
                occurring,
                lambda asked: peer.ask("next_tokens", contexts=asked, max_support=SUPPORT),
                lambda context: store.draft(context, max_suffix=len(context), max_depth=1),
            ),
            "longest suffix and next token": (
                contexts,
                lambda asked: peer.ask("longest", contexts=asked, max_support=SUPPORT),
                lambda context: store.draft(context, max_suffix=LENGTH, max_depth=1),
            ),
        }
        for name, (asked, ask_peer, ask_ours) in questions.items():
            result[name] = take_turns(name, asked, ask_peer, ask_ours, arguments.rounds)
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


def build_ours(store: Datastore, work: Path) -> dict[str, Any]:
    """Make what belongs to the same tokens, in a process of its own."""
    command = [sys.executable, "-c", BUILD, str(store.shards[0].tokens.path), str(work), str(store.vocabulary_size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for name in ("ours.suffixes", "ours.drafts"):
        (work / name).unlink(missing_ok=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def some_contexts(recordings: Sequence[Recording], count: int, seed: int) -> Contexts:
    """Return the tokens before random places of the outputs."""
    rng = np.random.default_rng(seed)
    found = []
    for number in rng.integers(0, len(recordings), count):
        recording = recordings[number]
        text = np.concatenate([recording.prompt, recording.output])
        end = int(rng.integers(recording.prompt.size, text.size))
        found.append(text[max(0, end - LENGTH) : end].tolist())
    return found


def take_turns(
    name: str,
    contexts: Contexts,
    ask_peer: Callable[[Contexts], Any],
    ask_ours: Callable[[list[int]], Any],
    rounds: int,
) -> dict[str, Any]:
    """Ask both about the same contexts, in turns; the first of `rounds` + 1 parts warms up."""
    times: dict[str, list[float]] = {"infini-gram": [], "rest-store": []}
    agree = approximate = 0
    parts = [contexts[place :: rounds + 1] for place in range(rounds + 1)]
    for number, part in enumerate(parts):
        theirs: Any = None
        ours: list[Any] = []
        own: list[float] = []
        for who in sorted(times, reverse=number % 2 == 1):
            if who == "infini-gram":
                theirs = ask_peer(part)
                continue
            for context in part:
                began = time.perf_counter()
                answer = ask_ours(context)
                own.append((time.perf_counter() - began) * 1e6)
                ours.append(answer)
        if number == 0:
            continue
        times["infini-gram"] += theirs["microseconds"]
        times["rest-store"] += own
        for their, answer in zip(theirs["value"], ours, strict=True):
            if name == "count":
                agree += their == answer
            elif name == "next token":
                agree += their[0] == answer.match.count
                approximate += bool(their[2])
            else:
                agree += (their[0], their[1] if their[0] else 0) == tuple(answer.match)  # of nothing, it counts all
    asked = sum(len(part) for part in parts[1:])
    row: dict[str, Any] = {"asked": asked, "equal": agree, "infini-gram approximate": approximate}
    for who, all_times in times.items():
        median, high = (round(float(q), 2) for q in np.percentile(all_times, [50, 99]))
        row[who] = {"median": median, "mean": round(float(np.mean(all_times)), 2), "p99": high}
    figures = "   ".join(f"{who} {row[who]['median']:.1f} / {row[who]['p99']:.0f}" for who in times)
    print(f"{name:<32} median / 99th us: {figures}   equal {agree} of {asked}", flush=True)
    return row
