"""Outputs of sessions for live datastores to remember: one document for each, however many streams it takes."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

from rest_store.errors import LimitError, describe
from rest_store.service.server.hosted_live_datastore import HostedLiveDatastore
from rest_store.service.server.requests import Tokens
from rest_store.v1 import datastore_pb2 as pb

_LONGEST_ID = 64  # characters


@dataclass(eq=False)
class RememberedOutput:
    """The output of one stream that is to be remembered.

    Attributes:
        live: the datastore that remembers it.
        id: chosen by the client for all streams of one generation; empty: none.
        continues: whether the model had written something before this stream.
        finished: whether the generation has ended. Otherwise another stream may come with all of the output.
        replaced: whether such a stream has come.
    """

    live: HostedLiveDatastore
    id: str
    continues: bool
    finished: bool = False
    replaced: bool = False

    @classmethod
    def of(cls, opening: pb.SessionOpening, live: HostedLiveDatastore) -> RememberedOutput:
        """Return the output that `opening` describes; raise LimitError if its id cannot be part of a document's id."""
        if len(opening.output_id) > _LONGEST_ID or not opening.output_id.isprintable():
            found, expected = reprlib.repr(opening.output_id), f"at most {_LONGEST_ID} printable characters"
            raise LimitError(describe("session", "id of the output", found, expected))
        return cls(live, opening.output_id, opening.written > 0)


class RememberedOutputs:
    """The outputs of open streams. For use within one event loop."""

    def __init__(self) -> None:
        self._latest: dict[tuple[HostedLiveDatastore, str], RememberedOutput] = {}  # by the ids of clients

    def begin(self, output: RememberedOutput) -> None:
        """Begin the stream of `output`. An earlier stream with its id, which may not have ended yet, is replaced."""
        if output.id:
            key = output.live, output.id
            if (before := self._latest.get(key)) is not None:
                before.replaced = True
            self._latest[key] = output

    def end(self, output: RememberedOutput, prompt_end: Sequence[int], tokens: Tokens) -> None:
        """Remember the output of a stream that has ended. A later stream can replace it if it is not finished.

        Args:
            output: of the stream.
            prompt_end: the end of the text before it.
            tokens: all that the model has written.
        """
        if output.replaced:
            return
        if output.id and self._latest.get(key := (output.live, output.id)) is output:
            del self._latest[key]
        unfinished = f"unfinished {output.id}" if output.id else ""
        output.live.remember(
            prompt_end,
            tokens,
            id="" if output.finished else unfinished,
            replaced=unfinished if output.continues else "",
        )
