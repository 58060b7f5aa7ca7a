"""``slotbus schema``: the shape of every message, for other programs.

What lives here: its arguments. What may not: anything heavy at the top; see
``controller.cli``.
"""

from __future__ import annotations

from typing import Annotated

import typer


def schema(
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE",
            help="A message (StartPipelineReq), a subject (slotbus.cmd.start), or a fact "
            "(worker_ended); else all of them.",
            show_default=False,
        ),
    ] = None,
    names_only: Annotated[
        bool, typer.Option("--list", help="What MESSAGE may be, instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of a message, a record or a fact."""
    from controller.cli.output import write
    from controller.cli.running import as_usage, reported
    from controller.reference.schema import names, schema_of, whole_schema
    from events.codec import encode

    with reported(), as_usage():
        if names_only:
            write("\n".join(sorted(names())))
            return
        found = whole_schema() if message is None else schema_of(message)
        write(pretty(encode(found)))


def pretty(body: bytes) -> str:
    """JSON for people, still JSON for programs."""
    import msgspec

    return msgspec.json.format(body, indent=2).decode()
