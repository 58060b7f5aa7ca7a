"""The command line's table of contents.

What lives here: ``app``, which names every command. What may not: what they do.
"""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import (
    again,
    commands,
    describe,
    doctor,
    draining,
    past,
    pods,
    programs,
    queries,
    rebuilding,
    record,
    reporting,
    schemas,
    setup,
    start,
    waiting,
    watching,
)
from controller.cli.helping import App, WithCommand
from controller.cli.options import EXIT_CODES

_RUN = "Run slotbus"
_USE = "Use it"
_WATCH = "Watch it"
_PAST = "Look back"

app = App(
    name="slotbus",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help=(
        "Start, stop and watch the workers of long-lived pipelines over NATS.\n\n"
        "First steps: [bold]slotbus up[/bold] in one terminal, then in another "
        "[bold]slotbus start hello --slots 2[/bold], [bold]slotbus workers[/bold], "
        "[bold]slotbus stop hello[/bold]."
    ),
    epilog=EXIT_CODES,
)


@app.callback()
def _whole(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options of the whole command; ``--version`` alone is answered by the entry."""


app.command(rich_help_panel=_RUN)(programs.up)
app.command(rich_help_panel=_RUN)(programs.controller)
app.command(rich_help_panel=_RUN)(programs.agent)
app.command(rich_help_panel=_RUN)(setup.init)
app.command(rich_help_panel=_RUN)(programs.demo)
app.command(
    cls=WithCommand,
    rich_help_panel=_USE,
    options_metavar="[OPTIONS] [-- CMD...]",
    no_args_is_help=True,
    epilog=EXIT_CODES,
)(start.start)
app.command(rich_help_panel=_USE, epilog=EXIT_CODES)(commands.stop)
app.command(rich_help_panel=_USE, epilog=EXIT_CODES)(again.restart)
app.command(rich_help_panel=_USE, epilog=EXIT_CODES)(again.scale)
app.command("wait", rich_help_panel=_USE, epilog=EXIT_CODES)(waiting.wait)
app.command(rich_help_panel=_USE, epilog=EXIT_CODES)(pods.pod)
app.command(rich_help_panel=_USE)(commands.cordon)
app.command(rich_help_panel=_USE)(commands.uncordon)
app.command(rich_help_panel=_USE, epilog=EXIT_CODES)(draining.drain)
node = App(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="What only a person can know of a node.",
)
node.command("confirm-dead", epilog=EXIT_CODES)(draining.confirm_dead)
app.add_typer(node, name="node", rich_help_panel=_USE)
app.command(rich_help_panel=_USE)(reporting.ended)
app.command(rich_help_panel=_USE, epilog=EXIT_CODES)(rebuilding.rebuild)
app.command(rich_help_panel=_WATCH)(queries.workers)
app.command(rich_help_panel=_WATCH)(queries.jobs)
app.command(rich_help_panel=_WATCH)(queries.nodes)
app.command(rich_help_panel=_WATCH)(queries.shortage)
app.command(rich_help_panel=_WATCH)(describe.describe)
app.command(rich_help_panel=_WATCH)(watching.events)
app.command(rich_help_panel=_WATCH)(watching.logs)
app.command(rich_help_panel=_PAST)(record.record)
app.command(rich_help_panel=_PAST)(past.state)
app.command(rich_help_panel=_PAST)(past.diff)
app.command(rich_help_panel=_PAST)(past.why)
app.command(rich_help_panel=_PAST)(past.story)
app.command(rich_help_panel=_PAST, epilog=EXIT_CODES)(past.audit)
app.command("import", rich_help_panel=_PAST)(past.take_in)
app.command(rich_help_panel=_WATCH, epilog=EXIT_CODES)(doctor.doctor)
app.command(rich_help_panel=_WATCH)(schemas.schema)
