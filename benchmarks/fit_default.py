"""Fit the calibration that comes with the package, rest_store/drafting/default.calibration, anew.

Data: greedy outputs of the target model with its top-k (--recordings), answers of other models (--answers), and answers
of the kind that the chat datastore holds (--chat-answers), replayed with a chat datastore built without them
(--chat-without); 600 of these went into the package's. Parts 0..6 of 10 of the first two are fitted to, by the fixed
hash of `rest-store calibrate`.

The same data, release and --start give the same bytes in any process. The bytes of the package cannot be repeated,
because its --start was not kept. --rounds N keeps the whole chain in one command: an untrained rule guides the first
fit, each fit the next one. Takes about 6 GB of memory.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from rest_store.bench.options import PATH, SHOW_DEFAULTS
from rest_store.bench.recordings import Encode, Recording, encoder, read_recordings, split
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
    recordings = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, 0, None, every):
            prompt_text, answer = json.loads(line)["data"][:2]
            prompt, output = (np.array(tokens, np.int32) for tokens in encode(prompt_text, answer))
            recordings.append(Recording("chat", 0, prompt, output, np.zeros((0, 0), np.int32)))
    return recordings


def required(name: str) -> click.Option:
    return click.option(f"--{name}", type=PATH, required=True)


@click.command(
    help=__doc__,
    context_settings=SHOW_DEFAULTS,
    epilog="Example: python benchmarks/fit_default.py --recordings traces.jsonl.gz --answers answers.jsonl.gz "
    "--chat-answers chat10.jsonl.gz --python python.ds --chat chat.ds --chat-without chat90.ds --out new.calibration",
)
@required("recordings")
@required("answers")
@required("chat-answers")
@required("python")
@required("chat")
@required("chat-without")
@required("out")
@click.option("--start", type=PATH, help="Calibration that guides the replays. Default: the package's.")
@click.option("--rounds", type=click.IntRange(1), help="Fits, each guided by the one before; instead of --start.")
@click.option("--trees", default=250, help="Number of boosted trees.")
@click.option("--every", default=1, help="Take every n-th recording only, to try it out.")
def main(
    recordings: Path,
    answers: Path,
    chat_answers: Path,
    python: Path,
    chat: Path,
    chat_without: Path,
    out: Path,
    start: Path | None,
    rounds: int | None,
    trees: int,
    every: int,
) -> None:
    if rounds is not None and start is not None:
        raise click.UsageError("give either --rounds or --start")
    code, chats, without = (Datastore.open(path) for path in (python, chat, chat_without))
    encode = encoder(code, None)
    fit, held_out = split(read_recordings(recordings, encode)[::every], "fit_default.py")
    fit_answers, held_out_answers = split(read_recordings(answers, encode)[::every], "fit_default.py")
    conversation = conversations(chat_answers, encode, every)
    text, logits = PromptLookup(), RecycledLogits()
    full = [text, logits, code, chats]
    jobs: list[Job] = [
        (fit, full, _THRICE),
        (fit[::2], [text, logits], _ONCE),
        (fit[1::2], [text, code], _ONCE),
        (fit[1::2], [text, logits, chats], _ONCE),
        (fit_answers, full, _ONCE),
        (fit_answers[::3], [text, chats], _ONCE),
        (fit_answers[1::6], [text], _ONCE),
        (conversation[::2], [text, logits, code, without], _ONCE),
        (conversation[1::8], [text, without], _ONCE),
    ]
    provenance = {
        "recordings": [recordings.name, answers.name, chat_answers.name],
        "prompts": "parts 0..6 of 10 of the first two, all of the third",
        "sources": "prompt lookup, recycled logits, both datastores, and some of these left out",
        "start": "default" if start is None else start.name,
        "rounds": rounds,
        "trees": trees,
    }
    calibration = Calibration.default() if start is None else Calibration.load(start)
    if rounds is not None:
        calibration = Calibration(bytes(4))  # the untrained rule
    for _ in range(rounds or 1):
        record: list[tuple[bytes, bytes, bytes]] = []
        for chosen, sources, budgets in jobs:
            for nodes, skip in budgets:
                replay(chosen, sources, calibration, max_nodes=nodes, skip=skip, record=record)
        calibration = fit_recorded(record, trees=trees, provenance=provenance)
    calibration.save(out)
    for name, chosen in (("recordings", held_out), ("answers", held_out_answers)):
        for nodes in (16, 64):
            outcome = replay(chosen, full, calibration, max_nodes=nodes)
            print(json.dumps({"recordings": name, "nodes": nodes, **outcome.as_json()}), flush=True)


if __name__ == "__main__":
    main()
