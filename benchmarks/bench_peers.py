r"""Other engines beside ours, from their published packages: infini-gram on the same tokens, suffix decoding's drafts.

    python benchmarks/bench_peers.py --peers PYTHON --recordings traces.jsonl.gz --datastore python.ds \
        --datastore chat.ds --only infini-gram --json benchmarks/results/peers_infini_gram.json

PYTHON is an interpreter with the peers' packages, which need no GPU and, once built, no torch:

    python -m venv peers && PATH=$PWD/peers/bin:$PATH
    pip install 'numpy<3' infini-gram==2.6.0
    pip install torch==2.13.0 nanobind==2.9.2 ninja cmake setuptools wheel protobuf==5.29.6 grpcio-tools
    pip install --no-build-isolation --no-deps arctic-inference==0.3.0

Each peer runs in a process of its own and times its own calls; requests to it and to us take turns.

- `infini-gram` (arXiv 2401.17377) is built by its own command on the tokens of the first datastore, in one shard with
  two bytes a token, and asked with prefetching off, which is several times as fast as its defaults where pages are in
  memory, as ours are. Compared: seconds of the build from tokens, bytes a token,
  microseconds for a count, for the distribution of the next token, and for that after the longest suffix; counts and
  matches must be equal. Its distributions come from a sample of `max_support` 1,000 occurrences (its default) where
  there are more; ours are exact, of the 64 most frequent tokens.
- `arctic-inference`'s suffix decoding (arXiv 2411.04975) replays the recordings as our sessions do. Its cache is empty
  at first and learns from each output in turn; or it holds the outputs of the recordings that calibrations are fitted
  to; or also tokens of the last datastore (`--cache-tokens`). Settings: the documented defaults (depth 64, factor 1,
  least probability 0.1, a chain), and what is best on the recordings for fitting, of chains and trees, factors 1, 4, 16
  and 64, least probabilities 0.1 and 0. Ours beside it: sessions with prompt lookup and the same texts as a datastore,
  which learn nothing from one recording to the next; and sessions with all sources.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from against_infini_gram import compare_infini_gram
from against_suffix_decoding import compare_suffix_decoding

from rest_store.bench.environment import write_result
from rest_store.bench.recordings import read_recordings
from rest_store.datastore.datastore import Datastore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, help="interpreter in whose environment the peers are installed")
    parser.add_argument("--recordings", type=Path, required=True, help="JSON lines with prompt and output as token ids")
    parser.add_argument("--datastore", type=Path, action="append", required=True, help="may be repeated")
    parser.add_argument("--work", type=Path, default=Path("build/bench/peers"), help="where the peers' files are kept")
    parser.add_argument("--only", choices=["infini-gram", "suffix decoding"])
    parser.add_argument("--contexts", type=int, default=4_000, help="asked of infini-gram and of us")
    parser.add_argument("--rounds", type=int, default=8, help="in which they take turns")
    parser.add_argument("--memory", type=int, default=4, help="GiB for infini-gram's build")
    parser.add_argument("--cache-tokens", type=int, default=1_000_000, help="of the last datastore, for the cache")
    parser.add_argument("--every", type=int, default=1, help="take each n-th recording only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    recordings = read_recordings(arguments.recordings)[:: arguments.every]
    results: dict[str, Any] = {"load average before": round(os.getloadavg()[0], 2)}
    if arguments.only != "suffix decoding":
        results["infini-gram"] = compare_infini_gram(recordings, arguments)
    if arguments.only != "infini-gram":
        stores = {path.name: Datastore.open(path) for path in arguments.datastore}
        results["suffix decoding"] = compare_suffix_decoding(recordings, stores, arguments)
    results["load average after"] = round(os.getloadavg()[0], 2)
    write_result(arguments.json, "peers", arguments, ("numpy", "rest-store"), results)


if __name__ == "__main__":
    main()
