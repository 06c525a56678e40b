"""Fit the calibration that comes with the package, rest_store/drafting/default.calibration, anew.

Data: greedy outputs of the target model with its top-k (--recordings), answers of other models
(--answers), and answers of the kind that the chat datastore holds (--chat-answers), replayed with a
chat datastore built without them (--chat-without); 600 of these went into the package's. Parts 0..6
of 10 of the first two are fitted to, by the fixed hash of `rest-store calibrate`. In a part of the
replays a live datastore is among the sources: it holds the recordings before the one that is
replayed, or all those of other tasks. The recycled logits are new in some of the replays; in the
others they have learnt from these recordings, as those that sessions share. The trees of steps with
a live datastore are fitted to the replays with one, those of steps without one to the others. The
package's are of two fits, with --row-share 0.2 and then with --live-only --trees 700.

`rest-store bench replay --calibration` shows what it is worth for the other parts. The same data,
release and --start give the same bytes in any process. The --start of the first was the calibration
of the release before, that of the second was the first. Takes about 15 GB of memory.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from rest_store.bench.formats import Encode
from rest_store.bench.history import (
    Known,
    Order,
    among_others,
    in_turn,
    logits_of,
    new_live_datastore,
)
from rest_store.bench.measurement_options import every_option, recordings_option
from rest_store.bench.recordings import Recording, encoder, read_recordings, split
from rest_store.bench.replay import Outcome, fit_calibration, replay
from rest_store.bench.results import file_hash
from rest_store.command_options import PATH, SETTINGS, Decorator
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.live.live_datastore import LiveDatastore


class Job(NamedTuple):
    """Replays that are recorded.

    Attributes:
        recordings: to replay.
        sources: of the sessions.
        order: of the recordings; None: as they are, and no others are known.
        is_live: whether the live datastore with the known ones is among the sources; their recycled
            logits are.
        budgets: nodes, and tokens of the output that count as prompt, of each replay.
    """

    recordings: Sequence[Recording]
    sources: Sequence[object]
    order: Order | None = None
    is_live: bool = False
    budgets: Sequence[tuple[int, int]] = ((24, 0),)


_RATE = 0.1  # of learning
_TWICE = ((24, 0), (64, 1))
_THRICE = ((24, 0), (24, 2), (64, 1))


def conversations(path: Path, encode: Encode | None, every: int) -> list[Recording]:
    """Read the first answer of each n-th conversation in
    UltraChat's layout: "data": [user, assistant, ...].
    """
    assert encode is not None, "the first datastore keeps no tokenizer"
    recordings = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, 0, None, every):
            prompt_text, answer = json.loads(line)["data"][:2]
            prompt, output = (np.array(tokens, np.int32) for tokens in encode(prompt_text, answer))
            recordings.append(Recording("chat", 0, prompt, output, np.zeros((0, 0), np.int32)))
    return recordings


def outcome_of(
    job: Job, calibration: Calibration, tokenizer: TokenizerIdentity, **options: Any
) -> Outcome:
    """Return the outcome of a job's replays with `options` of `replay`."""
    if job.order is None:
        return replay(job.recordings, job.sources, calibration, **options)
    with new_live_datastore(tokenizer) as live:
        sources = [*job.sources, live] if job.is_live else job.sources
        return Outcome.sum_of(
            replay([one], with_logits(sources, known), calibration, share_logits=True, **options)
            for one, known in job.order(job.recordings, live)
        )


def with_logits(sources: Sequence[object], known: Sequence[Recording]) -> list[object]:
    """Return the sources with recycled logits, if they are among
    them, that have learnt from the `known` recordings.
    """
    return [
        logits_of(known) if isinstance(source, RecycledLogits) else source for source in sources
    ]


