"""Waiting for the first of several tasks, and ending tasks for certain.

What lives here: two helpers over asyncio's tasks. What may not: anything about slotbus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, Final

AGAIN_S: Final = 0.5
"""After which a task that goes on is cancelled again: before Python 3.12 ``wait_for``,
which nats-py uses, swallows a cancellation that arrives together with a result."""


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels all of them and returns when every one has ended, however it did."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*works: Coroutine[object, object, object]) -> None:
    """Runs all until the first has ended; the others are cancelled, and awaited.

    Raises the error of the first, in the order given, that ended with one by itself.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_all(tasks)
    for task in tasks:
        if task in done:
            task.result()
