"""Embedded workers for the contract suites: they act out the suites' shell commands.

What lives here: one async function that runs its command as a process, asks it to end when
it is asked itself, and kills it when it is cancelled. What may not: what is expected.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from schedulers.embedded import Worker, WorkerContext


async def _runs(program: str, context: WorkerContext) -> int:
    process = await asyncio.create_subprocess_exec(
        *(program, *context.arguments),
        env={**context.env, "PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    ending = asyncio.create_task(process.wait())
    stopping = asyncio.create_task(context.stop.wait())
    try:
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            os.killpg(process.pid, signal.SIGTERM)
        code = await asyncio.shield(ending)
    except asyncio.CancelledError:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await ending
        raise
    finally:
        stopping.cancel()
    return code if code >= 0 else 128 - code


def _acting(program: str) -> Worker:
    async def worker(context: WorkerContext) -> int:
        return await _runs(program, context)

    return worker


TERMINATED: int = 128 + signal.SIGTERM
"""The exit code of one that was asked to end: a task can't end by a signal, so the worker
says it as a shell does."""

COMMANDS: dict[str, Worker] = {
    program: _acting(program) for program in ("sleep", "true", "sh", sys.executable)
}
