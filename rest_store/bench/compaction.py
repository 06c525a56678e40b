"""Compactions in replays: prompts without their middle, with and without an archive of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rest_store.bench.recordings import Recording
from rest_store.bench.replay import Tokens
from rest_store.errors import DataFileError, describe

KEPT_FIRST = 1_500  # tokens of a prompt that a compaction keeps: instructions and the task


class Context(NamedTuple):
    """The part of its prompt that the session of a recording has.

    Attributes:
        name: for people; empty: there is only one such part.
        kept_last: the last tokens that a compaction keeps, beside the first `KEPT_FIRST`; None: the
            prompt is whole.
        archived: whether the tokens that were cut are a reference of the session.
    """

    name: str = ""
    kept_last: int | None = None
    archived: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """Its column of a row in the results, if it has a name."""
        return {"context": self.name} if self.name else {}

    def cut(self, recording: Recording) -> tuple[Recording, list[Tokens]]:
        """Return a recording whose prompt is this part, and the references of its session."""
        if self.kept_last is None or not is_cut(recording, self.kept_last):
            return recording, []
        end = recording.prompt.size - self.kept_last
        archive = recording.prompt[KEPT_FIRST:end]
        prompt = np.delete(recording.prompt, np.s_[KEPT_FIRST:end])
        top_k = recording.top_k
        if top_k.size:
            top_k = np.delete(top_k, np.s_[KEPT_FIRST:end], axis=0)
        compacted = replace(recording, prompt=prompt, top_k=top_k)
        return compacted, [archive] if self.archived else []


WHOLE = Context()


def contexts(kept_last: int) -> list[Context]:
    """Return the whole context, the one after a compaction, and the same with an archive."""
    return [
        Context("whole"),
        Context("compacted", kept_last),
        Context("compacted, with an archive", kept_last, archived=True),
    ]


def is_cut(recording: Recording, kept_last: int) -> bool:
    """Return whether a compaction cuts the prompt of a recording."""
    return recording.prompt.size > KEPT_FIRST + kept_last


def compacted(recordings: Iterable[Recording], kept_last: int) -> list[Recording]:
    """Return the recordings whose prompts a compaction cuts.

    Raises:
        DataFileError: there is none.
    """
    chosen = [recording for recording in recordings if is_cut(recording, kept_last)]
    if not chosen:
        figure = f"number of prompts with more than {KEPT_FIRST + kept_last:,} tokens"
        raise DataFileError(describe("bench replay --compact", figure, 0, "at least one"))
    return chosen
