"""Handlers of session messages, from the bytes of a message to those of its response; nothing here knows gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from rest_store.drafting.remote import NODE_BYTES
from rest_store.errors import LimitError, MessageOrderError, describe
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.remembered_output import RememberedOutput, RememberedOutputs
from rest_store.service.server.requests import parse, selection_of
from rest_store.service.server.rights import Rights
from rest_store.service.server.served_session import ServedSession, Step, are_small, run_steps
from rest_store.service.server.sessions import Sessions
from rest_store.v1 import datastore_pb2 as pb


@dataclass(eq=False)
class SessionState:
    """The rights of a session's stream, and the session once it is open."""

    rights: Rights
    session: ServedSession | None = None
    output: RememberedOutput | None = None


class SessionWork(NamedTuple):
    """The work of one message of a session, without the message.

    Attributes:
        state: of the session.
        step: the step of the session.
        is_opening: whether it is the first message of the session.
        finished: whether the generation has ended.
    """

    state: SessionState
    step: Step
    is_opening: bool
    finished: bool


class SessionHandlers:
    """Answers the messages of sessions. For use within one event loop.

    Args:
        catalog: the datastores.
        limits: of requests.
        metrics: count trees, steps and tokens.
        executor: does the work.
        sessions: all sessions of the service; None: the native kernel that runs them is missing.
    """

    def __init__(
        self, catalog: Catalog, limits: Limits, metrics: Metrics, executor: Executor, sessions: Sessions | None
    ) -> None:
        self._catalog = catalog
        self._limits = limits
        self._metrics = metrics
        self._executor = executor
        self._sessions = sessions
        self._outputs = RememberedOutputs()

    async def step(self, state: SessionState, data: bytes) -> bytes | None:
        """Answer the next DraftSessionRequest of a session, if it asks for anything."""
        [result] = await self.run([self.begin(state, data)])
        if isinstance(result, Exception):
            raise result
        return result

    def begin(self, state: SessionState, data: bytes) -> SessionWork:
        """Return the work of the next DraftSessionRequest of a session; `run` does it, before the next message.

        Raises an error of the table in service/errors.py.
        """
        request = parse(pb.DraftSessionRequest, data)
        if self._sessions is None:
            expected = "none: this service has no native kernel to run sessions with"
            raise LimitError(describe("request", "session", "asked for", expected))
        is_opening = state.session is None
        if request.HasField("open") != is_opening:
            found, expected = ("absent", "first") if is_opening else ("second", "none")
            raise MessageOrderError(describe("session", "opening", found, f"{expected}: a session is opened once"))
        if state.session is None:
            served = self._catalog.select(selection_of(request.open.selection, self._limits), state.rights)
            if request.open.remember:
                state.rights.require_write()
                live = self._catalog.live(request.open.remember, served[0].fingerprint, state.rights)
                state.output = RememberedOutput.of(request.open, live)
            state.session = self._sessions.begin(request.open, served)
        return SessionWork(state, state.session.step(request), is_opening, request.finished)

    async def run(self, works: Sequence[SessionWork]) -> list[bytes | Exception | None]:
        """Do the work of messages of different sessions together.

        Returns:
            For each the DraftSessionResponse, or None if nothing was asked for, or what was raised: an error of the
            table in service/errors.py, or a defect.
        """
        steps = [work.step for work in works]
        for step in steps:
            step.session.in_step = True
        try:
            [results] = await self._executor.run([partial(run_steps, steps)], small=are_small(steps))
        finally:
            for step in steps:
                step.session.in_step = False
        return [self._settled(work, result) for work, result in zip(works, results, strict=True)]

    def _settled(
        self, work: SessionWork, result: pb.DraftSessionResponse | Exception | None
    ) -> bytes | Exception | None:
        """Count what was done, and return the response."""
        if isinstance(result, Exception):
            return result
        if work.state.output is not None:
            if work.is_opening:
                self._outputs.begin(work.state.output)
            work.state.output.finished |= work.finished
        try:
            work.step.session.require_learnt()
        except Exception as error:
            return error
        self._metrics.session_steps += len(work.step.accepted)
        self._metrics.session_tokens += sum(len(one.tokens) for one in work.step.accepted)
        if result is None:
            return None
        self._metrics.session_trees += 1
        self._metrics.nodes += len(result.nodes) // NODE_BYTES
        return result.SerializeToString()

    def end(self, state: SessionState) -> None:
        """End a session: free its memory, and remember its output."""
        if state.session is not None and self._sessions is not None:
            self._sessions.end(state.session)
            if state.output is not None:
                self._outputs.end(state.output, *state.session.output())
