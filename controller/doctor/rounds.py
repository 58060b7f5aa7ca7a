"""All examinations, one after the other.

What lives here: their order, the first looks, and going on where one can't be made. What may
not: printing.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final

from controller.app import version as our_version
from controller.doctor.cluster import clocks, controllers, leader, nodes
from controller.doctor.finding import Finding
from controller.doctor.jetstream import jetstream, lease, streams
from events.client import SlotbusClient
from events.errors import SlotbusError

LEAST_SERVER: Final = (2, 11)
"""The first with a TTL for single messages, which the lease needs."""


async def examine(bus: SlotbusClient) -> AsyncGenerator[Finding]:
    """Looks at everything, one after the other."""
    yield _names()
    yield _server(bus)
    for examination in (jetstream, streams, lease, controllers, leader, nodes, clocks):
        for finding in await _carefully(examination, bus):
            yield finding


async def _carefully(
    examination: Callable[[SlotbusClient], Awaitable[list[Finding]]], bus: SlotbusClient
) -> list[Finding]:
    try:
        return await examination(bus)
    except SlotbusError as error:
        what = examination.__name__
        if error.code == "denied":
            advice = "give this user what docs/nats.md lists for `slotbus doctor`"
            return [Finding(what=what, level="unknown", text=error.message, advice=advice)]
        return [Finding(what=what, level="bad", text=error.message)]


def _names() -> Finding:
    """The PyPI distribution `Events` owns the import name `events` too."""
    found = [d for d in importlib.metadata.distributions() if d.metadata["Name"] == "Events"]
    if found:
        return Finding(
            what="installation",
            level="warning",
            text="the distribution Events is installed beside slotbus: both own the name `events`",
            advice="install slotbus in an environment of its own",
        )
    return Finding(what="installation", level="ok", text=f"slotbus {our_version()}")


def _server(bus: SlotbusClient) -> Finding:
    address = bus.nc.connected_url
    where = address.netloc.rpartition("@")[2] if address else "?"
    found = bus.nc.connected_server_version
    numbers = (found.major, found.minor)
    text = f"nats-server {found.major}.{found.minor}.{found.patch} at {where}"
    if numbers < LEAST_SERVER:
        least = ".".join(str(n) for n in LEAST_SERVER)
        return Finding(
            what="server", level="bad", text=text, advice=f"slotbus needs {least} or later"
        )
    return Finding(what="server", level="ok", text=text)