def without_logits(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
    """As `in_turn`, but the recycled logits are new."""
    return ((recording, ()) for recording, _ in in_turn(recordings, live))


def shuffled(recordings: Sequence[Recording], seed: int = 0) -> list[Recording]:
    return [recordings[index] for index in np.random.default_rng(seed).permutation(len(recordings))]


def required(name: str, metavar: str, help_text: str) -> Decorator[Any]:
    return click.option(f"--{name}", metavar=metavar, type=PATH, required=True, help=help_text)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/fit_default.py --recordings traces.jsonl.gz --answers"
        " answers.jsonl.gz --chat-answers chat10.jsonl.gz --python python.ds --chat chat.ds"
        " --chat-without chat90.ds --out new.calibration"
    ),
)
@recordings_option()
@required("answers", "FILE", "Answers of other models.")
@required("chat-answers", "FILE", "Answers of the kind that the chat datastore holds.")
@required("python", "DIR", "Datastore of Python source.")
@required("chat", "DIR", "Datastore of chats.")
@required("chat-without", "DIR", "Datastore of chats without those of --chat-answers.")
@required("out", "FILE", "The calibration to write.")
@click.option(
    "--start",
    metavar="FILE",
    type=PATH,
    show_default="the package's",
    help="Calibration that guides the replays.",
)
@click.option(
    "--live-only",
    is_flag=True,
    help="Fit only the trees of steps with a live datastore; keep the others.",
)
@click.option("--trees", metavar="N", default=500, help="Number of boosted trees.")
@click.option(
    "--row-share",
    metavar="SHARE",
    default=0.35,
    help="Share of the positions that each tree is fitted to.",
)
@every_option
def main(
    recordings: tuple[Path, ...],
    answers: Path,
    chat_answers: Path,
    python: Path,
    chat: Path,
    chat_without: Path,
    out: Path,
    start: Path | None,
    live_only: bool,
    trees: int,
    row_share: float,
    every: int,
) -> None:
    code, chats, without = (Datastore.open(path) for path in (python, chat, chat_without))
    encode = encoder(code, None)
    recorded = [one for path in recordings for one in read_recordings(path, encode)]
    fit, _ = split(recorded[::every], "fit_default.py")
    fit_answers, _ = split(read_recordings(answers, encode)[::every], "fit_default.py")
    conversation = conversations(chat_answers, encode, every)
    text, logits = PromptLookup(), RecycledLogits()
    full = [text, logits, code, chats]
    frozen = [
        Job(fit, full, budgets=_TWICE),
        Job(fit, full, among_others, budgets=_TWICE),
        Job(shuffled(fit), full, in_turn, budgets=_TWICE),
        Job(shuffled(fit, 1), full, in_turn, budgets=_TWICE),
        Job(fit[::2], [text, logits]),
        Job(fit, [text, logits], among_others),
        Job(shuffled(fit, 2)[::2], [text, logits], in_turn),
        Job(fit[1::2], [text, code]),
        Job(fit[1::2], [text, logits, chats]),
        Job(fit[::2], [text, logits, code], among_others),
        Job(fit[1::2], [text, logits, chats], among_others),
        Job(fit_answers, full),
        Job(fit_answers[::3], [text, chats]),
        Job(fit_answers[1::6], [text]),
        Job(conversation[::4], [text, logits, code, without]),
        Job(conversation[1::8], [text, without]),
    ]
    with_live = [
        Job(fit, full, among_others, True, _THRICE),
        Job(shuffled(fit), full, in_turn, True, _TWICE),
        Job(shuffled(fit, 1), full, in_turn, True, _TWICE),
        Job(shuffled(fit, 2), full, without_logits, True),
        Job(fit, [text, logits], among_others, True),
        Job(shuffled(fit_answers), full, in_turn, True),
        Job(conversation[1::4], [text, logits, code, without], in_turn, True),
    ]
    provenance = {
        "recordings": [path.name for path in (*recordings, answers, chat_answers)],
        "prompts": "parts 0..6 of 10 of the first two, all of the third",
        "data": [file_hash(path) for path in (*recordings, answers)],
        "sources": (
            "prompt lookup, recycled logits, both datastores, a live one, and some of these"
            " left out"
        ),
        "start": "default" if start is None else start.name,
        "live only": live_only,
        "trees": trees,
        "rate": _RATE,
        "row share": row_share,
    }
    calibration = Calibration.default() if start is None else Calibration.load(start)
    options = {"trees": trees, "rate": _RATE, "row_share": row_share}
    gbdt = (
        calibration.native.gbdt
        if live_only
        else fitted(frozen, calibration, code.tokenizer, **options)
    )
    live_gbdt = fitted(with_live, calibration, code.tokenizer, **options)
    calibration = Calibration(gbdt, provenance=provenance, live_gbdt=live_gbdt)
    calibration.save(out)


def fitted(
    jobs: Sequence[Job], guide: Calibration, tokenizer: TokenizerIdentity, **options: Any
) -> bytes:
    """Return trees that are fitted, with `options` of
    `fit_calibration`, to jobs that are replayed with `guide`.
    """
    record: list[tuple[bytes, bytes, bytes]] = []
    for job in jobs:
        for nodes, skip in job.budgets:
            outcome_of(job, guide, tokenizer, max_nodes=nodes, skip=skip, record=record)
    return fit_calibration(record, **options).native.gbdt


if __name__ == "__main__":
    main()
