"""Replay with what is remembered of other recordings: a live
datastore that holds them, and their recycled logits.
"""

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

# A recording to replay, and those that are known meanwhile.
Known = Iterator[tuple[Recording, Sequence[Recording]]]
# In which order recordings are replayed, and which others a live datastore holds meanwhile.
Order = Callable[[Sequence[Recording], "LiveDatastore"], Known]


@contextmanager
def new_live_datastore(tokenizer: TokenizerIdentity) -> Iterator[LiveDatastore]:
    """Open an empty live datastore in a folder that goes with it."""
    # Loads what sorts, which other commands do without.
    from rest_store.live.live_datastore import LiveDatastore

    with (
        tempfile.TemporaryDirectory(prefix="rest-store-") as folder,
        LiveDatastore.open(Path(folder, "live"), tokenizer=tokenizer) as live,
    ):
        yield live


def logits_of(recordings: Iterable[Recording]) -> RecycledLogits:
    """Return recycled logits that have learnt from `recordings`, as
    if earlier sessions had shared them.
    """
    logits = RecycledLogits()
    for recording in recordings:
        if recording.top_k.size:
            known = max(0, recording.prompt.size - 1)
            DraftSession([logits], recording.prompt).accept(
                recording.output, recording.top_k[known:]
            )
    return logits


def in_turn(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
    """Yield each recording, in order, while `live` holds all before it; and those before it."""
    for number, recording in enumerate(recordings):
        yield recording, recordings[:number]
        add_outputs(live, [number], recordings)


def among_others(recordings: Sequence[Recording], live: LiveDatastore) -> Known:
    """Yield each recording while `live` holds all of other tasks, and these."""
    tasks: dict[object, list[int]] = defaultdict(list)
    for number, recording in enumerate(recordings):
        tasks[recording.key or recording.prompt.tobytes()].append(number)
    add_outputs(live, range(len(recordings)), recordings)
    for recording in recordings:
        absent = tasks[recording.key or recording.prompt.tobytes()]
        live.delete([str(number) for number in absent])
        yield recording, [other for number, other in enumerate(recordings) if number not in absent]
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
    """Add the recordings of these numbers to `live`, as generation remembers them.

    Those of a task are a group.
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
