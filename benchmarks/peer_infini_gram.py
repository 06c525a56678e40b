"""infini-gram's engine, for `bench_peers.py`; runs where `infini-gram` is installed, and imports nothing else.

    PYTHON peer_infini_gram.py FOLDER VOCABULARY_SIZE

FOLDER holds `tokenized.0` and `offset.0`, as the package's own first step writes them.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peer_process import serve


def build(folder: Path, memory: int) -> dict[str, Any]:
    """Run the package's own `infini_gram.indexing` on the tokens in `folder`, without its first step."""
    (folder / "table.0").unlink(missing_ok=True)
    empty = folder / "no-text"
    empty.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "infini_gram.indexing", "--data_dir", str(empty), "--save_dir", str(folder)]
    command += ["--mem", str(memory), "--cpus", str(os.cpu_count() or 1), "--token_dtype", "u16"]
    command += ["--ulimit", str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    size = sum((folder / name).stat().st_size for name in ("tokenized.0", "table.0", "offset.0"))
    return {"seconds": seconds, "peak_of_one_process": peak, "size": size}


def main() -> None:
    folder, vocabulary_size = Path(sys.argv[1]), int(sys.argv[2])
    engines: list[Any] = []

    def open_engine() -> str:
        from infini_gram.engine import InfiniGramEngine

        # Two bytes a token leave 65535 for the end of a document; the ids of the vocabulary end before that.
        # Prefetching is for files on disks: with pages in memory its threads cost more than they bring.
        depths = {"ds_prefetch_depth": 0, "sa_prefetch_depth": 0, "od_prefetch_depth": 0}
        engines.append(
            InfiniGramEngine(str(folder), vocabulary_size, vocab_size=vocabulary_size + 1, token_dtype="u16", **depths)
        )
        return version("infini-gram")

    def count(contexts: list[list[int]]) -> dict[str, list[Any]]:
        return timed(engines[0].count, contexts, lambda answer: answer["count"])

    def next_tokens(contexts: list[list[int]], max_support: int) -> dict[str, list[Any]]:
        return timed(
            lambda context: engines[0].ntd(context, max_support=max_support),
            contexts,
            lambda answer: [answer["prompt_cnt"], len(answer["result_by_token_id"]), answer["approx"]],
        )

    def longest(contexts: list[list[int]], max_support: int) -> dict[str, list[Any]]:
        return timed(
            lambda context: engines[0].infgram_ntd(context, max_support=max_support),
            contexts,
            lambda answer: [answer["suffix_len"], answer["prompt_cnt"]],
        )

    build_here = partial(build, folder)
    serve({"build": build_here, "open": open_engine, "count": count, "next_tokens": next_tokens, "longest": longest})


def timed(ask: Any, contexts: list[list[int]], value_of: Any) -> dict[str, list[Any]]:
    """Return the value of each answer, and the microseconds that asking took."""
    answers, times = [], []
    for context in contexts:
        began = time.perf_counter()
        answer = ask(context)
        times.append((time.perf_counter() - began) * 1e6)
        answers.append(answer)
    return {"value": [value_of(answer) for answer in answers], "microseconds": times}


if __name__ == "__main__":
    main()
