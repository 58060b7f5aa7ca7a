"""Commands that read along: events and logs.

What lives here: their arguments and their output, line by line. What may not: anything
heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controller.cli.completing import JobName, JobOption, NodeOption
from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import (
    ArchiveOption,
    EventsOutput,
    Follow,
    Output,
    OutputOption,
    Run,
)

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from events.client import SlotbusClient
    from events.following import EventRecord
    from events.queries import WorkerRow
    from events.traffic import LogLines

_AGO: Final = re.compile(r"(\d+)([smhd])\Z")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@with_nats
def events(
    job: JobOption = None,
    node: NodeOption = None,
    follow: Follow = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="10m|TIME|POSITION",
            help="From so long ago, from an RFC 3339 time, or after a record's position.",
        ),
    ] = None,
    begin_at: Annotated[
        str | None,
        typer.Option("--from", metavar="10m|TIME|POSITION", help="For jsonl: the first record."),
    ] = None,
    end_at: Annotated[
        str | None,
        typer.Option("--to", metavar="10m|TIME|POSITION", help="For jsonl: the last record."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="For jsonl: a new file; compressed if it ends in .gz or .zst."
        ),
    ] = None,
    archive: ArchiveOption = None,
    output: Annotated[
        EventsOutput,
        typer.Option(
            "--output",
            "-o",
            help="json prints one published record a line; jsonl exports the event log itself.",
            rich_help_panel="Where and how",
        ),
    ] = EventsOutput.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Tell what happened, from the event log; json prints one record a line.

    With -o jsonl the log itself is exported, for `slotbus import`, for `slotbus state` and
    the like with a FILE, and for tests.
    """
    if output is EventsOutput.JSONL:
        if job or node or follow or since:
            text = "jsonl takes --from, --to and --file, nothing else"
            raise typer.BadParameter(text, param_hint="-o")
        _export(begin_at, end_at, file, archive, nats)
        return
    if begin_at or end_at:
        raise typer.BadParameter("needs --output jsonl; else use --since", param_hint="--from")
    if file is not None:
        raise typer.BadParameter("needs --output jsonl", param_hint="--file")
    _tell_events(job, node, follow, since, Output(output.value), nats)


def _export(
    begin_at: str | None, end_at: str | None, file: Path | None, archive: Path | None, nats: Nats
) -> None:
    from controller.cli.output import write, write_body
    from controller.cli.pastlook import moment
    from controller.cli.running import DONE, reported
    from controller.cli.session import Where, converse
    from controller.past.moving import export_lines, write_lines
    from controller.past.reaching import history, reach

    with reported():
        begin, end = moment(begin_at, "--from"), moment(end_at, "--to")

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        past = await history(reach(bus.nc, bus.subjects, archive))
        shown.pause()
        lines = export_lines(past, begin, end)
        if file is not None:
            write(f"{write_lines(file, lines)} lines are in {file}")
            return DONE
        for line in lines:
            write_body(line)
        return DONE

    converse(Where(nats, Output.TABLE), "exporting the event log", work)


def _tell_events(
    job: str | None, node: str | None, follow: bool, since: str | None, output: Output, nats: Nats
) -> None:
    from controller.cli.output import clean, write, write_body
    from controller.cli.running import DONE, as_usage, reported
    from controller.cli.session import Where, converse
    from controller.cli.telling import tell
    from events.errors import Invalid

    with reported(output), as_usage():
        begin = parse_since(since)
        if job is not None and node is not None:
            raise Invalid("give --job or --node, not both", path="--node")

    def show(record: EventRecord) -> None:
        if output is Output.JSON:
            write_body(record.body)
        else:
            write("\n".join(clean(line) for line in tell(record)))

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        with as_usage():
            records = bus.events(job_id=job, node_id=node, follow=follow, since=begin)
        async for record in records:
            shown.pause()
            show(record)
        return DONE

    converse(Where(nats, output), "reading events", work)


def parse_since(text: str | None) -> datetime | int | None:
    """``10m`` ago, an RFC 3339 time (without a zone: local), or a position. Raises Invalid."""
    from events.errors import Invalid

    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        ago = _AGO.match(text)
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Invalid(
            f"--since {text!r} is neither like 10m (s, m, h, d), nor a time, nor a position",
            path="--since",
        ) from error


@with_nats
def logs(
    job: JobName,
    follow: Follow = False,
    run: Run = None,
    tail: Annotated[
        int,
        typer.Option(
            metavar="BYTES", min=1, max=512 * 1024, help="Stored output to show, for each worker."
        ),
    ] = 64 * 1024,
    bare: Annotated[
        bool, typer.Option("--bare", help="Without the worker's id before each line.")
    ] = False,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Print the output of a job's workers, also after their end.

    With --follow until the job is over. Each line begins with its worker's id; json
    prints one message a line, with its offset in the worker's output.
    """
    from controller.cli.lines import WorkerLines
    from controller.cli.output import warn, write_body
    from controller.cli.running import DONE, REFUSED, as_usage
    from controller.cli.session import Where, converse
    from events.codec import encode
    from events.errors import SlotbusError

    silent: list[str] = []
    lines = WorkerLines(prefix=not bare)

    def missing(row: WorkerRow, error: SlotbusError) -> None:
        if row.worker_id not in silent:
            silent.append(row.worker_id)
            warn(error.message)

    def show(piece: LogLines) -> None:
        if output is Output.JSON:
            write_body(encode(piece))
        else:
            lines.add(piece.worker_id, piece.text)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        with as_usage():
            pieces = bus.logs(job, run_id=run, follow=follow, tail_bytes=tail, missing=missing)
        async for piece in pieces:
            shown.pause()
            show(piece)
        lines.finish()
        return REFUSED if silent else DONE

    converse(Where(nats, output), f"reading the output of {job}", work)
