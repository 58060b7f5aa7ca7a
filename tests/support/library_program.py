"""A program that uses slotbus as a library and ends without tidying up.

Arguments: how it ends (``forgets``, ``raises``, ``killed``), a state directory or "", and a
file for the pids of its worker and of the worker's child. What may not live here: a close.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from events.filelog import FileLog
from schedulers import ProcessScheduler, StartPipelineReq

# A child in a session of its own, so that no group signal reaches it.
WORKER = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"{os.getppid()} {os.getpid()}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


async def main(ending: str, state_dir: str, pids: Path) -> None:
    scheduler = ProcessScheduler(
        worker_command=[sys.executable, "-c", WORKER, str(pids)],
        state_dir=Path(state_dir) if state_dir else None,
        log=FileLog(Path(state_dir) / "log.jsonl") if state_dir else None,
    )
    await scheduler.start_workers(StartPipelineReq(job_id="j", slots=2))
    while not os.path.exists(pids):  # noqa: ASYNC110, ASYNC240, PTH110  all there is to see
        await asyncio.sleep(0.01)
    print("started", flush=True)  # noqa: T201
    if ending == "raises":
        raise KeyError("a fault of the program")
    if ending == "killed":
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
