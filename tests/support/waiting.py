"""Waiting in tests: for something to become true, never for time to pass.

What lives here: helpers with a deadline. What may not: anything about slotbus.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

DEADLINE_S = 20.0
T = TypeVar("T")


async def until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Returns once ``condition`` holds, which is looked at every 5 ms. Raises TimeoutError."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  what is waited for knows no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def background(coroutine: Coroutine[object, object, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Runs a coroutine beside a block of code; it is ended, and awaited, with the block.

    Its own error is the block's to look at: await the task inside.
    """
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
