"""Measure live datastores that are shared after several groups have written the same.

- attack (When Speculation Spills Secrets, arXiv 2411.01076): a user of a served model sees how many
  tokens each step of a streamed answer brings. Earlier answers of the model are in a live
  datastore: a third of the prompts was asked by one other tenant each, a third by two, and a third
  by nobody. The user asks all of them. Guessing: do the steps tell which prompts another tenant
  asked (area under the ROC curve of the tokens a step; 0.5: they tell nothing)? Reading: runs of
  tokens that a step brought are taken for text of the datastore; how many tokens of them are in the
  documents of one tenant alone.
- cost: the third runs of an agent are replayed, while a live datastore has the earlier runs of the
  other tasks of the repository, or also those of the same task. Each task is a tenant. M, tokens
  per forward pass, of sessions with prompt lookup.

Both for several values of `shared_after`.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from rest_store.bench.measurement_options import (
    Destination,
    every_option,
    history_from_option,
    recordings_option,
    result_options,
)
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.bench.replay import Outcome, replay
from rest_store.bench.results import write_result
from rest_store.command_options import PATH, SETTINGS
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import add_to
from rest_store.drafting.sources import PromptLookup
from rest_store.live.live_datastore import LiveDatastore

ATTACKED = (1, 2)  # values of `shared_after`
COSTS = (1, 2, 3, 5)
ATTACKER = "attacker"
MIN_TASKS = 5  # of a repository, with earlier runs
MAX_PROMPT = 200  # tokens of a prompt of the attack
MIN_READ = 3  # tokens of a step's draft that are taken for text of the datastore
KINDS = ("asked by one tenant", "asked by two tenants", "asked by nobody")


@contextmanager
def shared_datastore(vocabulary_size: int, shared_after: int) -> Iterator[LiveDatastore]:
    """Open an empty live datastore of a vocabulary, in a folder that goes with it."""
    fingerprint = "sha256:" + hashlib.sha256(b"%d" % vocabulary_size).hexdigest()
    identity = TokenizerIdentity("ids", fingerprint, vocabulary_size, {}, {})
    with (
        tempfile.TemporaryDirectory(prefix="rest-store-") as folder,
        LiveDatastore.open(
            Path(folder, "live"), tokenizer=identity, shared_after=shared_after
        ) as live,
    ):
        yield live


def document_of(recording: Recording, group: str, id: str) -> OutputDocument | None:
    """Return a recorded output as a group remembers it."""
    document = OutputDocument.from_output(
        recording.prompt.tolist(), recording.output.tolist(), group
    )
    return None if document is None else document._replace(id=id)


# --- The attack -----------------------------------------------------------------------------------


def tenants_of(number: int) -> list[str]:
    """Return the tenants that have asked the prompt of this number."""
    return [f"tenant {number} {name}" for name in "ab"[: (1, 2, 0)[number % 3]]]


def area_under_roc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Return the probability that one of `positives` is above one of `negatives`."""
    above = np.subtract.outer(np.array(positives), np.array(negatives))
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


class Readable:
    """The texts of tenants, to say which token sequences one of them alone has written."""

    def __init__(self, texts: Mapping[str, Sequence[npt.NDArray[np.int32]]]) -> None:
        self._texts = {
            group: b"".join(text.astype(">i4").tobytes() + b"\xff" * 4 for text in own)
            for group, own in texts.items()
        }

    def is_private(self, tokens: Sequence[int]) -> bool:
        """Return whether one tenant alone has written `tokens`."""
        sequence = np.array(tokens, ">i4").tobytes()
        return sum(_has_aligned(text, sequence) for text in self._texts.values()) == 1


def _has_aligned(text: bytes, sequence: bytes) -> bool:
    """Return whether `sequence` begins at a multiple of four bytes of `text`."""
    at = text.find(sequence)
    while at >= 0 and at % 4:
        at = text.find(sequence, at + 1)
    return at >= 0


