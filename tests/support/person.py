"""A person under the manual backend, acted out.

What lives here: doing what an instruction says, with real processes, and reporting ends.
What may not: what is expected of the backend.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from events.states import WorkerState
from events.traffic import WorkerFinishedReq
from schedulers.manual import NODE, Instruction, StartInstruction, StopInstruction


class Person:
    """Types what was printed into a shell, and tells how each worker ended."""

    def __init__(self, report: Callable[[WorkerFinishedReq], Awaitable[None]]) -> None:
        self._report = report
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._doing: set[asyncio.Task[None]] = set()
        self._started: dict[str, asyncio.Event] = {}
        self.told: list[Instruction] = []

    def tell(self, instruction: Instruction) -> None:
        """What the backend calls."""
        self.told.append(instruction)
        if isinstance(instruction, StartInstruction):
            self._started[instruction.worker_id] = asyncio.Event()
            self._do(self._start(instruction))
        else:
            self._do(self._stop(instruction))

    async def leave(self) -> None:
        """Kills what still runs."""
        for process in self._processes.values():
            _kill(process, signal.SIGKILL)
        for process in self._processes.values():
            await process.wait()
        for task in self._doing:
            task.cancel()
        await asyncio.gather(*self._doing, return_exceptions=True)

    def _do(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _start(self, said: StartInstruction) -> None:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", f"exec {said.command}"), start_new_session=True
        )
        self._processes[said.worker_id] = process
        self._started[said.worker_id].set()
        code = await process.wait()
        await self._report(
            WorkerFinishedReq(
                node_id=NODE,
                worker_id=said.worker_id,
                job_id=said.job_id,
                run_id=said.run_id,
                slots=said.slots,
                exit_code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                state=WorkerState.FAILED if code else WorkerState.FINISHED,
            )
        )

    async def _stop(self, said: StopInstruction) -> None:
        await self._started[said.worker_id].wait()
        process = self._processes[said.worker_id]
        if said.grace_s:
            _kill(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(said.grace_s):
                    await process.wait()
            except TimeoutError:
                _kill(process, signal.SIGKILL)
        else:
            _kill(process, signal.SIGKILL)


def _kill(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        os.killpg(process.pid, number)
