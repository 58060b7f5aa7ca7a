"""``slotbus describe``: everything about one thing.

What lives here: its arguments, and which questions make up the answer. What may not: how it
looks (``controller.cli.portrait``), and anything heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.completing import ThingName
from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from controller.cli.portrait import Portrait
    from events.client import SlotbusClient
    from events.following import EventRecord


class Kind(StrEnum):
    """What can be described."""

    JOB = "job"
    NODE = "node"
    WORKER = "worker"


@with_nats
def describe(
    kind: Annotated[Kind, typer.Argument(help="What it is.")],
    name: ThingName,
    run: Annotated[
        int | None, typer.Option("--run", metavar="N", help="That run of a job (the newest).")
    ] = None,
    events: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000, help="So many of its last events.")
    ] = 10,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Tell everything about a job, a node or a worker, and what happened to it last.

    Values of a job's environment may be secrets: the table shows their names, json all.
    """
    from controller.cli.portrait import as_json, show
    from controller.cli.running import DONE, as_usage, reported
    from controller.cli.session import Where, converse, print_reply
    from events.codec import convert
    from events.errors import Invalid
    from events.queries import QueryJob

    where = Where(nats, output)
    with reported(output), as_usage():
        convert({"job_id": name, "run_id": run}, QueryJob)  # all ids have one form
        if run is not None and kind is not Kind.JOB:
            raise Invalid("--run is for a job", path="--run")

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        portrait = await _look(bus, kind, name, run, events)
        print_reply(where, shown, as_json(portrait), lambda: show(portrait))
        return DONE

    converse(where, f"asking about {kind.value} {name}", work)


async def _look(
    bus: SlotbusClient, kind: Kind, name: str, run: int | None, events: int
) -> Portrait:
    from controller.cli.portrait import Portrait

    if kind is Kind.JOB:
        job = await bus.job(name, run_id=run)
        workers = await bus.workers(name, run_id=job.run_id, include_ended=True)
        records = await _last(bus, events, job_id=name)
        return Portrait(kind=kind.value, job=job, workers=workers, events=records)
    if kind is Kind.NODE:
        node = await bus.node(name)
        workers = await bus.workers(node_id=name)
        records = await _last(bus, events, node_id=name)
        return Portrait(kind=kind.value, node=node, workers=workers, events=records)
    worker = await bus.worker(name)
    records = await _last(bus, events, job_id=worker.worker.job_id, about=name)
    return Portrait(kind=kind.value, worker=worker, events=records)


async def _last(
    bus: SlotbusClient,
    count: int,
    *,
    job_id: str | None = None,
    node_id: str | None = None,
    about: str = "",
) -> list[EventRecord]:
    """The last records that concern it; none where events are not kept or not ours to read."""
    from collections import deque

    from events.denials import Denied
    from events.following import NoEvents, NoJetStream

    kept: deque[EventRecord] = deque(maxlen=count)
    if count:
        try:
            async for record in bus.events(job_id=job_id, node_id=node_id):
                if not about or about.encode() in record.body:
                    kept.append(record)
        except (NoEvents, NoJetStream, Denied):
            return []
    return list(kept)
