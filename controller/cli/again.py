"""Running a job again: restart, scale.

What lives here: their arguments. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completing import JobName
from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import CommandId, Output, OutputOption, Wait

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from controller.cli.session import Where
    from events.client import SlotbusClient

Force = Annotated[bool, typer.Option("--force", help="Kill the old workers at once, without TERM.")]
Grace = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="For the old workers, TERM to KILL [10].")
]
Anyway = Annotated[
    bool,
    typer.Option(
        "--anyway", help="Start also where old workers can't be confirmed to have stopped."
    ),
]


@with_nats
def restart(
    job: JobName,
    force: Force = False,
    grace: Grace = None,
    anyway: Anyway = False,
    wait: Wait = None,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Stop a job's run and start the next with the same definition.

    A job that has ended is started again. Stop and start are each all or nothing, but not
    together: room for the new run is looked for before the old one is stopped; if the start
    fails all the same, the job stays stopped and the exit code is 1. Repeat it then.
    """
    from controller.cli.session import Where

    fields: dict[str, object] = {"force": force, "grace_s": grace, "anyway": anyway}
    fields |= {"wait_s": wait, "command_id": command_id}
    _run_again(job, fields, Where(nats, output))


@with_nats
def scale(
    job: JobName,
    slots: Annotated[int, typer.Argument(metavar="N", min=1, help="Slots of the next run.")],
    force: Force = False,
    grace: Grace = None,
    anyway: Anyway = False,
    wait: Wait = None,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Run a job with N slots: a new run with the same definition.

    As restart does it. A run that has N slots already is left alone.
    """
    from controller.cli.session import Where

    fields: dict[str, object] = {"slots": slots, "if_needed": True, "force": force}
    fields["grace_s"] = grace
    fields |= {"anyway": anyway, "wait_s": wait, "command_id": command_id}
    _run_again(job, fields, Where(nats, output))


def _run_again(job: str, fields: dict[str, object], where: Where) -> None:
    from controller.cli.output import print_start, write
    from controller.cli.running import DONE, as_usage, reported
    from controller.cli.session import converse, print_reply
    from events.again import Again, run_again
    from events.codec import convert, decode, encode
    from events.messages import StartReply
    from events.queries import QueryJob

    with reported(where.output), as_usage():
        convert({"job_id": job}, QueryJob)
        how = convert({name: value for name, value in fields.items() if value is not None}, Again)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        done = await run_again(bus, job, how)
        if done.body is None:
            body = encode(await bus.job(job))
            print_reply(
                where,
                shown,
                body,
                lambda: write(f"{job} run {done.old_run} has {how.slots} slots already"),
            )
            return DONE
        reply = decode(done.body, StartReply)
        print_reply(where, shown, done.body, lambda: print_start(reply))
        return DONE

    converse(where, f"running {job} again", work)
