"""Recording a running cluster from outside.

What lives here: the command's arguments, when it ends, and what it says. What may not: anything
heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import Output

if TYPE_CHECKING:
    import asyncio

    from controller.cli.output import Progress
    from controller.outside import Outside
    from controller.recordsettings import RecordSettings
    from events.client import SlotbusClient


@with_nats
def record(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A new file; compressed if it ends in .gz or .zst.", exists=False
        ),
    ],
    for_s: Annotated[
        float | None,
        typer.Option("--for", metavar="SECONDS", min=0.1, help="How long (until Ctrl-C)."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="More values to make unreadable, such as 'program.sink.url'; those of the "
            "controller's record_mask are already.",
        ),
    ] = None,
    file_bytes: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=4096,
            help="Of lines, after which it goes on in another file, FILE with a number [64 MiB].",
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=4096, help="Of files: the oldest go first [1 GiB]."),
    ] = None,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Record what enters the leader's inbox, to be replayed in tests.

    The leader publishes it as long as somebody asks; whoever leads next goes on. Where something
    is missing the recording says so.
    """
    from controller.cli.running import DONE, REFUSED
    from controller.cli.session import Where, converse

    settings = _settings(file, mask or [], file_bytes, max_bytes)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        import asyncio

        from controller.outside import Outside

        stop = asyncio.Event()
        _stop_on_signals(stop)
        begun = False

        def on_begun() -> None:
            nonlocal begun
            begun = True
            shown.say(f"recording into {file}; Ctrl-C ends it")
            if for_s is not None:
                asyncio.get_running_loop().call_later(for_s, stop.set)

        outside = Outside(bus, settings, said=shown.say, begun=on_begun)
        await outside.run(stop)
        shown.pause()
        _tell(outside, file)
        return DONE if begun else REFUSED

    converse(Where(nats, Output.TABLE), "asking the leader for its inbox", work)


def _settings(
    file: Path, mask: list[str], file_bytes: int | None, max_bytes: int | None
) -> RecordSettings:
    from controller.cli.running import as_usage, reported
    from controller.recordfiles import in_the_way
    from controller.recordsettings import FILE_BYTES, TOTAL_BYTES, RecordSettings
    from events.errors import Invalid
    from schedulers.masking import Mask

    with reported(), as_usage():
        Mask(mask, b"")
        other = in_the_way(file)
        if other is not None:
            raise Invalid(f"{other} is there already: give another name", path="FILE")
        if not file.absolute().parent.is_dir():
            raise Invalid(f"there is no folder {file.parent}", path="FILE")
    return RecordSettings(
        folder=file.parent,
        name=file.name,
        mask=tuple(mask),
        file_bytes=file_bytes or FILE_BYTES,
        total_bytes=max_bytes or TOTAL_BYTES,
    )


def _stop_on_signals(stop: asyncio.Event) -> None:
    """The first one ends it in order, another one breaks that off."""
    import asyncio
    import signal

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)


def _tell(outside: Outside, file: Path) -> None:
    from controller.cli.output import warn, write

    stats = outside.stats
    if not stats.lines:
        warn("nothing was recorded: no leader said anything")
        return
    files = f"{file}" if stats.files == 1 else f"{file} and {stats.files - 1} more"
    write(f"{files}: {stats.lines} lines, {outside.records} records of the log")
    if stats.lost:
        warn(f"{stats.lost} lines are missing: the recording says where")
