"""A command's conversation with the cluster: connect, ask, print.

What lives here: what client commands have in common. What may not: single commands.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import msgspec
import typer
from msgspec import Struct

from controller.cli.finding import ClientConfig, client_config
from controller.cli.nats_options import Nats
from controller.cli.options import Output
from controller.cli.output import Progress, progress, write_body
from controller.cli.running import DONE, as_usage, reported, run_conversation
from controller.logs import setup_logging
from events.asking import Patience
from events.client import SlotbusClient, make_command_id
from events.codec import convert
from events.errors import SlotbusError
from events.messages import Command


class Where(Struct, frozen=True):
    """What the common options say."""

    nats: Nats
    output: Output


M = TypeVar("M", bound=Struct)
Work = Callable[[SlotbusClient, Progress], Awaitable[int]]


def converse(where: Where, doing: str, work: Work, config: ClientConfig | None = None) -> None:
    """Runs ``work`` with a client; ``doing`` is shown while it is waited for. ``config``: as
    whom, if not as the options and the environment say.

    Raises typer.Exit for any exit code but 0.
    """
    setup_logging("error")
    with reported(where.output):
        code = run_conversation(lambda: _converse(where, doing, work, config))
    if code != DONE:
        raise typer.Exit(code)


async def _converse(where: Where, doing: str, work: Work, config: ClientConfig | None) -> int:
    with progress(doing) as shown:
        async with _client(where, shown, config) as bus:
            return await work(bus, shown)


@contextlib.asynccontextmanager
async def _client(
    where: Where, shown: Progress, config: ClientConfig | None
) -> AsyncGenerator[SlotbusClient]:
    if config is None:
        with as_usage():
            config = client_config(where.nats.settings())

    def retrying(error: SlotbusError) -> None:
        shown.say(f"{error.message} -- trying again")

    async with SlotbusClient.connect(
        config.server,
        config.root,
        name="slotbus cli",
        access=config.access(),
        connect_timeout_s=config.connect_timeout_s,
        patience=Patience(absent_s=config.patience_s),
        retrying=retrying,
    ) as bus:
        yield bus


def said(where: Where, kind: type[M], **fields: object) -> M:
    """A command's message of what was said; what is None was not. A mistake is reported."""
    with reported(where.output), as_usage():
        given = {key: value for key, value in fields.items() if value is not None}
        return convert(given, kind)


def leave(where: Where, command: Command) -> None:
    """Leaves a command in the queue, and says where it stands."""
    if command.command_id is None:
        command = msgspec.structs.replace(command, command_id=make_command_id())

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        place = await bus.leave(command)
        told = {"command_id": command.command_id, "sequence": place}
        text = f"{command.command_id} is number {place} in the queue"
        print_reply(where, shown, msgspec.json.encode(told), lambda: typer.echo(text))
        return DONE

    converse(where, "queueing", work)


def print_reply(where: Where, shown: Progress, body: bytes, as_table: Callable[[], None]) -> None:
    """The reply as it came, or for people."""
    shown.pause()
    if where.output is Output.JSON:
        write_body(body)
    else:
        as_table()


class _Page(Struct):
    workers: list[msgspec.Raw] | None = None
    jobs: list[msgspec.Raw] | None = None
    nodes: list[msgspec.Raw] | None = None
    waiting: list[msgspec.Raw] | None = None
    missing: int | None = None


def join_pages(pages: list[bytes]) -> bytes:
    """Several pages as the one reply they would have been without a limit; a single page
    stays as it came."""
    if len(pages) == 1:
        return pages[0]
    joined: dict[str, object] = {}
    for page in pages:
        for name, rows in msgspec.structs.asdict(msgspec.json.decode(page, type=_Page)).items():
            if isinstance(rows, int):
                joined[name] = rows
            elif rows is not None:
                known = joined.setdefault(name, [])
                assert isinstance(known, list)
                known.extend(rows)
    return msgspec.json.encode({**joined, "next": ""})
