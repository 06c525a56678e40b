"""Fit the calibration that comes with the package, rest_store/drafting/default.calibration, anew.

Data: greedy outputs of the target model with its top-k (--recordings), answers of other models (--answers), and answers
of the kind that the chat datastore holds (--chat-answers), replayed with a chat datastore built without them
(--chat-without); 600 of these went into the package's. Parts 0..6 of 10 of the first two are fitted to, by the fixed
hash of `rest-store calibrate`. In a part of the replays a live datastore is among the sources: it holds the recordings
before the one that is replayed, or all those of other tasks. The recycled logits have learnt from them, too, as those
that sessions share; in one of these replays they are new. The trees of steps with a live datastore are fitted to these
replays, those of steps without one to the others. The package's are of two fits: the former of one with --live-only
--trees 700 --rate 0.1.

The same data, release and --start give the same bytes in any process. The --start of the package's trees with a live
datastore was the calibration of the release before; that of the others was not kept. --rounds N keeps the whole chain
in one command: an untrained rule guides the first fit, each fit the next one. Takes about 10 GB of memory.
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from rest_store.bench.environment import file_hash
from rest_store.bench.options import every_option, recordings_option
from rest_store.bench.recordings import Encode, Recording, encoder, read_recordings, split
from rest_store.bench.remembering import Known, among_others, in_turn, logits_of, new_live_datastore
from rest_store.bench.replay import Outcome, fit_recorded, replay
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.live.live_datastore import LiveDatastore
from rest_store.options import PATH, SETTINGS, Decorator, json_option

Remember = Callable[[Sequence[Recording], LiveDatastore], Known]
# Recordings, what is remembered (None: there is no live datastore), sources besides, and (nodes, skip) of each replay.
Job = tuple[Sequence[Recording], Remember | None, Sequence[object], Sequence[tuple[int, int]]]
_ONCE = ((24, 0),)
_TWICE = ((24, 0), (64, 0))
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


def remembering(
    recordings: Sequence[Recording],
    remember: Remember | None,
    sources: Sequence[object],
    calibration: Calibration,
    tokenizer: TokenizerIdentity,
    **options: Any,
) -> Outcome:
    """Replay recordings, with a live datastore among the sources if there is a rule what is remembered."""
    if remember is None:
        return replay(recordings, sources, calibration, **options)
    with new_live_datastore(tokenizer) as live:
        return Outcome.sum_of(
            replay([one], [*with_logits(sources, known), live], calibration, share_logits=True, **options)
            for one, known in remember(recordings, live)
        )


def with_logits(sources: Sequence[object], known: Sequence[Recording]) -> list[object]:
    """Return the sources with recycled logits, if they are among them, that have learnt from the `known` recordings."""
    return [logits_of(known) if isinstance(source, RecycledLogits) else source for source in sources]


def without_logits(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
    """As `in_turn`, but the recycled logits are new."""
    return ((recording, ()) for recording, _ in in_turn(recordings, live))


def shuffled(recordings: Sequence[Recording], seed: int = 0) -> list[Recording]:
    return [recordings[place] for place in np.random.default_rng(seed).permutation(len(recordings))]


def required(name: str, metavar: str, help_text: str) -> Decorator[Any]:
    return click.option(f"--{name}", metavar=metavar, type=PATH, required=True, help=help_text)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/fit_default.py --recordings traces.jsonl.gz --answers answers.jsonl.gz "
    "--chat-answers chat10.jsonl.gz --python python.ds --chat chat.ds --chat-without chat90.ds --out new.calibration",
)
@recordings_option()
@required("answers", "FILE", "Answers of other models.")
@required("chat-answers", "FILE", "Answers of the kind that the chat datastore holds.")
@required("python", "DIR", "Datastore of Python source.")
@required("chat", "DIR", "Datastore of chats.")
@required("chat-without", "DIR", "Datastore of chats without those of --chat-answers.")
@required("out", "FILE", "The calibration to write.")
@click.option(
    "--start", metavar="FILE", type=PATH, show_default="the package's", help="Calibration that guides the replays."
)
@click.option(
    "--rounds", metavar="N", type=click.IntRange(1), help="Fits, each guided by the one before; instead of --start."
)
@click.option("--live-only", is_flag=True, help="Fit only the trees of steps with a live datastore; keep the others.")
@click.option("--trees", metavar="N", default=250, help="Number of boosted trees.")
@click.option("--rate", metavar="SHARE", default=0.12, help="Learning rate.")
@every_option
@json_option
def main(
    recordings: tuple[Path, ...],
    answers: Path,
    chat_answers: Path,
    python: Path,
    chat: Path,
    chat_without: Path,
    out: Path,
    start: Path | None,
    rounds: int | None,
    live_only: bool,
    trees: int,
    rate: float,
    every: int,
    as_json: bool,
) -> None:
    if rounds is not None and start is not None:
        raise click.UsageError("give either --rounds or --start")
    if rounds is not None and live_only:
        raise click.UsageError("give either --rounds or --live-only")
    code, chats, without = (Datastore.open(path) for path in (python, chat, chat_without))
    encode = encoder(code, None)
    recorded = [one for path in recordings for one in read_recordings(path, encode)]
    fit, held_out = split(recorded[::every], "fit_default.py")
    fit_answers, held_out_answers = split(read_recordings(answers, encode)[::every], "fit_default.py")
    conversation = conversations(chat_answers, encode, every)
    text, logits = PromptLookup(), RecycledLogits()
    full = [text, logits, code, chats]
    jobs: list[Job] = [
        (fit, None, full, _THRICE),
        (fit, among_others, full, _THRICE),
        (shuffled(fit), in_turn, full, _TWICE),
        (shuffled(fit, 1), in_turn, full, _TWICE),
        (shuffled(fit, 2), without_logits, full, _ONCE),
        (fit, among_others, [text, logits], _ONCE),
        (fit[::2], None, [text, logits], _ONCE),
        (fit[1::2], None, [text, code], _ONCE),
        (fit[1::2], None, [text, logits, chats], _ONCE),
        (fit_answers, None, full, _ONCE),
        (shuffled(fit_answers), in_turn, full, _ONCE),
        (fit_answers[::3], None, [text, chats], _ONCE),
        (fit_answers[1::6], None, [text], _ONCE),
        (conversation[::2], None, [text, logits, code, without], _ONCE),
        (conversation[1::4], in_turn, [text, logits, code, without], _ONCE),
        (conversation[1::8], None, [text, without], _ONCE),
    ]
    provenance = {
        "recordings": [path.name for path in (*recordings, answers, chat_answers)],
        "prompts": "parts 0..6 of 10 of the first two, all of the third",
        "data": [file_hash(path) for path in (*recordings, answers)],
        "sources": "prompt lookup, recycled logits, both datastores, a live one, and some of these left out",
        "start": "default" if start is None else start.name,
        "rounds": rounds,
        "live only": live_only,
        "trees": trees,
        "rate": rate,
    }
    calibration = Calibration.default() if start is None else Calibration.load(start)
    if rounds is not None:
        calibration = Calibration(bytes(4))  # the untrained rule
    for _ in range(rounds or 1):
        fitted = {}
        for with_live in (False, True):
            if live_only and not with_live:
                continue
            record: list[tuple[bytes, bytes, bytes]] = []
            for chosen, remember, sources, budgets in jobs:
                for nodes, skip in budgets if (remember is not None) == with_live else ():
                    options = {"max_nodes": nodes, "skip": skip, "record": record}
                    remembering(chosen, remember, sources, calibration, code.tokenizer, **options)
            fitted[with_live] = fit_recorded(record, trees=trees, rate=rate).native.gbdt
        frozen = fitted.get(False, calibration.native.gbdt)
        calibration = Calibration(frozen, provenance=provenance, live_gbdt=fitted[True])
    calibration.save(out)
    rows = []
    for name, chosen in (("recordings", held_out), ("answers", held_out_answers)):
        for nodes in (16, 64):
            for remember in (None, among_others):
                outcome = remembering(chosen, remember, full, calibration, code.tokenizer, max_nodes=nodes)
                row = {"recordings": name, "nodes": nodes, "live": remember is not None, **outcome.as_json()}
                rows.append(row)
                print(json.dumps(row), file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps({"out": str(out), "rows": rows}))


if __name__ == "__main__":
    main()
