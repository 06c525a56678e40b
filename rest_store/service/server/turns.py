"""The turns of a stream: an answer goes out, and the next request comes in.

`grpc.aio` wakes a handler twice in a turn, once when the answer has left and once when a request has come, each time
through another thread. The core of gRPC does both as one batch and tells when both are done, which is all that a
conversation needs; that takes a sixth of the time of a turn away. `grpc.aio` has no public name for it, so it is asked
below that, and where something there is not as expected, the two public calls do the same.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
from typing import Any

import grpc

try:
    _core: Any = importlib.import_module("grpc._cython.cygrpc")  # has no types
    _OPERATIONS: Any = _core.SendMessageOperation, _core.ReceiveMessageOperation, _core.execute_batch
    _Ended, _State = _core.ExecuteBatchError, _core.RPCState
except (ImportError, AttributeError):  # of a grpcio to come
    _OPERATIONS = _State = None
    _Ended = ()

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
_NO_FLAGS = 0


class Turns:
    """The turns of one stream, for the task that handles it.

    Args:
        context: the handler's, whose messages are bytes.
    """

    __slots__ = ("_context", "_loop", "_state")

    def __init__(self, context: Any) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._state: Any = None  # of the call within gRPC, once both go as one; False: they do not

    @property
    def joined(self) -> bool:
        """Whether answer and request go as one by now; never before the first answer, which takes headers along."""
        return bool(self._state)

    async def first(self) -> Any:
        """Return the first request, or EOF."""
        return await self._context.read()

    async def next(self, answer: bytes) -> Any:
        """Send `answer`, and return the next request, or EOF."""
        context = self._context
        if self._state:
            send, receive, execute = _OPERATIONS
            coming = receive(_NO_FLAGS)
            try:
                both = execute(self._state, (send(answer, _NO_FLAGS), coming), self._loop)
            except TypeError:  # refused before anything was begun: not the signature that was expected
                self._state = False
            else:
                try:
                    await both
                    request = coming.message()
                except _Ended:
                    request = None
                return await context.read() if request is None else request  # which knows how it has ended
        await context.write(answer)
        if self._state is None:
            self._state = _state_of(context) or False
        return await context.read()


def _state_of(context: Any) -> Any:
    """Return the state of a handler's call within gRPC, None if there is none."""
    if _State is None:
        return None
    return next((one for one in gc.get_referents(context) if type(one) is _State), None)
