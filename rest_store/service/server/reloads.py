"""Reloads of a service, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Reloads(Generic[T]):
    """Runs reloads so that each answers only for what it read after it was asked for. For use within one event loop.

    A reload that is asked for while one runs may find what that one has passed already. It runs afterwards, once for
    all who ask until it begins.

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
