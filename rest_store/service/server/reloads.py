"""Reloads of a service, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Reloads(Generic[T]):
    """Runs reloads one at a time; each reads everything after it was requested. For use within one event loop.

    A reload that is requested while another runs starts after it, since that one may already have read the old files.
    All requests until it starts share it.

    Args:
        read: reads everything again.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None  # has not begun to read

    def start(self) -> asyncio.Task[T]:
        """Return the task of a reload that has not begun yet."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        return self._next

    async def _run(self) -> T:
        async with self._turn:
            self._next = None
            return await self._read()
