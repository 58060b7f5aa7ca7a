"""slotbus as a library: start, watch and stop workers on this machine, without NATS."""

import asyncio
import sys

from schedulers import NotEnoughSlots, ProcessScheduler, StartPipelineReq

WORKER = [sys.executable, "-c", "import signal; signal.pause()"]


async def main() -> None:
    scheduler = ProcessScheduler(worker_command=WORKER, task_slots=8)
    req = StartPipelineReq(
        name="word count",
        program={"source": "words", "window_s": 10},
        wasm_path="",
        job_id="job_1",
        hash="",
        run_id=1,
        slots=6,
        env_vars={"LOG_LEVEL": "info"},
    )
    await scheduler.start_workers(req)
    print("workers:", await scheduler.workers_for_job("job_1", 1))

    try:
        await scheduler.start_workers(StartPipelineReq(job_id="job_2", slots=6))
    except NotEnoughSlots as error:
        print("no room for job_2:", error.slots_needed, "more slots are needed")

    await scheduler.stop_workers("job_1", 1, False)
    print("workers:", await scheduler.workers_for_job("job_1", 1))
    await scheduler.close()


asyncio.run(main())
