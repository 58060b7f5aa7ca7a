"""A TCP proxy that loses answers: what a network does to whoever waits for one.

What lives here: one listening port in front of a real server, and switches. What may not:
the NATS protocol (``tests.drills.line`` knows it).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """``swallow`` True: what the server says is read and thrown away. ``holding`` cleared:
    what the client says is kept back until it is set again. ``refusing``: whoever comes is
    sent away."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.port = 0
        self.swallow = False
        self.refusing = False
        self.passing = asyncio.Event()
        self.passing.set()
        self.swallowed_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._listener.close()
        self.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._listener.wait_closed()

    def drop(self) -> None:
        """Breaks every connection; clients may come again."""
        for writer in set(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.refusing:
                raise ConnectionRefusedError
            server_reader, server_writer = await asyncio.open_connection(
                "127.0.0.1", self._server_port
            )
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(server_writer)
        await asyncio.gather(
            self.pump(reader, server_writer, to_server=True),
            self.pump(server_reader, writer, to_server=False),
        )
        self._writers -= {writer, server_writer}
        self._tasks.discard(task)

    async def pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, to_server: bool
    ) -> None:
        """Carries one direction of one connection until either end closes it."""
        try:
            while data := await source.read(65_536):
                if to_server:
                    await self.passing.wait()
                elif self.swallow:
                    self.swallowed_bytes += len(data)
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[Proxy]:
    """A proxy in front of a port of this machine."""
    proxy = Proxy(port)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()
