"""``slotbus wait``.

What lives here: its arguments. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completing import JobName
from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from events.client import SlotbusClient


class For(StrEnum):
    """As ``events.waiting.Goal``, which takes long to import."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"


@with_nats
def wait(
    job: JobName,
    goal: Annotated[
        For,
        typer.Option(
            "--for",
            help="running: all workers are launched; finished: it ended well by itself; "
            "stopped: nothing of it runs, however it ended.",
        ),
    ] = For.RUNNING,
    run: Annotated[
        int | None, typer.Option("--run", metavar="N", help="That run (the newest now).")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="Then the exit code is 4 (no limit)."),
    ] = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Wait for a run of a job to be running, finished or stopped.

    The exit code is 1 once it can't come to that any more: it has ended otherwise.
    """
    from controller.cli.output import write
    from controller.cli.running import DONE, as_usage, reported
    from controller.cli.session import Where, converse, print_reply
    from events.codec import convert, encode
    from events.queries import QueryJob
    from events.waiting import Goal, wait_for

    where = Where(nats, output)
    with reported(output), as_usage():
        query = convert({"job_id": job, "run_id": run}, QueryJob)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        found = await wait_for(
            bus, query.job_id, Goal(goal.value), run_id=query.run_id, timeout_s=timeout
        )
        print_reply(
            where,
            shown,
            encode(found),
            lambda: write(f"{found.job_id} run {found.run_id} is {found.state}"),
        )
        return DONE

    converse(where, f"waiting for {job} to be {goal.value}", work)
