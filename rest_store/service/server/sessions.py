"""The draft sessions of a service: what they share, and the memory that all of them take."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from rest_store.datastore.kernel import native_kernel
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import LimitError, OverloadedError, TokenizerMismatchError, describe
from rest_store.service.server.hosted_datastore import HostedDatastore
from rest_store.service.server.limits import Limits
from rest_store.service.server.served_session import FIXED_MEMORY, ServedSession
from rest_store.v1 import datastore_pb2 as pb

_LONGEST_KEY, _LONGEST_NAME = 64, 256  # bytes
_MOST_KEPT = 256  # calibrations, and recycled logits, that are kept for further sessions

S = TypeVar("S")


class Sessions:
    """All sessions of a service. For use within one event loop.

    Args:
        limits: of the service.

    Attributes:
        open: the sessions that are open now.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calibrations: OrderedDict[Hashable, Calibration] = OrderedDict()  # the latest last
        self._recycled: OrderedDict[Hashable, RecycledLogits] = OrderedDict()
        self.open: set[ServedSession] = set()

    @property
    def memory(self) -> int:
        """Bytes that sessions have reserved, and those of the calibrations and recycled logits that they share."""
        sessions = list(self.open)  # a copy: metrics are collected in another thread
        tables = {*self._recycled.values(), *(session.recycled for session in sessions if session.recycled is not None)}
        idle = {*self._calibrations.values()}.difference(session.calibration for session in sessions)
        of_sessions = sum(session.memory for session in sessions)  # with their calibrations
        return of_sessions + sum(table.memory for table in tables) + FIXED_MEMORY * len(idle)

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
        calibration = _shared(self._calibrations, (names, name) if name else None, Calibration.default)
        recycled = None
        if opening.HasField("recycled_logits"):
            recycled = _shared(self._recycled, key or None, RecycledLogits)
        session = ServedSession(opening, served, calibration, recycled, self._limits, self._require_memory)
        self.open.add(session)
        return session

    def end(self, session: ServedSession) -> None:
        """Give back what `session` has reserved."""
        self.open.discard(session)

    def _require_memory(self, more: int) -> None:
        """Make room for `more` bytes; raise OverloadedError if open sessions need it."""
        most = self._limits.max_session_memory
        while (memory := self.memory + more) > most:
            if not self._forget_one():
                raise OverloadedError(f"service is overloaded: its sessions would take {memory} bytes of {most}")

    def _forget_one(self) -> bool:
        """Forget the oldest recycled logits or calibration that no open session uses; return whether there is one."""
        in_use = {shared for session in self.open for shared in (session.recycled, session.calibration)}
        for kept in (self._recycled, self._calibrations):
            for key, shared in kept.items():
                if shared not in in_use:
                    del kept[key]
                    return True
        return False


def _shared(kept: OrderedDict[Hashable, S], key: Hashable, make: Callable[[], S]) -> S:
    """Return the object that sessions with the same key share, and keep it for later ones; a new one for None."""
    if key is None:
        return make()
    value = kept.pop(key, None)
    kept[key] = value = make() if value is None else value
    if len(kept) > _MOST_KEPT:
        kept.popitem(last=False)
    return value
