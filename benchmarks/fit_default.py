"""Fit the calibration that comes with the package, rest_store/drafting/default.calibration, anew.

Data: greedy outputs of the target model with its top-k (`--traces`), answers of other models (`--answers`), and answers
of the kind that the chat datastore holds (`--chat-answers`), replayed with a chat datastore built without them
(`--chat-without`); 600 of these went into the package's. Parts 0..6 of 10 of the first two are fitted to, by the fixed
hash of `rest-store calibrate`.

The same data, release and `--start` give the same bytes, whatever the process. Those in the package are not among
them only because their `--start` is lost: they were fitted to replays guided by three fits before, which were not kept.
`--rounds N` keeps the whole chain in one command: the untrained rule guides the first fit, each fit the next one.
Takes about 6 GB of memory.

Example: python benchmarks/fit_default.py --traces traces.jsonl.gz --answers answers.jsonl.gz --chat-answers \
chat10.jsonl.gz --python python.ds --chat chat.ds --chat-without chat90.ds --out calibration.bin
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rest_store.bench.recordings import FIT_PARTS, Encode, Recording, read_recordings
from rest_store.bench.recordings import encoder as _encoder
from rest_store.bench.replay import fit_recorded, replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits

Job = tuple[Sequence[Recording], Sequence[object], Sequence[tuple[int, int]]]  # recordings, sources, (nodes, skip)
_ONCE = ((24, 0),)
_THRICE = ((24, 0), (24, 2), (64, 1))


def conversations(path: Path, encode: Encode | None, every: int) -> list[Recording]:
    """Read the first answer of each n-th conversation in UltraChat's layout: "data": [user, assistant, ...]."""
    assert encode is not None, "the first datastore keeps no tokenizer"
    out = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, 0, None, every):
            asked, answered = json.loads(line)["data"][:2]
            prompt, output = (np.array(tokens, np.int32) for tokens in encode(asked, answered))
            out.append(Recording("chat", 0, prompt, output, np.zeros((0, 0), np.int32)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("traces", "answers", "chat-answers", "python", "chat", "chat-without", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="calibration that guides the replays; default: the package's")
    parser.add_argument("--rounds", type=int, help="fits, each guided by the one before, the first by no calibration")
    parser.add_argument("--trees", type=int, default=250)
    parser.add_argument("--every", type=int, default=1, help="take each n-th recording only, to try it out")
    given = parser.parse_args()
    if given.rounds is not None and (given.rounds < 1 or given.start is not None):
        parser.error("--rounds is at least 1, and instead of --start")
    code, chat, without = (Datastore.open(path) for path in (given.python, given.chat, given.chat_without))
    encode = _encoder(code, None)
    traces, answers = (read_recordings(path, encode)[:: given.every] for path in (given.traces, given.answers))
    chats = conversations(given.chat_answers, encode, given.every)
    start = Calibration.default() if given.start is None else Calibration.load(given.start)
    if given.rounds is not None:
        start = Calibration(bytes(4))
    fit, fit_answers = ([one for one in all_ if one.part < FIT_PARTS] for all_ in (traces, answers))
    text, logits = PromptLookup(), RecycledLogits()
    full = [text, logits, code, chat]
    jobs: list[Job] = [
        (fit, full, _THRICE),
        (fit[::2], [text, logits], _ONCE),
        (fit[1::2], [text, code], _ONCE),
        (fit[1::2], [text, logits, chat], _ONCE),
        (fit_answers, full, _ONCE),
        (fit_answers[::3], [text, chat], _ONCE),
        (fit_answers[1::6], [text], _ONCE),
        (chats[::2], [text, logits, code, without], _ONCE),
        (chats[1::8], [text, without], _ONCE),
    ]
    facts = {
        "recordings": [given.traces.name, given.answers.name, given.chat_answers.name],
        "prompts": f"parts 0..{FIT_PARTS - 1} of 10 of the first two, all of the third",
        "sources": "prompt lookup, recycled logits, both datastores, and some of these left out",
        "start": "default" if given.start is None else given.start.name,
        "rounds": given.rounds,
        "trees": given.trees,
    }
    calibration = start
    for _ in range(given.rounds or 1):
        record: list[tuple[bytes, bytes, bytes]] = []
        for recordings, sources, budgets in jobs:
            for nodes, skip in budgets:
                replay(recordings, sources, calibration, max_nodes=nodes, skip=skip, record=record)
        calibration = fit_recorded(record, trees=given.trees, provenance=facts)
    calibration.save(given.out)
    for name, all_ in (("traces", traces), ("answers", answers)):
        held = [one for one in all_ if one.part >= FIT_PARTS]
        for nodes in (16, 64):
            outcome = replay(held, full, calibration, max_nodes=nodes)
            print(json.dumps({"recordings": name, "nodes": nodes, **outcome.as_json()}), flush=True)


if __name__ == "__main__":
    main()