def steps_of(generator: Any, prompt: Sequence[int], max_new_tokens: int) -> list[list[int]]:
    """Return the tokens of each step of a streamed answer, as a user of the model sees them."""
    steps: list[list[int]] = []
    generator.generate(
        list(prompt),
        group=ATTACKER,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        on_piece=lambda piece: steps.append(list(piece.tokens[0])),
    )
    return [step for step in steps if step]


def attack(
    model: Any, recordings: Sequence[Recording], shared_after: int, max_new_tokens: int
) -> dict[str, Any]:
    """Ask all prompts as the attacker; return the information in the sizes of steps."""
    from rest_store.generation.generator import Generator  # loads torch

    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    texts: dict[str, list[npt.NDArray[np.int32]]] = defaultdict(list)
    written = read = private = 0
    with shared_datastore(int(model.config.vocab_size), shared_after) as live:
        for number, recording in enumerate(recordings):
            for tenant in tenants_of(number):
                document = document_of(recording, tenant, f"{number} {tenant}")
                if document is not None:
                    add_to(live, [document])
                    texts[tenant].append(document.tokens)
        readable = Readable(texts)
        generator = Generator(model, sources=[live], adaptive=False, max_nodes=16)
        for number, recording in enumerate(recordings):
            steps = steps_of(generator, recording.prompt.tolist(), max_new_tokens)
            tokens = sum(map(len, steps))
            speeds[KINDS[number % 3]].append(tokens / len(steps))
            written += tokens
            for before, step in zip([[], *steps], steps, strict=False):
                drafted = step[:-1]
                if len(drafted) >= MIN_READ:
                    read += len(drafted)
                    private += len(drafted) * readable.is_private([*before[-1:], *drafted])
    return {
        "shared_after": shared_after,
        "tokens_per_step": {kind: float(np.mean(own)) for kind, own in speeds.items()},
        "guessing": {kind: area_under_roc(speeds[kind], speeds[KINDS[2]]) for kind in KINDS[:2]},
        "tokens": written,
        "read": read,
        "read_of_one_tenant": private,
    }


# --- The cost -------------------------------------------------------------------------------------


def repository_of(task: str) -> str:
    """Return the repository of a task of SWE-bench."""
    return task.rpartition("-")[0]


def tasks_of(recordings: Iterable[Recording]) -> dict[str, list[Recording]]:
    """Return the recordings of each task."""
    tasks: dict[str, list[Recording]] = defaultdict(list)
    for recording in recordings:
        tasks[recording.key].append(recording)
    return tasks


def cost(
    replayed: Mapping[str, Sequence[Recording]],
    earlier: Mapping[str, Sequence[Recording]],
    shared_after: int,
    max_nodes: int,
    *,
    knows_own: bool,
) -> Outcome:
    """Replay the tasks of one repository, each with the earlier runs of its other tasks.

    Args:
        replayed: the recordings to replay, by task.
        earlier: those of earlier runs, by task.
        shared_after: of the datastore that has these.
        max_nodes: of a step.
        knows_own: whether the datastore has the earlier runs of the replayed task, too.
    """
    everything = [*replayed.values(), *earlier.values()]
    greatest = max(int(some.prompt.max()) for task in everything for some in task)
    written = max(int(some.output.max(initial=0)) for task in everything for some in task)
    calibration = Calibration.default()
    outcomes = []
    with shared_datastore(max(greatest, written) + 1, shared_after) as live:
        for task in earlier:
            _add(live, task, earlier[task])
        for task, recordings in replayed.items():
            own = [f"{task} {number}" for number in range(len(earlier.get(task, ())))]
            if not knows_own:
                live.delete(own)
            outcomes.append(
                replay(
                    recordings,
                    [PromptLookup(), live.read_as(task)],
                    calibration,
                    max_nodes=max_nodes,
                )
            )
            if not knows_own:
                _add(live, task, earlier.get(task, ()))
    return Outcome.from_outcomes(outcomes)


