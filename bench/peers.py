"""The far ends of floors, as programs: ``python -m bench.peers VERB URL``.

What lives here: a responder that echoes, and a sender of heartbeats. What may not: slotbus's
own code paths; a floor has none of them.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final
from urllib.parse import urlsplit

import msgspec
import nats
from msgspec import Struct
from nats.aio.msg import Msg

ECHO: Final = "bench.echo"
SEND: Final = "bench.send"
BODY: Final = b'{"node_id":"%s","incarnation":"i1","seq":%d,"epoch":%d,"digest":"%s"}'


class Order(Struct):
    """Send ``count`` heartbeats of nodes n0 to n<nodes-1> on ``<root>.node.<id>.heartbeat``;
    with ``reply``, each asks for an answer there."""

    count: int
    nodes: int
    root: str
    epoch: int
    digest: str
    reply: str = ""


async def echo(url: str) -> None:
    """Answers what it is asked with the same bytes."""
    nc = await nats.connect(url)

    async def answer(message: Msg) -> None:
        await nc.publish(message.reply, message.data)

    await nc.subscribe(ECHO, cb=answer)
    await asyncio.Event().wait()


async def send(url: str) -> None:
    """Sends heartbeats as fast as a socket takes them, so that no receiver waits for it."""
    nc = await nats.connect(url)
    address = urlsplit(url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\n')

    async def begin(message: Msg) -> None:
        if not message.data:
            await nc.publish(message.reply, b"here")
            return
        writer.writelines(_beats(msgspec.json.decode(message.data, type=Order)))
        await writer.drain()
        await nc.publish(message.reply, b"")

    await nc.subscribe(SEND, cb=begin)
    await asyncio.Event().wait()


def _beats(order: Order) -> list[bytes]:
    lines: list[bytes] = []
    for number in range(order.count):
        node = f"n{number % order.nodes}".encode()
        body = BODY % (node, number, order.epoch, order.digest.encode())
        subject = b"%s.node.%s.heartbeat" % (order.root.encode(), node)
        reply = b"%s " % order.reply.encode() if order.reply else b""
        lines.append(b"PUB %s %s%d\r\n%s\r\n" % (subject, reply, len(body), body))
    return lines


if __name__ == "__main__":
    asyncio.run({"echo": echo, "send": send}[sys.argv[1]](sys.argv[2]))
