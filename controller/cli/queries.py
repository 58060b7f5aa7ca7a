"""Questions about what is: workers, jobs, nodes.

What lives here: their arguments. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completing import AnyJob, AnyNode, NodeOption
from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import Output, OutputOption, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from controller.cli.output import Progress
    from controller.cli.session import Where
    from events.asking import PagedQuery
    from events.client import SlotbusClient

Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Again and again, as it changes; into a pipe, once for each change.",
    ),
]


@with_nats
def workers(
    job: AnyJob = None,
    run: Run = None,
    node: NodeOption = None,
    ended: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    watch: Watch = False,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """List workers: where they run, with how many slots, in which state."""
    from controller.cli.output import worker_table
    from controller.cli.session import Where
    from events.codec import decode
    from events.queries import QueryWorkers, WorkersReply

    _query(
        QueryWorkers,
        {"job_id": job, "run_id": run, "node_id": node, "all": ended},
        Where(nats, output),
        lambda body: worker_table(decode(body, WorkersReply).workers),
        watch=watch,
    )


@with_nats
def jobs(
    job: AnyJob = None,
    watch: Watch = False,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """List jobs with their newest run."""
    from controller.cli.output import job_table
    from controller.cli.session import Where
    from events.codec import decode
    from events.queries import JobsReply, QueryJobs

    _query(
        QueryJobs,
        {"job_id": job},
        Where(nats, output),
        lambda body: job_table(decode(body, JobsReply).jobs),
        watch=watch,
    )


@with_nats
def nodes(
    node: AnyNode = None,
    watch: Watch = False,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """List nodes: their slots, which are free, and when they were heard last."""
    from controller.cli.output import node_table
    from controller.cli.session import Where
    from events.codec import decode
    from events.queries import NodesReply, QueryNodes

    _query(
        QueryNodes,
        {"node_id": node},
        Where(nats, output),
        lambda body: node_table(decode(body, NodesReply).nodes),
        watch=watch,
    )


@with_nats
def shortage(
    watch: Watch = False,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """List the starts that wait, in the order in which they get slots, and what they lack."""
    from controller.cli.output import shortage_table
    from controller.cli.session import Where
    from events.codec import decode
    from events.queries import QueryShortage, ShortageReply

    _query(
        QueryShortage,
        {},
        Where(nats, output),
        lambda body: shortage_table(decode(body, ShortageReply)),
        watch=watch,
    )


def _query(
    kind: type[PagedQuery],
    fields: Mapping[str, object],
    where: Where,
    as_table: Callable[[bytes], None],
    *,
    watch: bool,
) -> None:
    from controller.cli.looking import keep_looking
    from controller.cli.running import DONE, as_usage, reported
    from controller.cli.session import converse, join_pages, print_reply
    from events.codec import convert

    with reported(where.output), as_usage():
        query = convert(fields, kind)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        if watch:
            await keep_looking(bus, query, where, shown, as_table)
        body = join_pages(await bus.pages(query))
        print_reply(where, shown, body, lambda: as_table(body))
        return DONE

    converse(where, "asking the controller", work)
