"""The draft sessions of a service: what they share, and the memory that all of them take."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from rest_store.datastore.kernel import native_kernel
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import LimitError, OverloadedError, TokenizerMismatchError, describe
from rest_store.service.server.hosted_datastore import HostedDatastore
from rest_store.service.server.limits import Budget, Limits
from rest_store.service.server.served_session import ServedSession
from rest_store.v1 import datastore_pb2 as pb

_LONGEST_KEY, _LONGEST_NAME = 64, 256  # bytes
_MOST_CALIBRATIONS, _MOST_TABLES = 256, 64  # that are kept for sessions; a table of recycled logits has up to 9 MB

S = TypeVar("S")


class Sessions:
    """All sessions of a service. For use within one event loop.

    Args:
        limits: of the service.

    Attributes:
        memory: bytes that sessions have reserved, besides recycled logits.
        open: the sessions that are open now.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calibrations: dict[Hashable, Calibration] = {}  # the latest last
        self._tables: dict[Hashable, RecycledLogits] = {}
        self.memory = Budget("bytes of memory for sessions", limits.max_session_memory)
        self.open: set[ServedSession] = set()

    def begin(self, opening: pb.SessionOpening, served: Sequence[HostedDatastore]) -> ServedSession:
        """Return a new session over the datastores `served`, which `end` ends. Its text is not read yet.

        Raises:
            LimitError: the text, a key or a name is too long, or there are too many datastores.
            TokenizerMismatchError: the datastores have several tokenizers.
            OverloadedError: the sessions take too much memory.
        """
        most = int(native_kernel().MAX_STORES)
        if len(served) > most:
            raise LimitError(describe("session", "number of datastores", len(served), f"at most {most}"))
        if len(set(served)) < len(served):
            raise LimitError(describe("session", "datastores", "named twice", "each once"))
        if len({datastore.fingerprint for datastore in served}) > 1:
            raise TokenizerMismatchError(describe("session", "datastores", "of several tokenizers", "those of one"))
        key, name = opening.recycled_logits, opening.shared_calibration.encode()
        for what, value, longest in (("recycled logits", key, _LONGEST_KEY), ("calibration", name, _LONGEST_NAME)):
            if len(value) > longest:
                raise LimitError(describe("session", f"key of {what}", f"{len(value)} bytes", f"at most {longest}"))
        names = tuple(datastore.name for datastore in served)
        in_use: set[object] = {shared for session in self.open for shared in (session.recycled, session.calibration)}
        calibration = Calibration.default()
        if name:
            calibration = _shared(self._calibrations, (names, name), Calibration.default, in_use, _MOST_CALIBRATIONS)
        recycled = None
        if opening.HasField("recycled_logits"):
            recycled = _shared(self._tables, key or object(), RecycledLogits, in_use, _MOST_TABLES)
        session = ServedSession(opening, served, calibration, recycled, self._limits, self.memory)
        self.open.add(session)
        return session

    def end(self, session: ServedSession) -> None:
        """Give back what `session` has reserved."""
        self.open.discard(session)
        self.memory.give_back(session.memory)


def _shared(kept: dict[Hashable, S], key: Hashable, make: Callable[[], S], in_use: set[object], most: int) -> S:
    """Return the object that sessions with the same key share, and keep it for later ones.

    Raises:
        OverloadedError: sessions use as many as there may be.
    """
    value = kept.pop(key, None)
    if value is None:
        if len(kept) == most:
            oldest = next((other for other, shared in kept.items() if shared not in in_use), None)
            if oldest is None:
                raise OverloadedError(f"service is overloaded: sessions use {most} keys; try again later")
            del kept[oldest]
        value = make()
    kept[key] = value
    return value
