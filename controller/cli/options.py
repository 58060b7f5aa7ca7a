"""Options that several commands share, each with the one help text it has.

What lives here: annotated types for typer. What may not: what the options do.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage or input; 3 no NATS server or no "
    "controller reached; 4 not finished in time, the work goes on."
)


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


class EventsOutput(StrEnum):
    """How records are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class SchedulerChoice(StrEnum):
    """What a controller hands its work to."""

    PROCESS = "process"
    NODE = "node"
    KUBERNETES = "kubernetes"
    EMBEDDED = "embedded"
    MANUAL = "manual"


_WHERE = "Where and how"
PROGRAM = "Program"
"""The panel of the options that every program has."""

OutputOption = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        help="json prints exactly the reply as it came over the wire.",
        rich_help_panel=_WHERE,
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        help="How long to wait for the outcome; 0 returns on acceptance [until it is due].",
    ),
]
CommandId = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="Repeat a command under its own id: it is carried out once (fresh)."
    ),
]
Queue = Annotated[
    bool,
    typer.Option(
        "--queue",
        help="Leave it in the queue and return: it is done once, when a controller leads.",
    ),
]
Run = Annotated[int | None, typer.Option("--run", metavar="N", help="Only this run of the job.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")]

WorkerCommand = Annotated[
    str | None,
    typer.Option(
        metavar='"CMD ARGS"',
        help="What a worker runs where its job does not say; split like a shell's words.",
        rich_help_panel=PROGRAM,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings as TOML; flags win.", rich_help_panel=PROGRAM
    ),
]
StateDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Where state is kept (per user).", rich_help_panel=PROGRAM),
]
Http = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="/metrics, /healthz, /readyz; `off` for none (loopback).",
        rich_help_panel=PROGRAM,
    ),
]
NodeExpiry = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="A node silent for longer has expired [30].",
        rich_help_panel=PROGRAM,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(metavar="LEVEL", help="debug, info, warning or error.", rich_help_panel=PROGRAM),
]
Record = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Record all that comes in, to be replayed in tests.",
        rich_help_panel=PROGRAM,
    ),
]

ArchiveOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        envvar="SLOTBUS_CFG_ARCHIVE",
        help="The controller's archive, for what is no longer in the running cluster's log.",
        show_default=False,
        rich_help_panel=_WHERE,
    ),
]
