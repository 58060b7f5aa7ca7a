"""The supervisor as a process of its own: the core behind a Unix socket.

What lives here: connections, requests in their order, streams of reports, and when the
process ends. What may not: what happens to workers (``core``), daemon matters
(``__main__``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct

from events.errors import SlotbusError
from events.traffic import InventoryRow
from schedulers.supervisor import frames
from schedulers.supervisor.core import LocalSupervisor

IDLE_EXIT_S: Final = 60.0
"""Without workers and clients for so long, the process ends; unacknowledged ends stay on
disk for the next one."""

MAX_CLIENTS: Final = 64
WRITE_TIMEOUT_S: Final = 30.0
"""A client that does not read for so long is disconnected."""

FAREWELL_S: Final = 2.0
"""How long streams may take to carry the last reports when the process ends."""

_LOOK_S: Final = 0.5

_log = logging.getLogger(__name__)


class _Done(Struct, frozen=True):
    """The result of what has none."""


class Server:
    """Serves one core until it is asked to end, or is idle for ``idle_exit_s`` seconds."""

    def __init__(
        self, core: LocalSupervisor, state_dir: Path, node_id: str, idle_exit_s: float
    ) -> None:
        self._core = core
        self._dir = state_dir
        self._node_id = node_id
        self._idle_exit_s = idle_exit_s
        self._end = asyncio.Event()
        self._asked_to_end = False
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._streams: set[asyncio.Task[None]] = set()

    async def serve(self, ready: Ready) -> None:
        """Opens the core, listens, calls ``ready``, and returns when all is over.

        Raises StateDirBusy, and OSError where the directory can't be used.
        """
        self._core.open()
        loop = asyncio.get_running_loop()
        # A handler, since "ignored" would be inherited by the workers.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        listener = await asyncio.start_unix_server(self._accept, sock=self._bind())
        _log.info("node %s: serving %s as pid %d", self._node_id, self._dir, os.getpid())
        ready()
        try:
            await self._until_the_end()
        finally:
            listener.close()
            (self._dir / frames.SOCKET_NAME).unlink(missing_ok=True)
            await self._farewell()
        _log.info("ended")

    def _bind(self) -> socket.socket:
        (self._dir / frames.SOCKET_NAME).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with frames.socket_path(self._dir) as path:
            mask = os.umask(0o177)
            try:
                listening.bind(path)
            finally:
                os.umask(mask)
        return listening

    async def _until_the_end(self) -> None:
        loop = asyncio.get_running_loop()
        busy_at = loop.time()
        while not self._end.is_set():
            if self._asked_to_end:
                await self._core.stop_all(self._core.settings.close_grace_s)
                return
            if self._core.alive or self._clients:
                busy_at = loop.time()
            elif loop.time() - busy_at >= self._idle_exit_s:
                _log.info("no workers and no client for %g s", self._idle_exit_s)
                return
            try:
                async with asyncio.timeout(min(_LOOK_S, self._idle_exit_s)):
                    await self._end.wait()
            except TimeoutError:
                continue

    async def _farewell(self) -> None:
        """Lets streams carry their last reports, then hangs up on everybody."""
        await self._core.detach()
        for task, writer in self._clients.items():
            if task not in self._streams:
                writer.close()
        if self._clients:
            await asyncio.wait(list(self._clients), timeout=FAREWELL_S)
        rest = dict(self._clients)
        for writer in rest.values():
            writer.transport.abort()
        await asyncio.gather(*rest, return_exceptions=True)

    # --- signals ----------------------------------------------------------------------

    def _signalled(self) -> None:
        _log.info("asked to end by a signal")
        self._asked_to_end = True

    # --- one client -------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._clients) >= MAX_CLIENTS:
            _log.warning("more than %d clients: one is turned away", MAX_CLIENTS)
            writer.close()
            return
        self._clients[task] = writer
        try:
            await self._converse(reader, writer, task)
        except (asyncio.IncompleteReadError, OSError, TimeoutError):
            _log.debug("a client left")
        except frames.BadFrame as error:
            _log.warning("a client does not speak this protocol: %s", error)
        except Exception:  # noqa: BLE001 - the edge: one client must not end the others
            _log.exception("a connection failed")
        finally:
            del self._clients[task]
            self._streams.discard(task)
            writer.close()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        while True:
            request = await frames.read(reader, frames.Request)
            if isinstance(request.op, frames.Reports):
                self._streams.add(task)
                await self._stream(reader, writer)
                return
            await _write(writer, await self._answer(request))
            if isinstance(request.op, frames.Shutdown):
                self._end.set()

    async def _answer(self, request: frames.Request) -> frames.Answer:
        try:
            result = await self._do(request.op)
        except SlotbusError as error:
            failure = frames.Failure(type(error).__name__, error.message, error.facts)
            return frames.Answer(request.id, error=failure)
        except OSError as error:  # the disk, or no descriptors left
            _log.exception("a request failed")
            return frames.Answer(request.id, error=frames.Failure("Internal", str(error)))
        return frames.Answer(request.id, result=Raw(msgspec.json.encode(result)))

    async def _do(self, op: frames.Op) -> Struct:
        core = self._core
        match op:
            case frames.Hello():
                return frames.Welcome(
                    frames.PROTOCOL, os.getpid(), self._node_id, core.supervisor_id
                )
            case frames.Launch():
                return await core.launch(op.spec, op.epoch)
            case frames.Stop():
                return await core.stop(
                    op.worker_id, force=op.force, grace_s=op.grace_s, epoch=op.epoch
                )
            case frames.TakeInventory():
                return await core.inventory(op.epoch)
            case frames.Acknowledge():
                await core.acknowledge(op.worker_ids)
            case frames.Renew():
                await core.renew(op.sent_at)
            case frames.ReadOutput():
                return await core.output(op.worker_id, since=op.since, max_bytes=op.max_bytes)
            case frames.Shutdown():
                _log.info("asked to end by a client")
                await core.stop_all(op.grace_s)
            case frames.Reports():
                pass  # the connection changes its nature: see _converse
        return _Done()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries every end to one client, as fast as that client reads."""
        rows = self._core.reports()
        following = asyncio.ensure_future(_next(rows))
        hung_up = asyncio.ensure_future(reader.read(1))
        try:
            while True:
                await asyncio.wait(
                    {following, hung_up},
                    timeout=frames.BEAT_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if hung_up.done():
                    return
                row: InventoryRow | None = None
                if following.done():
                    row = following.result()
                    if row is None:
                        return
                    following = asyncio.ensure_future(_next(rows))
                await _write(writer, frames.Told(row))
        finally:
            following.cancel()
            hung_up.cancel()
            await asyncio.gather(following, hung_up, return_exceptions=True)


class Ready(Protocol):
    """Called once, when clients can connect."""

    def __call__(self) -> None: ...


async def _next(rows: AsyncIterator[InventoryRow]) -> InventoryRow | None:
    return await anext(rows, None)


async def _write(writer: asyncio.StreamWriter, message: Struct) -> None:
    """Raises TimeoutError for a client that does not read."""
    writer.write(frames.encode(message))
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await writer.drain()
