"""Waiting for a run to come to a state.

What lives here: which states fulfil a wish and which make it hopeless, and looking again when
something happened. What may not: changing anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum
from typing import ClassVar, Final

import nats.errors
from nats.aio.msg import Msg

from events.client import SlotbusClient
from events.errors import CommandTimeout, SlotbusError, UnknownJob
from events.queries import JobReply
from events.states import RUN_ENDED, RunState

LOOK_S: Final = 1.0
"""How often to look at the latest; an event of the job is a reason to look at once."""


class Goal(StrEnum):
    """``running``: all its workers are launched. ``finished``: it has ended well by itself.
    ``stopped``: nothing of it runs, however it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"


class GoalMissed(SlotbusError):
    """The run has ended otherwise: what is waited for will not happen."""

    code: ClassVar[str] = "goal_missed"
    status: ClassVar[int] = 409


def reached(goal: Goal, run: JobReply) -> bool:
    """Whether a run is where it is wanted. Raises GoalMissed where it never will be."""
    ended = run.state in RUN_ENDED
    if goal is Goal.STOPPED:
        return ended and run.workers == 0
    if goal is Goal.RUNNING and run.state is RunState.RUNNING:
        return True
    if goal is Goal.FINISHED and run.state is RunState.FINISHED:
        return True
    if ended:
        raise GoalMissed(
            f"run {run.run_id} of {run.job_id} is {run.state}, and will not be {goal}"
            + (f": {run.reason}" if run.reason else ""),
            job_id=run.job_id,
            run_id=run.run_id,
            state=str(run.state),
        )
    return False


async def _last_of(bus: SlotbusClient, run: JobReply) -> JobReply:
    """The last of the runs that followed this one by themselves, or this one."""
    while run.state in RUN_ENDED and run.highest_run > run.run_id:
        try:
            after = await bus.job(run.job_id, run_id=run.run_id + 1)
        except UnknownJob:
            break  # it was none of these, or is forgotten
        if after.restart_of != run.run_id:
            break
        run = after
    return run


async def wait_for(
    bus: SlotbusClient,
    job_id: str,
    goal: Goal,
    *,
    run_id: int | None = None,
    timeout_s: float | None = None,
) -> JobReply:
    """Waits until the run reaches the goal: the one asked for, or the newest at the call and
    those that follow it by themselves (restarts, moves).

    Raises GoalMissed, UnknownJob, CommandTimeout after ``timeout_s`` seconds (None: never),
    and what queries raise.
    """
    run = await bus.job(job_id, run_id=run_id)
    news = asyncio.Event()

    async def on_event(_message: Msg) -> None:
        news.set()

    listening = await bus.nc.subscribe(bus.subjects.event_job(job_id), cb=on_event)
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if run_id is None:
                    run = await _last_of(bus, run)
                if reached(goal, run):
                    break
                news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await news.wait()
                run = await bus.job(job_id, run_id=run.run_id)
    except TimeoutError as error:
        raise CommandTimeout(
            f"run {run.run_id} of {job_id} is {run.state}, and not {goal} within {timeout_s:g} s",
            job_id=job_id,
            run_id=run.run_id,
            state=str(run.state),
        ) from error
    finally:
        with contextlib.suppress(nats.errors.Error):
            await listening.unsubscribe()
    return run
