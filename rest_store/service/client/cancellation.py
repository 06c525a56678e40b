"""Who was cancelled: the task that waits for a call, or only the call."""

from __future__ import annotations

import asyncio


def is_cancelled() -> bool:
    """Whether the running task has been cancelled itself; before Python 3.11, where a task does not say, True."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return cancelling is None or cancelling() > 0
