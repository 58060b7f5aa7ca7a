"""``slotbus rebuild``.

What lives here: its arguments and exit codes. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import CommandId, Output, OutputOption, Wait

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from events.client import SlotbusClient
    from events.messages import RebuildReply


@with_nats
def rebuild(
    wait: Wait = None,
    command_id: CommandId = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Take in workers that the event log has lost, after it was cut, restored or made anew.

    They are left as they run, and count again. What can't be taken in is named with the
    reason, and the exit code is 1; the same after nodes that were not heard from yet: repeat
    it.
    """
    from controller.cli.running import DONE, REFUSED
    from controller.cli.session import Where, converse, print_reply, said
    from events.codec import decode
    from events.messages import RebuildReply, RebuildReq

    where = Where(nats, output)
    request = said(where, RebuildReq, wait_s=wait, command_id=command_id)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        body = await bus.send(request)
        reply = decode(body, RebuildReply)
        print_reply(where, shown, body, lambda: _print(reply))
        later = reply.left or reply.unheard or reply.more or not reply.nodes
        return REFUSED if later else DONE

    converse(where, "rebuilding", work)


def _print(reply: RebuildReply) -> None:
    typer.echo(f"{len(reply.workers)} workers taken in")
    for worker_id in reply.workers:
        typer.echo(f"  {worker_id}")
    for worker_id, reason in reply.left.items():
        typer.echo(f"left: {worker_id}: {reason}")
    if reply.unheard:
        typer.echo(f"not heard yet: {', '.join(reply.unheard)}: repeat it when they were")
    if not reply.nodes:
        typer.echo("no node is known yet: repeat it when agents have registered")
    if reply.more:
        typer.echo(f"{reply.more} more: repeat it")
