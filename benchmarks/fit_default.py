"""Fit the calibration that comes with the package, rest_store/drafting/default.calibration, anew.

The data are greedy outputs of the target model with its top-k (--recordings), answers of other
models (--answers), and answers of the kind that the chat datastore holds (--chat-answers), replayed
with a chat datastore built without them (--chat-without); the package's calibration used 600 of the
last. Of the first two, folds 0..6 of 10 are fitted to, by the fixed hash of `rest-store calibrate`.

In some of the replays a live datastore is among the sources: it holds the recordings before the one
that is replayed, or all recordings of other tasks. The recycled logits are new in some of the
replays; in the others they have learnt from these recordings, as shared logits do. There are three
kinds of trees, each fitted to replays of its own:

- frozen: steps with recycled logits and without a live datastore
- live: steps with both
- text: steps without recycled logits: of sessions without them, of services that get the text
  alone, and first steps. Runs of an agent (--agent) are replayed for these alone, with the
  datastores --agent-datastore, which have the tokenizer of these runs.

The package's calibration has had three fits: with --row-share 0.2 of the frozen and live kinds,
with --only live --trees 700, and with --only text --row-share 0.2. The first began
(--start) with the calibration of the release before, the others with the result of the fit before.

`rest-store bench replay --calibration` shows its worth for the other folds. The same data, release
and --start give the same bytes in any process. A fit takes about 15 GB of memory.
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
from rest_store.bench.measurement_options import every_option, recordings_option
from rest_store.bench.recorded_history import (
    Known,
    Order,
    among_others,
    in_turn,
    learned_logits,
    new_live_datastore,
)
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
        recordings: the recordings to replay.
        sources: the sources of the sessions.
        order: the order of the recordings; None: as they are, without history.
        is_live: whether the live datastore with the history is among the sources. The recycled
            logits know the history in any case.
        budgets: for each replay, nodes and tokens of the output that count as prompt.
    """

    recordings: Sequence[Recording]
    sources: Sequence[object]
    order: Order | None = None
    is_live: bool = False
    budgets: Sequence[tuple[int, int]] = ((24, 0),)


KINDS = ("frozen", "live", "text")
_RATE = 0.1  # of learning
_LARGE = ((64, 1),)
_TWICE = ((24, 0), (64, 1))
_THRICE = ((24, 0), (24, 2), (64, 1))


def conversations(path: Path, encode: Encode | None, every: int) -> list[Recording]:
    """Read the first answer of each n-th conversation.

    The file has the layout of UltraChat: "data": [user, assistant, ...].
    """
    if encode is None:
        raise click.ClickException("the first datastore has no tokenizer")
    recordings = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in itertools.islice(file, 0, None, every):
            prompt_text, answer = json.loads(line)["data"][:2]
            prompt, output = (np.array(tokens, np.int32) for tokens in encode(prompt_text, answer))
            recordings.append(Recording("chat", 0, prompt, output, np.zeros((0, 0), np.int32)))
    return recordings


def replay_job(
    job: Job, calibration: Calibration, tokenizer: TokenizerIdentity, **options: Any
) -> Outcome:
    """Return the outcome of a job's replays with `options` of `replay`."""
    if job.order is None:
        return replay(job.recordings, job.sources, calibration, learn=False, **options)
    outcomes = []
    with new_live_datastore(tokenizer) as live:
        sources = [*job.sources, live] if job.is_live else job.sources
        for one, known in job.order(job.recordings, live):
            own = with_logits(sources, known)
            outcome = replay([one], own, calibration, learn=False, share_logits=True, **options)
            outcomes.append(outcome)
    return Outcome.from_outcomes(outcomes)


def with_logits(sources: Sequence[object], known: Sequence[Recording]) -> list[object]:
    """Return the sources; recycled logits among them have learnt from the `known` recordings."""
    return [
        learned_logits(known) if isinstance(source, RecycledLogits) else source
        for source in sources
    ]


