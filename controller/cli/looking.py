"""Lists that are shown again when they change.

What lives here: when to look, and what counts as a change. What may not: how a list is drawn.

On a terminal the list is drawn anew in its place; into a pipe it is written once for each
change, tables with an empty line between.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Callable
from typing import Final, NoReturn

import nats.errors
from nats.aio.msg import Msg

from controller.cli.options import Output
from controller.cli.output import Progress, write, write_body
from controller.cli.session import Where, join_pages
from events.asking import PagedQuery
from events.client import SlotbusClient
from events.errors import SlotbusError

LOOK_S: Final = 2.0
"""How often to look at the latest; an event is a reason to look at once."""
QUIET_S: Final = 0.1
"""Events that follow each other closer than this are one reason."""

HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"
_AGES: Final = re.compile(rb'"heartbeat_age_s":[0-9.e+-]+')
"""Grows by itself: no change of the list."""


async def keep_looking(
    bus: SlotbusClient,
    query: PagedQuery,
    where: Where,
    shown: Progress,
    as_table: Callable[[bytes], None],
) -> NoReturn:
    """Shows the answer whenever it is another one, until it is interrupted. A controller that
    is away for a time is waited for. Raises SlotbusError for a refusal."""
    screen = sys.stdout.isatty() and where.output is Output.TABLE
    before: bytes | None = None
    news = asyncio.Event()

    async def on_event(_message: Msg) -> None:
        news.set()

    with contextlib.suppress(nats.errors.Error):  # looking now and then is enough
        await bus.nc.subscribe(bus.subjects.events, cb=on_event)
    while True:
        news.clear()
        try:
            body = join_pages(await bus.pages(query))
        except SlotbusError as error:
            if not error.retriable:
                raise
            shown.say(f"{error.message} -- looking again")
        else:
            now = _AGES.sub(b"", body)
            if screen or now != before:
                shown.pause()
                _show(where, body, as_table, screen=screen, first=before is None)
            before = now
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await news.wait()
        await asyncio.sleep(QUIET_S)


def _show(
    where: Where, body: bytes, as_table: Callable[[bytes], None], *, screen: bool, first: bool
) -> None:
    if where.output is Output.JSON:
        write_body(body)
        return
    if screen:
        sys.stdout.write(HOME_AND_CLEAR)
    elif not first:
        write("")
    as_table(body)
