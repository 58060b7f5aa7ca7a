"""Workers that the embedded backend finds by import: ``tests.support.entries:NAME``.

What lives here: small async functions. What may not: what is expected of them.
"""

from __future__ import annotations

import asyncio

from schedulers import WorkerContext


async def obedient(context: WorkerContext) -> None:
    """Works until it is asked to end."""
    await context.stop.wait()


class Deaf:
    """Swallows its first cancellation too; ``ready`` says that it runs."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.ready = asyncio.Event()

    async def __call__(self, context: WorkerContext) -> None:
        self.ready.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.cancelled > 1:
                    raise


class Namespace:
    """A callable may lie deeper in its module."""

    obedient = staticmethod(obedient)


def blocking(context: WorkerContext) -> int:
    """No async function: it would hold up the loop."""
    return 0