def without_logits(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
    """Order recordings as `in_turn` does, with new recycled logits."""
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
        " --chat-without chat90.ds --agent runs.jsonl --agent-datastore agent.ds"
        " --out new.calibration"
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
    "--agent",
    metavar="FILE",
    type=PATH,
    required=True,
    help="Runs of an agent, the first run of each task first.",
)
@click.option(
    "--agent-datastore",
    "agent_datastores",
    metavar="DIR",
    type=PATH,
    multiple=True,
    required=True,
    help="Datastore with the tokenizer of --agent; repeat for more.",
)
@click.option(
    "--only",
    "kinds",
    metavar="KIND",
    type=click.Choice(KINDS),
    multiple=True,
    default=KINDS,
    help=f"Fit only this kind of trees, {', '.join(KINDS)}; repeat for more. Keep the others.",
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
    agent: Path,
    agent_datastores: tuple[Path, ...],
    kinds: tuple[str, ...],
    trees: int,
    row_share: float,
    every: int,
) -> None:
    code, chats, without = (Datastore.open(path) for path in (python, chat, chat_without))
    encode = encoder(code, None)
    recorded = []
    for path in recordings:
        recorded += read_recordings(path, encode)
    fit, _ = split(recorded[::every], "fit_default.py")
    fit_answers, _ = split(read_recordings(answers, encode)[::every], "fit_default.py")
    conversation = conversations(chat_answers, encode, every)
    runs = read_recordings(agent)[::every]
    agent_stores = [Datastore.open(path) for path in agent_datastores]
    text = PromptLookup()
    logits = RecycledLogits()
    full = [text, logits, code, chats]
    own_corpora = [text, logits, code, without]
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
        Job(conversation[::4], own_corpora),
        Job(conversation[1::8], [text, without]),
    ]
    with_live = [
        Job(fit, full, among_others, True, _THRICE),
        Job(shuffled(fit), full, in_turn, True, _TWICE),
        Job(shuffled(fit, 1), full, in_turn, True, _TWICE),
        Job(shuffled(fit, 2), full, without_logits, True),
        Job(fit, [text, logits], among_others, True),
        Job(shuffled(fit_answers), full, in_turn, True),
        Job(conversation[1::4], own_corpora, in_turn, True),
    ]
    corpora = [text, code, chats]
    from_text = [
        Job(fit, [text], among_others, True),
        Job(shuffled(fit), [text], in_turn, True),
        Job(fit, corpora, among_others, True),
        Job(shuffled(fit, 1), corpora, in_turn, True, _LARGE),
        Job(fit, corpora, budgets=_TWICE),
        Job(fit[::2], [text]),
        Job(shuffled(fit_answers), corpora, in_turn, True),
        Job(shuffled(fit_answers, 1), [text], in_turn, True),
        Job(fit_answers, corpora),
        Job(conversation[1::4], [text, code, without], in_turn, True),
        Job(conversation[::4], [text, code, without]),
    ]
    of_agent = [
        Job(runs, [text], in_turn, True),
        Job(runs[::2], [text], among_others, True),
        Job(runs[1::2], [text, *agent_stores], in_turn, True, _LARGE),
        Job(runs[::4], [text, *agent_stores]),
    ]
    provenance = {
        "recordings": [path.name for path in (*recordings, answers, chat_answers, agent)],
        "prompts": "folds 0..6 of 10 of the first two, all of the others",
        "data": [file_hash(path) for path in (*recordings, answers)],
        "sources": (
            "prompt lookup, recycled logits, datastores, a live one, and some of these left out"
        ),
        "start": "default" if start is None else start.name,
        "kinds": kinds,
        "trees": trees,
        "rate": _RATE,
        "row share": row_share,
    }
    calibration = Calibration.default() if start is None else Calibration.load(start)
    trees_by_kind = {
        "frozen": calibration.native.gbdt,
        "live": calibration.native.live_gbdt,
        "text": calibration.native.text_gbdt,
    }
    jobs_by_kind = {
        "frozen": [(code.tokenizer, frozen)],
        "live": [(code.tokenizer, with_live)],
        "text": [(code.tokenizer, from_text), (agent_stores[0].tokenizer, of_agent)],
    }
    for kind in kinds:
        record: list[tuple[bytes, bytes, bytes]] = []
        for tokenizer, jobs in jobs_by_kind[kind]:
            record_rows(jobs, calibration, tokenizer, record)
        fitted = fit_calibration(record, trees=trees, rate=_RATE, row_share=row_share)
        trees_by_kind[kind] = fitted.native.gbdt
    calibration = Calibration(
        trees_by_kind["frozen"],
        provenance=provenance,
        live_gbdt=trees_by_kind["live"],
        text_gbdt=trees_by_kind["text"],
    )
    calibration.save(out)


def record_rows(
    jobs: Sequence[Job],
    guide: Calibration,
    tokenizer: TokenizerIdentity,
    record: list[tuple[bytes, bytes, bytes]],
) -> None:
    """Append the rows of the replays of jobs, which `guide` guides, to `record`."""
    for job in jobs:
        for nodes, skip in job.budgets:
            replay_job(job, guide, tokenizer, max_nodes=nodes, skip=skip, record=record)


if __name__ == "__main__":
    main()
