"""Replay with a live datastore: which recordings it holds while one of them is replayed."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.bench.recordings import Recording
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.output_document import OutputDocument

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore


@contextmanager
def new_live_datastore(tokenizer: TokenizerIdentity) -> Iterator[LiveDatastore]:
    """Open an empty live datastore in a folder that goes with it."""
    from rest_store.live.live_datastore import LiveDatastore  # loads what sorts, which other commands do without

    with (
        tempfile.TemporaryDirectory(prefix="rest-store-") as folder,
        LiveDatastore.open(Path(folder, "live"), tokenizer=tokenizer) as live,
    ):
        yield live


def in_turn(
    recordings: Sequence[Recording], live: LiveDatastore, chosen: Callable[[Recording], bool] | None = None
) -> Iterator[Recording]:
    """Yield the recordings in order, or those that are `chosen`, each while `live` holds all before it."""
    for number, recording in enumerate(recordings):
        if chosen is None or chosen(recording):
            yield recording
        _add(live, [number], recordings)


def among_others(
    recordings: Sequence[Recording],
    live: LiveDatastore,
    chosen: Callable[[Recording], bool] | None = None,
    *,
    same_task: bool = False,
) -> Iterator[Recording]:
    """Yield the recordings, or those that are `chosen`, each while `live` holds all others.

    Args:
        recordings: all; `live` holds them in the end.
        live: empty.
        chosen: which to yield.
        same_task: whether it also holds the recordings of other prompts of the same task.
    """
    tasks: dict[object, list[int]] = defaultdict(list)
    for number, recording in enumerate(recordings):
        tasks[recording.key or recording.prompt.tobytes()].append(number)
    _add(live, range(len(recordings)), recordings)
    for number, recording in enumerate(recordings):
        if chosen is not None and not chosen(recording):
            continue
        absent = [number] if same_task else tasks[recording.key or recording.prompt.tobytes()]
        live.delete([str(one) for one in absent])
        yield recording
        _add(live, absent, recordings)


def with_all(
    recordings: Sequence[Recording], live: LiveDatastore, chosen: Callable[[Recording], bool] | None = None
) -> Iterator[Recording]:
    """Yield the recordings, or those that are `chosen`, while `live` holds all of them."""
    _add(live, range(len(recordings)), recordings)
    yield from filter(chosen, recordings) if chosen is not None else recordings


def _add(live: LiveDatastore, numbers: Sequence[int], recordings: Sequence[Recording]) -> None:
    documents = {}
    for number in numbers:
        recording = recordings[number]
        document = OutputDocument.of(recording.prompt.tolist(), recording.output.tolist())
        if document is not None:
            documents[str(number)] = document.tokens
    live.add(list(documents.values()), list(documents))
