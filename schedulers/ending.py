"""The orderly end of a scheduler that is used as a library.

What lives here: stopping all that runs, through the engine. What may not: what a backend
does afterwards.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from events.messages import StopWorkersReq
from schedulers.engine import Engine

CLOSE_WAIT_S: Final = 15.0
"""More than the default grace of a stop; what is left is the backend's to end."""

_log = structlog.get_logger("slotbus.engine")


async def stop_all_jobs(engine: Engine, wait_s: float = CLOSE_WAIT_S) -> None:
    """Stops every job, so that the log tells the ends; waits ``wait_s`` seconds at most."""
    jobs = sorted({w.job_id for w in engine.ledger.workers.values() if not w.gone})
    stops = [StopWorkersReq(job_id=job_id, wait_s=wait_s) for job_id in jobs]
    told = await asyncio.gather(*map(engine.submit, stops), return_exceptions=True)
    for job_id, error in zip(jobs, told, strict=True):
        if isinstance(error, BaseException):
            _log.warning("not stopped in order", job_id=job_id, cause=str(error))
