"""Commands about what runs already: stop, cordon, uncordon.

What lives here: their arguments and exit codes. What may not: anything heavy at the top;
see ``controller.cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completing import JobName, NodeName
from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import (
    CommandId,
    Output,
    OutputOption,
    Queue,
    Run,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller.cli.output import Progress
    from controller.cli.session import Where
    from events.client import SlotbusClient
    from events.messages import ConfirmDeadReq, CordonReq, UncordonReq


@with_nats
def stop(
    job: JobName,
    run: Run = None,
    force: Annotated[bool, typer.Option("--force", help="Kill at once, without TERM.")] = False,
    grace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Between TERM and KILL [10]."),
    ] = None,
    wait: Wait = None,
    queue: Queue = False,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Stop a job: all its workers, or those of one run.

    Returns when they are gone. Workers on a node that does not answer can't be confirmed:
    they are named, and the exit code is 1.
    """
    from controller.cli.output import print_stop, unconfirmed_line
    from controller.cli.running import DONE, REFUSED
    from controller.cli.session import Where, converse, leave, print_reply, said
    from events.codec import decode
    from events.messages import StopReply, StopWorkersReq
    from events.waits import wait_for_stop

    where = Where(nats, output)
    request = said(
        where,
        StopWorkersReq,
        job_id=job,
        run_id=run,
        force=force,
        grace_s=grace,
        wait_s=wait_for_stop(grace, force=force) if wait is None else wait,
        command_id=command_id,
    )
    if queue:
        leave(where, request)
        return

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        body = await bus.send(request)
        reply = decode(body, StopReply)
        print_reply(where, shown, body, lambda: print_stop(reply))
        if not reply.unconfirmed:
            return DONE
        if request.wait_s == 0:
            typer.echo(f"{len(reply.unconfirmed)} are being stopped", err=True)
            return DONE
        unconfirmed_line(reply)
        return REFUSED

    converse(where, f"stopping {job}", work)


@with_nats
def cordon(
    node: NodeName,
    wait: Wait = None,
    queue: Queue = False,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Let no new workers onto a node; those that run there stay."""
    from controller.cli.session import Where
    from events.messages import CordonReq

    node_command(CordonReq, node, wait, queue, command_id, Where(nats, output), _show_node)


@with_nats
def uncordon(
    node: NodeName,
    wait: Wait = None,
    queue: Queue = False,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Let new workers onto a node again."""
    from controller.cli.session import Where
    from events.messages import UncordonReq

    node_command(UncordonReq, node, wait, queue, command_id, Where(nats, output), _show_node)


def _show_node(body: bytes) -> None:
    from controller.cli.output import print_node
    from events.codec import decode
    from events.messages import NodeReply

    print_node(decode(body, NodeReply))


def node_command(
    kind: type[CordonReq | UncordonReq | ConfirmDeadReq],
    node: str,
    wait: float | None,
    queue: bool,
    command_id: str | None,
    where: Where,
    show: Callable[[bytes], None],
) -> None:
    """A command about one node, whose reply is shown as ``show`` does."""
    from controller.cli.running import DONE
    from controller.cli.session import converse, leave, print_reply, said

    request = said(where, kind, node_id=node, wait_s=wait, command_id=command_id)
    if queue:
        leave(where, request)
        return

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        body = await bus.send(request)
        print_reply(where, shown, body, lambda: show(body))
        return DONE

    converse(where, f"asking for node {node}", work)
