"""The sessions of one stream: steps that come together are drafted together, and an error ends its session alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

from rest_store.errors import MessageOrderError, MessageSizeError, OverloadedError, RestStoreError, describe
from rest_store.service.server.limits import MAX_STREAM_SESSIONS, Limits
from rest_store.service.server.requests import parse, require_few_fields
from rest_store.service.server.rights import Rights
from rest_store.service.server.session_handlers import SessionHandlers, SessionState, SessionWork
from rest_store.v1 import datastore_pb2 as pb

_WRITE_SECONDS = 1.0  # for what is being sent as a stream ends


@dataclass(eq=False)
class _Member:
    """One session: its state, when its last message came, and its long step while one runs."""

    state: SessionState
    last_message: float
    running: asyncio.Task[None] | None = None


class _Turn(NamedTuple):
    """A step of one session, to be run."""

    number: int
    member: _Member
    work: SessionWork
    is_last: bool


class SharedStream:
    """The sessions of one stream of `DraftSessions`. For use within one event loop.

    Args:
        handlers: of the messages of each session.
        rights: of the stream.
        limits: of the service.
        write: sends a message.
        end_of: returns the message for an error that has ended a session.
        settled: called when a step was answered that ran beside later messages.
    """

    def __init__(
        self,
        handlers: SessionHandlers,
        rights: Rights,
        limits: Limits,
        write: Callable[[bytes], Awaitable[None]],
        end_of: Callable[[Exception], pb.SessionEnd],
        settled: Callable[[], object],
    ) -> None:
        self._handlers = handlers
        self._rights = rights
        self._limits = limits
        self._write_message = write
        self._end_of = end_of
        self._settled = settled
        self._members: dict[int, _Member] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()
        self._is_taking = False  # whether a message is being answered
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Whether a step is not answered yet."""
        return self._is_taking or bool(self._tasks)

    async def take(self, data: bytes) -> None:
        """Answer a DraftSessionsRequest.

        Raises:
            ContextTypeError, LimitError, MessageOrderError: it is malformed, or has two steps of one session.
        """
        self._is_taking = True
        try:
            turns, answers = await self._begun(data)
            await self._write([*answers, *await self._run(turns)])
        finally:
            self._is_taking = False

    async def _begun(self, data: bytes) -> tuple[list[_Turn], list[pb.SessionAnswer]]:
        """Return the steps of a message to run together, and the answers to those that have failed or only end.

        Long steps are run beside later messages.
        """
        require_few_fields(data, MAX_STREAM_SESSIONS)
        steps = parse(pb.DraftSessionsRequest, data).steps
        if len({step.session for step in steps}) < len(steps):
            found, expected = "named twice in a message", "one step of each session"
            raise MessageOrderError(describe("sessions", "session", found, expected))
        turns: list[_Turn] = []
        answers: list[pb.SessionAnswer] = []
        for step in steps:
            await self._previous(step.session)
            try:
                turn = self._turn(step)
            except Exception as error:
                answers.append(self._ended(step.session, error))
                continue
            if turn is None:
                answers.append(self._ended(step.session))
            elif turn.work.step.is_long:
                turn.member.running = self._start(self._run_alone(turn))
            else:
                turns.append(turn)
        return turns, answers

    async def _previous(self, number: int) -> None:
        """Wait for the long step of a session, if one runs."""
        if (member := self._members.get(number)) is not None and member.running is not None:
            await asyncio.wait([member.running])

    def _turn(self, step: pb.SessionStep) -> _Turn | None:
        """Return a step to run; None if it only ends its session. An error that it raises ends the session."""
        member = self._members.get(step.session)
        if member is None:
            if len(self._members) >= MAX_STREAM_SESSIONS:
                raise OverloadedError(f"stream has {MAX_STREAM_SESSIONS} sessions; open another stream")
            member = self._members[step.session] = _Member(SessionState(self._rights), 0.0)
        member.last_message = monotonic()
        if step.last and not step.HasField("request"):
            return None
        is_open = member.state.session is not None
        most = self._limits.max_request_bytes if is_open else self._limits.max_opening_bytes
        if len(step.request) > most:
            raise MessageSizeError(describe("request", "size", f"{len(step.request)} bytes", f"at most {most}"))
        return _Turn(step.session, member, self._handlers.begin(member.state, step.request), step.last)

    async def _run(self, turns: Sequence[_Turn]) -> list[pb.SessionAnswer]:
        """Do the work of steps together, and return their answers."""
        if not turns:
            return []
        answers = []
        results = await self._handlers.run([turn.work for turn in turns])
        most = self._limits.max_message_bytes
        for turn, result in zip(turns, results, strict=True):
            if isinstance(result, bytes) and len(result) > most:
                error = MessageSizeError(describe("response", "size", f"{len(result)} bytes", f"at most {most}"))
                answers.append(self._ended(turn.number, error))
            elif isinstance(result, Exception):
                answers.append(self._ended(turn.number, result))
            elif turn.is_last:
                answers.append(self._ended(turn.number))
                if result is not None:
                    answers[-1].response = result
            elif result is not None:
                answers.append(pb.SessionAnswer(session=turn.number, response=result))
        return answers

    async def _run_alone(self, turn: _Turn) -> None:
        """Do the work of a step while other messages are answered."""
        try:
            answers = await self._run([turn])
        finally:
            turn.member.running = None
        await self._write_beside(answers)

    def _start(self, work: Any) -> asyncio.Task[None]:
        """Do `work` beside later messages."""
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._settled()

    async def _write(self, answers: Sequence[pb.SessionAnswer]) -> None:
        """Send answers, split into messages of at most `max_message_bytes`."""
        message, size = pb.DraftSessionsResponse(), 0
        async with self._writing:
            if self._is_closed:
                return
            for answer in answers:
                more = answer.ByteSize()
                if message.answers and size + more > self._limits.max_message_bytes:
                    await self._write_message(message.SerializeToString())
                    message, size = pb.DraftSessionsResponse(), 0
                message.answers.append(answer)
                size += more
            if message.answers:
                await self._write_message(message.SerializeToString())

    async def _write_beside(self, answers: Sequence[pb.SessionAnswer]) -> None:
        """Send answers from a task; if it is cancelled, a message that gRPC is sending is still sent."""

        async def write() -> None:
            with suppress(Exception):  # the stream has ended, as whoever reads it is told
                await self._write(answers)

        await asyncio.shield(write())

    def _ended(self, number: int, error: Exception | None = None) -> pb.SessionAnswer:
        """End a session, and return the answer that says so."""
        member = self._members.pop(number, None)
        if member is not None:
            self._handlers.end(member.state)
        end = pb.SessionEnd() if error is None else self._end_of(error)
        return pb.SessionAnswer(session=number, end=end)

    def end_idle(self, latest: float, error: RestStoreError) -> None:
        """End the sessions that have had no message since `latest` (`time.monotonic`)."""
        idle = [
            number
            for number, member in self._members.items()
            if member.last_message < latest and not (member.state.session and member.state.session.in_step)
        ]
        if idle:
            self._start(self._write_beside([self._ended(number, error) for number in idle]))

    async def close(self) -> None:
        """End all sessions, and wait for what is being sent: beside it, gRPC may not send how the stream has ended."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for number in list(self._members):
            self._handlers.end(self._members.pop(number).state)
        with suppress(asyncio.TimeoutError):  # a client that reads nothing
            await asyncio.wait_for(self._written(), _WRITE_SECONDS)

    async def _written(self) -> None:
        """Wait until nothing is being sent."""
        async with self._writing:
            pass
