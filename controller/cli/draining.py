"""Commands on nodes that are to be empty, or are dead: drain, confirm-dead.

What lives here: their arguments, progress and exit codes. What may not: anything heavy at the
top; see ``controller.cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completing import NodeName
from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import CommandId, Output, OutputOption, Queue, Wait

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from events.client import SlotbusClient

LOOK_S = 1.0
"""How often progress is asked for."""


@with_nats
def drain(
    node: NodeName,
    deadline: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="What has not left by then stays [300]."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Stop what is to move even if there is no room elsewhere."),
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="SECONDS", help="How long to wait for its end; 0 returns at once."
        ),
    ] = None,
    queue: Queue = False,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Empty a node: cordon it, and move or stop what runs there.

    A run moves as a whole, when there is room for it elsewhere; one that may not be moved
    is stopped. Returns at the end or the deadline. Where workers remain they are named with
    the reason, and the exit code is 1; the node stays cordoned. `slotbus uncordon` cancels it.
    """
    from controller.cli.output import print_drain
    from controller.cli.running import DONE, REFUSED
    from controller.cli.session import Where, converse, leave, print_reply, said
    from events.codec import decode
    from events.ids import DEFAULT_DRAIN_S
    from events.messages import DrainReply, DrainReq
    from events.waits import wait_for_drain

    deadline_s = DEFAULT_DRAIN_S if deadline is None else deadline
    where = Where(nats, output)
    request = said(
        where,
        DrainReq,
        node_id=node,
        deadline_s=deadline_s,
        force=force,
        wait_s=wait_for_drain(deadline_s) if wait is None else wait,
        command_id=command_id,
    )
    if queue:
        leave(where, request)
        return

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        import asyncio

        watching = asyncio.create_task(_watch(bus, node, shown))
        try:
            body = await bus.send(request)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        reply = decode(body, DrainReply)
        print_reply(where, shown, body, lambda: print_drain(reply))
        return DONE if reply.complete or request.wait_s == 0 else REFUSED

    converse(where, f"draining {node}", work)


async def _watch(bus: SlotbusClient, node: str, shown: Progress) -> None:
    """Says how far the drain has come, until it is cancelled."""
    import asyncio

    from controller.cli.output import drain_line
    from events.errors import SlotbusError

    while True:
        await asyncio.sleep(LOOK_S)
        try:
            detail = await bus.node(node)
        except SlotbusError:
            continue  # the command itself says what is wrong
        if detail.drain is not None:
            shown.say(drain_line(detail.drain))


@with_nats
def confirm_dead(
    node: NodeName,
    wait: Wait = None,
    queue: Queue = False,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Say that nothing runs on an expired node any more: you have seen it.

    Its workers count as gone, so that others may take their place. Should the machine come
    back with them after all, they are stopped. Never say it of a machine that may only be
    cut off: what runs there would run twice.
    """
    from controller.cli.commands import node_command
    from controller.cli.session import Where
    from events.messages import ConfirmDeadReq

    node_command(ConfirmDeadReq, node, wait, queue, command_id, Where(nats, output), _show_dead)


def _show_dead(body: bytes) -> None:
    from controller.cli.output import print_dead
    from events.codec import decode
    from events.messages import ConfirmDeadReply

    print_dead(decode(body, ConfirmDeadReply))
