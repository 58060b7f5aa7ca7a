"""Completion of ids in the shell: asked of a cluster, where one answers quickly.

What lives here: arguments that complete themselves. What may not: anything heavy at the top;
see ``controller.cli``. Completion never fails and never says anything: it only helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from events.client import SlotbusClient

CONNECT_S: Final = 0.4
ANSWER_S: Final = 0.6
"""Longer than this nobody waits for a completion."""


def jobs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of jobs with their states."""

    async def ask(bus: SlotbusClient) -> list[tuple[str, str]]:
        return [(row.job_id, f"{row.state}, {row.slots} slots") for row in await bus.jobs()]

    return _completed(context, incomplete, ask)


def nodes(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of nodes with their states."""

    async def ask(bus: SlotbusClient) -> list[tuple[str, str]]:
        return [(row.node_id, f"{row.state}, {row.free_slots} free") for row in await bus.nodes()]

    return _completed(context, incomplete, ask)


def workers(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of live workers with their jobs."""

    async def ask(bus: SlotbusClient) -> list[tuple[str, str]]:
        rows = await bus.workers()
        return [(row.worker_id, f"{row.job_id} run {row.run_id}") for row in rows]

    return _completed(context, incomplete, ask)


def things(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of the kind that was typed before."""
    kinds = {"job": jobs, "node": nodes, "worker": workers}
    kind = kinds.get(str(context.params.get("kind") or ""))
    return kind(context, incomplete) if kind else []


def _completed(
    context: typer.Context,
    incomplete: str,
    ask: Callable[[SlotbusClient], Awaitable[list[tuple[str, str]]]],
) -> list[tuple[str, str]]:
    import asyncio

    from events.errors import SlotbusError

    try:
        found = asyncio.run(_ask(context, ask))
    except (SlotbusError, TimeoutError, OSError):
        return []
    return [(name, text) for name, text in found if name.startswith(incomplete)]


async def _ask(
    context: typer.Context, ask: Callable[[SlotbusClient], Awaitable[list[tuple[str, str]]]]
) -> list[tuple[str, str]]:
    import asyncio

    from controller.cli.finding import client_config
    from controller.cli.nats_options import Nats
    from controller.logs import setup_logging
    from events.asking import Patience
    from events.client import SlotbusClient

    setup_logging("critical")
    said = {name: context.params.get(name) for name in vars(Nats())}
    config = client_config(Nats(**said).settings())
    async with asyncio.timeout(CONNECT_S + ANSWER_S):
        async with SlotbusClient.connect(
            config.server,
            config.root,
            name="slotbus completion",
            access=config.access(),
            connect_timeout_s=CONNECT_S,
            patience=Patience(absent_s=0, query_s=ANSWER_S, resend_s=ANSWER_S),
        ) as bus:
            return await ask(bus)


JobName = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.", autocompletion=jobs)]
AnyJob = Annotated[
    str | None,
    typer.Argument(metavar="JOB", help="Only this job.", show_default=False, autocompletion=jobs),
]
JobOption = Annotated[
    str | None, typer.Option("--job", metavar="JOB", help="Only this job.", autocompletion=jobs)
]
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="Id of the node.", autocompletion=nodes)
]
AnyNode = Annotated[
    str | None,
    typer.Argument(
        metavar="NODE", help="Only this node.", show_default=False, autocompletion=nodes
    ),
]
NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="NODE", help="Only this node.", autocompletion=nodes)
]
ThingName = Annotated[str, typer.Argument(metavar="ID", help="Which one.", autocompletion=things)]
