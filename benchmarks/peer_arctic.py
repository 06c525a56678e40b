"""arctic-inference's suffix decoding cache, for `bench_peers.py`; runs where that package is installed.

Prompts and outputs are lists of token ids. Drafts are walked as `rest_store.bench.replay` walks trees: the path
that the output takes is accepted, and one token more.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache
from peer_process import serve

caches: dict[str, Any] = {}


def new_cache(cache: str, outputs: list[list[int]], depth: int) -> dict[str, Any]:
    """Make the cache of that name, with these outputs of earlier requests in it."""
    began = time.perf_counter()
    made = SuffixDecodingCache(max_tree_depth=depth)
    for number, output in enumerate(outputs):
        made.start_request(-1 - number, np.zeros(0, np.int32))
        made.add_active_response(-1 - number, np.array(output, np.int32))
        made.stop_request(-1 - number)
    caches[cache] = made
    seconds = time.perf_counter() - began
    return {"version": version("arctic-inference"), "seconds": seconds, "bytes": made._global_tree.estimate_memory()}


def forget() -> None:
    """Free all caches."""
    caches.clear()


def replay(cache: str, request: int, prompt: list[int], output: list[int], options: dict[str, Any]) -> dict[str, Any]:
    """Replay one recording as a request to the cache of that name, which keeps its output for later ones."""
    suffixes = caches[cache]
    text = np.array(prompt + output, np.int32)
    place, steps, nodes = len(prompt), 0, 0
    times = []
    began = time.perf_counter()
    suffixes.start_request(request, text[:place])
    start = (time.perf_counter() - began) * 1e6
    while place < text.size:
        began = time.perf_counter()
        draft = suffixes.speculate(request, text[:place], **options)
        drafted = time.perf_counter() - began
        nodes += len(draft.token_ids)
        end = min(place + accepted(draft, text[place:].tolist()) + 1, text.size)
        began = time.perf_counter()
        suffixes.add_active_response(request, text[place:end])
        times.append((drafted + time.perf_counter() - began) * 1e6)
        place, steps = end, steps + 1
    suffixes.stop_request(request)
    return {"steps": steps, "nodes": nodes, "microseconds": times, "start": start}


def accepted(draft: Any, output: list[int]) -> int:
    """Return how many tokens of the draft's tree the output walks along."""
    children: dict[tuple[int, int], int] = {}
    for node, (token, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
        children.setdefault((parent, token), node)
    node, length = -1, 0
    for token in output:
        if (node, token) not in children:
            break
        node, length = children[node, token], length + 1
    return length


if __name__ == "__main__":
    serve({"new_cache": new_cache, "forget": forget, "replay": replay})