def _add(live: LiveDatastore, task: str, recordings: Sequence[Recording]) -> None:
    documents = [
        document_of(recording, task, f"{task} {number}")
        for number, recording in enumerate(recordings)
    ]
    add_to(live, [document for document in documents if document is not None])


def costs(
    recordings: Sequence[Recording], history: Sequence[Recording], max_nodes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return a row for each value of `shared_after`, number of nodes, and text that is known."""
    replayed: dict[str, dict[str, list[Recording]]] = defaultdict(dict)
    for task, own in tasks_of(recordings).items():
        replayed[repository_of(task)][task] = own
    earlier = tasks_of(history)
    rows: list[dict[str, Any]] = []
    for nodes in max_nodes:
        for knows_own in (False, True):
            for shared_after in COSTS:
                began = time.monotonic()
                outcomes = []
                by_repository = {}
                for repository, tasks in replayed.items():
                    known = {
                        task: own
                        for task, own in earlier.items()
                        if repository_of(task) == repository
                    }
                    if len(known) < MIN_TASKS:
                        continue
                    outcome = cost(tasks, known, shared_after, nodes, knows_own=knows_own)
                    outcomes.append(outcome)
                    by_repository[repository] = outcome.as_json()["M"]
                row = {
                    "nodes": nodes,
                    "same_task": knows_own,
                    "shared_after": shared_after,
                    **Outcome.from_outcomes(outcomes).as_json(),
                    "repositories": by_repository,
                }
                rows.append(row)
                click.echo(
                    f"{nodes} nodes, {'the same task, too' if knows_own else 'other tasks'},"
                    f" shared after {shared_after}: M {row['M']:.2f}"
                    f" ({time.monotonic() - began:.0f} s)"
                )
    return rows


# --- The command ----------------------------------------------------------------------------------


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_privacy.py --recordings third.jsonl --history-from"
        " earlier.jsonl --model smollm2 --asked traces.jsonl.gz --out privacy.json"
    ),
)
@recordings_option(required=False)
@history_from_option
@click.option(
    "--max-nodes", metavar="N", multiple=True, default=(16, 48), type=click.IntRange(1, 1024)
)
@click.option(
    "--model", metavar="DIR", type=PATH, help="The attacked model, of transformers, in float32."
)
@click.option(
    "--asked",
    metavar="FILE",
    type=PATH,
    help="Recordings of this model: prompts of tenants.",
)
@click.option(
    "--tokens", metavar="N", default=64, type=click.IntRange(8), help="Tokens of each answer."
)
@every_option
@result_options
def main(
    recordings: tuple[Path, ...],
    history_from: tuple[Path, ...],
    max_nodes: tuple[int, ...],
    model: Path | None,
    asked: Path | None,
    tokens: int,
    every: int,
    out: Destination,
) -> None:
    results: dict[str, Any] = {"attack": [], "cost": []}
    if recordings:
        replayed = [one for path in recordings for one in read_recordings(path)]
        history = [one for path in history_from for one in read_recordings(path)]
        results["cost"] = costs(replayed, history, max_nodes)
    if model is not None and asked is not None:
        import torch
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
        fitting = [
            one
            for one in read_recordings(asked)
            if one.prompt.size <= MAX_PROMPT and one.output.size >= tokens
        ][::every]
        for shared_after in ATTACKED:
            row = attack(loaded, fitting, shared_after, tokens)
            results["attack"].append(row)
            click.echo(f"attack, {len(fitting)} prompts: {row}")
    arguments = {
        "recordings": recordings,
        "history_from": history_from,
        "max_nodes": max_nodes,
        "model": model,
        "asked": asked,
        "tokens": tokens,
        "every": every,
    }
    write_result(out, "privacy", arguments, ["numpy", "torch", "transformers"], results)


if __name__ == "__main__":
    main()
