"""Questions about the past: state, diff, why, story, audit; and taking a log in.

What lives here: their arguments. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import ArchiveOption, Output, OutputOption

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from controller.cli.output import Progress
    from controller.past.history import History, Moment
    from controller.past.reaching import Reach
    from events.client import SlotbusClient
    from events.ledger import Ledger

T = TypeVar("T")

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        help="The files of a recording, or an exported log (.gz and .zst too); else the running "
        "cluster's log.",
        show_default=False,
    ),
]
MOMENT = "10m|TIME|POSITION"


@with_nats
def state(
    files: FilesArgument = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar=MOMENT, help="So long ago, an RFC 3339 time, or a position (the end)."
        ),
    ] = None,
    ended: Annotated[bool, typer.Option("--all", "-a", help="Also workers that ended.")] = False,
    archive: ArchiveOption = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Show nodes, jobs and workers as they were at any moment."""
    from controller.cli.pastlook import moment, print_view
    from controller.cli.running import reported
    from controller.past.views import view

    with reported(output):
        when = moment(at, "--at")

    def work(ledgers: list[Ledger]) -> int:
        print_view(view(ledgers[0], ended=ended), output)
        return 0

    _look_at([when], _Source(files, archive, nats, output), work)


@with_nats
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help=f"A moment: {MOMENT}.")],
    after: Annotated[str, typer.Argument(metavar="B", help="A later one.")],
    files: FilesArgument = None,
    archive: ArchiveOption = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Tell how two moments differ: what came, what went, what changed."""
    from controller.cli.pastlook import moment, print_difference
    from controller.cli.running import reported
    from controller.past.views import difference

    with reported(output):
        first, second = moment(before, "A"), moment(after, "B")

    def work(ledgers: list[Ledger]) -> int:
        print_difference(difference(ledgers[0], ledgers[1]), output)
        return 0

    _look_at([first, second], _Source(files, archive, nats, output), work)


@with_nats
def why(
    thing: Annotated[
        str, typer.Argument(metavar="ID", help="Of a worker, a job, a node or a command.")
    ],
    files: FilesArgument = None,
    archive: ArchiveOption = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Tell why: the decision, why nothing else was chosen, what came before and after."""
    from controller.cli.pastlook import print_why
    from controller.past.why import why as reason

    def work(history: History) -> int:
        print_why(reason(history, thing), output)
        return 0

    _look(_Source(files, archive, nats, output), work)


@with_nats
def story(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")],
    files: FilesArgument = None,
    archive: ArchiveOption = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Tell a job's whole story, from its first start on."""
    from controller.cli.pastlook import print_story
    from events.errors import UnknownJob
    from events.stories import about

    def work(history: History) -> int:
        told = about(history.all(), job_id=job)
        if not told:
            raise UnknownJob(f"nothing in this log is about a job {job}", job_id=job)
        print_story(told, output)
        return 0

    _look(_Source(files, archive, nats, output), work)


@with_nats
def audit(
    files: FilesArgument = None,
    archive: ArchiveOption = None,
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Check the six laws over a whole log.

    The first that is broken is told with its story, and the exit code is 1.
    """
    from controller.cli.pastlook import print_audit
    from controller.cli.running import DONE, REFUSED
    from controller.past.why import first_violation

    def work(history: History) -> int:
        found = first_violation(history)
        print_audit(found, history, output)
        return DONE if found is None else REFUSED

    _look(_Source(files, archive, nats, output), work)


@with_nats
def take_in(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An exported log, from its start.")],
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Write an exported log into the empty event log of a cluster.

    Refused where that log is not empty, or the file is no whole log; every record is checked
    against the laws of folding first. Start the controller afterwards.
    """
    from controller.cli.output import write, write_body
    from controller.cli.running import DONE, reported
    from controller.cli.session import Where, converse
    from controller.past.history import history_of_files
    from controller.past.moving import import_log
    from events.codec import encode

    with reported(output):
        history = history_of_files(file)
        _warn_of_torn(history)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        done = await import_log(bus.nc, bus.subjects, history)
        shown.pause()
        if output is Output.JSON:
            write_body(encode(done))
        else:
            write(f"{done.records} records are in the event log")
        return DONE

    converse(Where(nats, output), f"writing {file.name} into the event log", work)


class _Source(NamedTuple):
    """Where the past is read: in files without any server, or of a running cluster."""

    files: list[Path] | None
    archive: Path | None
    nats: Nats
    output: Output


def _look(source: _Source, work: Callable[[History], int]) -> None:
    """Reads all of the history, and looks at it."""
    if source.files:
        _look_in_files(source, work)
    else:
        from controller.past.reaching import history

        _ask(source, history, work)


def _look_at(moments: list[Moment], source: _Source, work: Callable[[list[Ledger]], int]) -> None:
    """The same for some moments: of a cluster no more is read than they need."""
    if source.files:
        _look_in_files(
            source,
            lambda past: work([past.ledger_at(each) for each in moments]),
            lambda file: _ledgers(file, moments, work),
        )
        return
    from controller.past.reaching import ledger_at

    async def read(past: Reach) -> list[Ledger]:
        return [await ledger_at(past, each) for each in moments]

    _ask(source, read, work)


def _ledgers(file: Path, moments: list[Moment], work: Callable[[list[Ledger]], int]) -> int | None:
    """None where all of the file has to be held to know."""
    from controller.past.history import ledger_of_file

    found = [ledger for each in moments if (ledger := ledger_of_file(file, each)) is not None]
    return work(found) if len(found) == len(moments) else None


def _look_in_files(
    source: _Source,
    work: Callable[[History], int],
    at_once: Callable[[Path], int | None] = lambda _: None,
) -> None:
    """``at_once``: how one file may be looked at without holding it all."""
    from controller.cli.running import DONE, reported
    from controller.past.history import history_of_files
    from events.collector import calm_collector

    calm_collector()
    files = source.files or []
    with reported(source.output):
        code = at_once(files[0]) if len(files) == 1 else None
        if code is None:
            history = history_of_files(*files)
            _warn_of_torn(history)
            code = work(history)
    if code != DONE:
        raise typer.Exit(code)


def _ask(source: _Source, read: Callable[[Reach], Awaitable[T]], work: Callable[[T], int]) -> None:
    from controller.cli.session import Where, converse
    from controller.past.reaching import reach
    from events.collector import calm_collector

    calm_collector()

    async def ask(bus: SlotbusClient, shown: Progress) -> int:
        found = await read(reach(bus.nc, bus.subjects, source.archive))
        shown.pause()
        return work(found)

    converse(Where(source.nats, source.output), "reading the event log", ask)


def _warn_of_torn(history: History) -> None:
    from controller.cli.output import warn

    for sentence in history.torn:
        warn(sentence)
