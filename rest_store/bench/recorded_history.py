"""History in replays: other recordings in a live datastore, and their recycled logits."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.bench.recordings import Recording
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import add_to
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import RecycledLogits

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore

# Recordings to replay, each with the recordings that are known meanwhile.
Known = Iterator[tuple[Recording, Sequence[Recording]]]
# An order of replays, which keeps other recordings in a live datastore.
Order = Callable[[Sequence[Recording], "LiveDatastore"], Known]


@contextmanager
def new_live_datastore(tokenizer: TokenizerIdentity) -> Iterator[LiveDatastore]:
    """Open an empty live datastore in a folder that goes with it."""
    # The import loads the sorter, which other commands do not need.
    from rest_store.live.live_datastore import LiveDatastore

    with (
        tempfile.TemporaryDirectory(prefix="rest-store-") as folder,
        LiveDatastore.open(Path(folder, "live"), tokenizer=tokenizer) as live,
    ):
        yield live


def learned_logits(recordings: Iterable[Recording]) -> RecycledLogits:
    """Return recycled logits that have learnt from `recordings`, as from earlier sessions."""
    logits = RecycledLogits()
    for recording in recordings:
        if recording.top_k.size:
            known = max(0, recording.prompt.size - 1)
            DraftSession([logits], recording.prompt).accept(
                recording.output, recording.top_k[known:]
            )
    return logits


def in_turn(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
    """Yield each recording and those before it, in order; `live` holds those before it."""
    for number, recording in enumerate(recordings):
        yield recording, recordings[:number]
        add_outputs(live, [number], recordings)


def among_others(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
    """Yield each recording and all recordings of other tasks; `live` holds the latter."""
    tasks: dict[object, list[int]] = defaultdict(list)
    for number, recording in enumerate(recordings):
        tasks[recording.key or recording.prompt.tobytes()].append(number)
    add_outputs(live, range(len(recordings)), recordings)
    for recording in recordings:
        absent = tasks[recording.key or recording.prompt.tobytes()]
        live.delete([str(number) for number in absent])
        others = [other for number, other in enumerate(recordings) if number not in absent]
        yield recording, others
        add_outputs(live, absent, recordings)


def holding(others: Sequence[Recording]) -> Order:
    """Return the order of recordings as they are, while a live datastore holds `others`."""

    def order(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
        add_outputs(live, range(len(others)), others)
        return ((recording, others) for recording in recordings)

    return order


def add_outputs(
    live: LiveDatastore, numbers: Iterable[int], recordings: Sequence[Recording]
) -> None:
    """Add the recordings of these numbers to `live`, as generation remembers outputs.

    The recordings of a task are a group.
    """
    documents = []
    for number in numbers:
        recording = recordings[number]
        document = OutputDocument.from_output(
            recording.prompt.tolist(), recording.output.tolist(), recording.key
        )
        if document is not None:
            documents.append(document._replace(id=str(number)))
    add_to(live, documents)
