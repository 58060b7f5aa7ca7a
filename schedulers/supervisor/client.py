"""The supervisor process as seen from agent and process backend.

What lives here: the port over a Unix socket. What may not: starting the process
(``starter``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from events.errors import Internal, Invalid, SlotbusError
from events.traffic import AgentStopReply, InventoryRow
from schedulers.supervisor import frames
from schedulers.supervisor.api import (
    Inventory,
    OutputTail,
    Spawned,
    SpawnRefused,
    SupervisorGone,
    WorkerSpec,
)
from schedulers.supervisor.process_tree import is_running, read_process

TIMEOUT_S: Final = 15.0
"""For each request; a thousand launches sent at once wait for each other inside it."""

SILENCE_S: Final = 4 * frames.BEAT_S
"""A stream of reports that is silent for longer has ended."""

_LOOK_S: Final = 0.01
"""Between two looks at whether a process that hung up has ended."""

_KINDS: Final[dict[str, type[SlotbusError]]] = {
    "SpawnRefused": SpawnRefused,
    "SupervisorGone": SupervisorGone,
}

R = TypeVar("R", bound=Struct)
Forever: TypeAlias = "asyncio.Task[Literal[True]]"


class _Nothing(Struct, frozen=True):
    """A result without fields."""


class SupervisorClient:
    """Implements ``api.Supervisor``; every method raises SupervisorGone when the process
    does not answer within ``timeout_s``. After that it stays gone: connect again."""

    def __init__(
        self,
        state_dir: Path,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        timeout_s: float,
    ) -> None:
        self._dir = state_dir.absolute()
        self._reader = reader
        self._writer = writer
        self._timeout_s = timeout_s
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[frames.Answer]] = {}
        self._gone = ""
        self._closing = asyncio.Event()
        self._receiver = asyncio.create_task(self._receive())
        self.welcome = frames.Welcome(0, 0, "", "")

    @classmethod
    async def connect(cls, state_dir: Path, timeout_s: float = TIMEOUT_S) -> SupervisorClient:
        """Raises SupervisorGone if none serves this directory, or one of another version."""
        reader, writer = await _open(state_dir, timeout_s)
        client = cls(state_dir, reader, writer, timeout_s)
        try:
            client.welcome = await client._ask(frames.Hello(frames.PROTOCOL), frames.Welcome)
            if client.welcome.protocol != frames.PROTOCOL:
                raise SupervisorGone(
                    f"the supervisor of {state_dir} (pid {client.welcome.pid}) is of another "
                    f"version (protocol {client.welcome.protocol}, not {frames.PROTOCOL})"
                )
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def gone(self) -> bool:
        """Whether the connection is known to be over."""
        return bool(self._gone)

    # --- the port ---------------------------------------------------------------------

    async def launch(self, spec: WorkerSpec, epoch: int) -> Spawned:
        return await self._ask(frames.Launch(spec, epoch), Spawned)

    async def stop(
        self, worker_id: str, *, force: bool, grace_s: float, epoch: int
    ) -> AgentStopReply:
        op = frames.Stop(worker_id=worker_id, force=force, grace_s=grace_s, epoch=epoch)
        return await self._ask(op, AgentStopReply)

    async def inventory(self, epoch: int) -> Inventory:
        return await self._ask(frames.TakeInventory(epoch), Inventory)

    async def acknowledge(self, worker_ids: Sequence[str]) -> None:
        await self._ask(frames.Acknowledge(list(worker_ids)), _Nothing)

    async def renew(self, sent_at: float | None = None) -> None:
        await self._ask(frames.Renew(sent_at), _Nothing)

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        return await self._ask(frames.ReadOutput(worker_id, since, max_bytes), OutputTail)

    async def reports(self) -> AsyncIterator[InventoryRow]:
        """On a connection of its own, so that a slow reader holds up nothing else."""
        try:
            reader, writer = await _open(self._dir, self._timeout_s)
        except SupervisorGone:
            return
        closing = asyncio.create_task(self._closing.wait())
        try:
            writer.write(frames.encode(frames.Request(0, frames.Reports())))
            while (told := await _told(reader, closing)) is not None:
                if told.row is not None:
                    yield told.row
        finally:
            writer.close()  # before any await: the reader may be cancelled in the next one
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await _hang_up(writer)

    async def close(self) -> None:
        """Disconnects; the workers go on."""
        self._closing.set()
        self._fail("this client is closed")
        self._writer.close()
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)
        await _hang_up(self._writer)

    # --- beyond the port --------------------------------------------------------------

    async def shutdown(self, grace_s: float) -> None:
        """Has all workers stopped (KILL after ``grace_s`` seconds) and the process end, and
        waits for both. Closes this client. Raises SupervisorGone if they take too long."""
        deadline = grace_s + 2 * self._timeout_s
        process = read_process(self.welcome.pid)
        try:
            await self._ask(frames.Shutdown(grace_s), _Nothing, deadline)
            async with asyncio.timeout(self._timeout_s):
                await asyncio.wait({self._receiver})
                while process and is_running(process.id):  # noqa: ASYNC110 - a process knows no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            raise SupervisorGone(f"the supervisor of {self._dir} does not end") from error
        finally:
            await self.close()

    # --- requests ---------------------------------------------------------------------

    async def _ask(self, op: frames.Op, kind: type[R], timeout_s: float | None = None) -> R:
        if self._gone:
            raise SupervisorGone(self._gone)
        number = next(self._ids)
        answer: asyncio.Future[frames.Answer] = asyncio.get_running_loop().create_future()
        try:
            frame = frames.encode(frames.Request(number, op))
        except frames.BadFrame as error:
            raise Invalid(str(error)) from error
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                self._writer.write(frame)
                await self._writer.drain()
                return _result(await answer, kind)
        except TimeoutError as error:
            raise SupervisorGone(f"the supervisor of {self._dir} does not answer") from error
        except OSError as error:
            raise SupervisorGone(f"the supervisor of {self._dir} is gone: {error}") from error
        finally:
            self._waiting.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, though the write may have failed first

    async def _receive(self) -> None:
        try:
            while True:
                answer = await frames.read(self._reader, frames.Answer)
                waiting = self._waiting.pop(answer.id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, OSError, frames.BadFrame) as error:
            self._fail(f"the supervisor of {self._dir} is gone: {error}")

    def _fail(self, reason: str) -> None:
        self._gone = self._gone or reason
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SupervisorGone(self._gone))


def _result(answer: frames.Answer, kind: type[R]) -> R:
    failure = answer.error
    if failure is None:
        return msgspec.json.decode(answer.result, type=kind)
    if failure.kind == "Invalid":
        raise Invalid(failure.message, path=str(failure.facts.get("path", "$")))
    raise _KINDS.get(failure.kind, Internal)(failure.message, **failure.facts)


async def _open(
    state_dir: Path, timeout_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(timeout_s):
            with frames.socket_path(state_dir) as path:
                return await asyncio.open_unix_connection(path)
    except (OSError, TimeoutError) as error:
        raise SupervisorGone(f"no supervisor serves {state_dir}: {error}") from error


async def _told(
    reader: asyncio.StreamReader, closing: asyncio.Task[Literal[True]]
) -> frames.Told | None:
    """The next message of a stream; None when it or this client is over."""
    reading = asyncio.create_task(frames.read(reader, frames.Told))
    try:
        tasks: set[asyncio.Task[Any]] = {reading, closing}
        await asyncio.wait(tasks, timeout=SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    except (asyncio.IncompleteReadError, OSError, frames.BadFrame):
        return None
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
