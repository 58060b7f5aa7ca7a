"""``slotbus start``.

What lives here: its arguments. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import (
    CommandId,
    Output,
    OutputOption,
    Queue,
    Wait,
)

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from events.client import SlotbusClient

AFTER_DASHES = "after --"
"""Key in the context's ``meta`` of what stood behind ``--``."""

_PLACEMENT = "Placement"
_POLICY = "Policies"


@with_nats
def start(
    invoked: typer.Context,
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Id of the job.", show_default=False)
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", "-s", metavar="N", help="Units of parallelism.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="The request as TOML or JSON; flags win."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K=V", help="For the workers; repeatable."),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            metavar="@FILE|JSON", help="Any JSON, handed to the workers; @- is standard input."
        ),
    ] = None,
    wasm_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="Handed to the workers.")
    ] = None,
    program_hash: Annotated[
        str | None, typer.Option("--hash", metavar="HEX", help="Of the program (computed).")
    ] = None,
    run: Annotated[
        int | None, typer.Option("--run", metavar="N", help="Number of this run (the next).")
    ] = None,
    selector: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V",
            help="Only nodes with this label; repeatable.",
            rich_help_panel=_PLACEMENT,
        ),
    ] = None,
    spread: Annotated[
        str | None,
        typer.Option(
            metavar="pack|even",
            help="Fill nodes one by one, or share slots out (pack).",
            rich_help_panel=_PLACEMENT,
        ),
    ] = None,
    stop_after: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Workers end after so long without a controller (never).",
            rich_help_panel=_PLACEMENT,
        ),
    ] = None,
    on_shortage: Annotated[
        str | None,
        typer.Option(
            metavar="fail|wait",
            help="Where slots are missing: refuse it, or let it wait (as configured).",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Of two that wait the higher is first [0].", rich_help_panel=_POLICY
        ),
    ] = None,
    not_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|SECONDS",
            help="Give it up if it is not placed by then.",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(
            metavar="report|restart",
            help="When a worker fails: the others go on, or all begin anew (as configured).",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    on_lost: Annotated[
        str | None,
        typer.Option(
            metavar="report|restart",
            help="When a worker is gone with its node (as configured).",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    on_drain: Annotated[
        str | None,
        typer.Option(
            metavar="move|stop",
            help="When a node is drained (move, where it may restart).",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    restart_first: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Before the first restart; each further one waits twice as long [1].",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    restart_longest: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Up to so long between two [60].", rich_help_panel=_POLICY
        ),
    ] = None,
    restart_limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="No more restarts within the window [10].", rich_help_panel=_POLICY
        ),
    ] = None,
    restart_window: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="That window [3600].", rich_help_panel=_POLICY),
    ] = None,
    restart_quiet: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="After running so long it begins with the first again [600].",
            rich_help_panel=_POLICY,
        ),
    ] = None,
    wait: Wait = None,
    queue: Queue = False,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Start a run of a job: all its slots, or none.

    Returns when every worker is launched. What stands behind -- is what a worker
    executes, if the operator lets jobs say so:

        slotbus start wordcount --slots 6 -- python3 count.py --fast

    A job file holds the same fields as the message slotbus.cmd.start.
    """
    from controller.cli.job_file import StartArguments, build_start
    from controller.cli.output import print_start
    from controller.cli.running import as_usage, reported
    from controller.cli.session import Where, converse, leave, print_reply
    from events.codec import decode
    from events.messages import StartReply

    arguments = StartArguments(
        job_id=job,
        file=file,
        slots=slots,
        name=name,
        run_id=run,
        env=env or [],
        program=program,
        wasm_path=wasm_path,
        hash=program_hash,
        command=invoked.meta.get(AFTER_DASHES, []),
        selector=selector or [],
        spread=spread,
        stop_after_s=stop_after,
        on_shortage=on_shortage,
        priority=priority,
        not_after=not_after,
        on_failure=on_failure,
        on_lost=on_lost,
        on_drain=on_drain,
        restart={
            "first_s": restart_first,
            "longest_s": restart_longest,
            "limit": restart_limit,
            "window_s": restart_window,
            "quiet_s": restart_quiet,
        },
        wait_s=wait,
        command_id=command_id,
    )
    where = Where(nats, output)
    with reported(output), as_usage():
        request = build_start(arguments)
    if queue:
        leave(where, request)
        return

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        body = await bus.send(request)
        reply = decode(body, StartReply)
        print_reply(where, shown, body, lambda: print_start(reply))
        return 0

    converse(where, f"starting {request.job_id} with {request.slots} slots", work)
