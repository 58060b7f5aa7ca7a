"""``slotbus init``.

What lives here: its arguments and how its answer looks. What may not: what it does
(``controller.setup``), and anything heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import ConfigFile, Output, OutputOption

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from controller.setup import Done
    from events.client import SlotbusClient


@with_nats
def init(
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=5, help="Of each stream, on a NATS cluster [1]."),
    ] = None,
    log_max_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Room of the event log [1 GiB].")
    ] = None,
    event_days: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0.001, help="How long events are kept to be read [7]."),
    ] = None,
    event_max_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", min=1, help="Room of these events (no limit).")
    ] = None,
    config: ConfigFile = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Make a cluster's streams and bucket, before any controller ran.

    A controller would make them too; this is for those who want to choose how, or whose
    controllers may not create streams. What is there is changed only where you say so here or
    in the controller's configuration, and never so that something stored would go.
    """
    import msgspec

    from controller.cli.finding import as_client, settings_of_others
    from controller.cli.running import DONE, as_usage, reported
    from controller.cli.session import Where, converse, print_reply
    from controller.config import ControllerConfig, load_controller
    from controller.setup import Wanted, set_up, setup_subjects

    usual = ControllerConfig()
    where = Where(nats, output)
    with reported(output), as_usage():
        chosen = load_controller(
            file=config,
            environ=os.environ,
            flags={"replicas": replicas, "log_max_bytes": log_max_bytes, **nats.settings()},
            also_known=settings_of_others(ControllerConfig),
        )
    said = log_max_bytes is not None or chosen.log_max_bytes != usual.log_max_bytes
    copies = replicas is not None or chosen.replicas != usual.replicas
    wanted = Wanted(
        log_max_bytes=chosen.log_max_bytes if said else None,
        replicas=chosen.replicas if copies else None,
        event_max_age_s=None if event_days is None else event_days * 86_400,
        event_max_bytes=event_max_bytes,
    )

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        done = await bus.unless_denied(
            set_up(bus.nc, bus.subjects, wanted), *setup_subjects(bus.subjects)
        )
        print_reply(where, shown, msgspec.json.encode(done), lambda: _show(done))
        return DONE

    converse(where, "setting up streams", work, as_client(chosen))


def _show(done: list[Done]) -> None:
    from controller.cli.output import warn, write

    for each in done:
        changes = f": {', '.join(each.changes)}" if each.changes else ""
        write(f"{each.name} {each.did}{changes}")
        for reason in each.kept:
            warn(f"{each.name}: {reason}")
