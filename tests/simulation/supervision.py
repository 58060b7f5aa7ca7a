"""Supervisors as processes of their own, and the agent's way to them.

What lives here: a machine's supervisor over its lives, and a client of it that behaves as
``SupervisorClient`` does when the process is slow, frozen or dead. What may not: what a
supervisor does (``schedulers.supervisor``, which is real), processes (``machine``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from events.errors import SlotbusError
from events.traffic import AgentStopReply, InventoryRow
from schedulers.supervisor.api import (
    Inventory,
    OutputTail,
    Spawned,
    Supervisor,
    SupervisorGone,
    WorkerSpec,
)
from schedulers.supervisor.client import SILENCE_S, TIMEOUT_S
from schedulers.supervisor.core import LocalSupervisor
from tests.simulation.loop import Proc, State, current
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.world import World

STARTING_S: Final = (0.05, 0.3)
WAY_S: Final = 0.0001

R = TypeVar("R")


class SupervisorHost:
    """The supervisor of one machine, whoever it is at the moment."""

    def __init__(self, world: World, machine: Machine, state_dir: Path) -> None:
        self.world = world
        self.machine = machine
        self.state_dir = state_dir
        self.proc: Proc | None = None
        self.core: LocalSupervisor | None = None
        self.links: list[Link] = []
        self._lives = 0

    @property
    def there(self) -> bool:
        return self.proc is not None and self.proc.state is not State.DEAD

    async def ensure(self) -> Supervisor:
        """As ``ensure_supervisor``: a client, of a supervisor that is started if there is
        none. Raises SupervisorGone."""
        if not self.there:
            await asyncio.sleep(current().rng.uniform(*STARTING_S))
        if not self.there:
            self._start()
        assert self.proc is not None
        assert self.core is not None
        link = Link(self, self.proc, self.core, current())
        self.links.append(link)
        try:
            await link.hello()
        except BaseException:
            await link.close()
            raise
        return link

    def _start(self) -> None:
        self._lives += 1
        name = f"s-{self.machine.node_id}"
        self.proc = self.world.proc(name, self.machine, life=self._lives)
        self.core = LocalSupervisor(self.state_dir)
        self.proc.post(self.core.open)

    def kill(self) -> None:
        """KILL, or the machine went: its workers live on, without a parent."""
        if self.proc is None or self.core is None or not self.there:
            return
        self.proc.kill()
        self.core._memory.close()  # the kernel does
        self._forget_exits(self.core)
        self.machine.orphan()
        links, self.links = self.links, []
        for link in links:
            link.caller.post(link.fail)

    def _forget_exits(self, core: LocalSupervisor) -> None:
        """What ended and was not taken yet is known to nobody now."""
        exits = self.world.laws.exits
        for worker in core._state.living():
            exits.pop(worker.born.worker_id, None)


class Link:
    """Implements ``api.Supervisor`` between two processes."""

    def __init__(
        self, host: SupervisorHost, proc: Proc, core: LocalSupervisor, caller: Proc
    ) -> None:
        self.caller = caller
        self._host = host
        self._proc = proc
        self._core = core
        self._gone = False
        self._waiting: dict[asyncio.Future[object], None] = {}
        self._streams: list[asyncio.Queue[InventoryRow | None]] = []
        self._tasks: list[asyncio.Task[None]] = []

    # --- the port -----------------------------------------------------------------------

    async def hello(self) -> None:
        await self._ask(lambda core: core.renew(float("-inf")))

    async def launch(self, spec: WorkerSpec, epoch: int) -> Spawned:
        async def act(core: LocalSupervisor) -> Spawned:
            spawned = await core.launch(spec, epoch)
            self._obeyed(epoch, f"the launch of {spec.worker_id}")
            return spawned

        return await self._ask(act)

    async def stop(
        self, worker_id: str, *, force: bool, grace_s: float, epoch: int
    ) -> AgentStopReply:
        async def act(core: LocalSupervisor) -> AgentStopReply:
            reply = await core.stop(worker_id, force=force, grace_s=grace_s, epoch=epoch)
            self._obeyed(epoch, f"the stop of {worker_id}")
            return reply

        return await self._ask(act)

    async def inventory(self, epoch: int) -> Inventory:
        async def act(core: LocalSupervisor) -> Inventory:
            inventory = await core.inventory(epoch)
            if epoch:
                self._obeyed(epoch, "an inventory")
            return inventory

        return await self._ask(act)

    def _obeyed(self, epoch: int, what: str) -> None:
        self._host.world.laws.obeyed(self._host.machine, epoch, what)

    async def acknowledge(self, worker_ids: Sequence[str]) -> None:
        await self._ask(lambda core: core.acknowledge(worker_ids))

    async def renew(self, sent_at: float | None = None) -> None:
        await self._ask(lambda core: core.renew(sent_at))

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        return await self._ask(
            lambda core: core.output(worker_id, since=since, max_bytes=max_bytes)
        )

    async def reports(self) -> AsyncIterator[InventoryRow]:
        if self._gone:
            return
        rows: asyncio.Queue[InventoryRow | None] = asyncio.Queue()
        self._streams.append(rows)
        self._proc.post(self._begin_stream, rows)
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    row = await rows.get()
            except TimeoutError:
                if self._proc.state is State.RUNNING:
                    continue  # it beats
                return
            if row is None:
                return
            yield row

    async def close(self) -> None:
        self.fail()
        if self in self._host.links:
            self._host.links.remove(self)
        if self._proc.state is not State.DEAD:
            self._proc.post(self._hang_up)

    # --- inside -------------------------------------------------------------------------

    def fail(self) -> None:
        """The connection is over."""
        self._gone = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(SupervisorGone("the supervisor is gone"))
        for rows in self._streams:
            rows.put_nowait(None)

    async def _ask(self, ask: Callable[[LocalSupervisor], Awaitable[R]]) -> R:
        if self._gone:
            raise SupervisorGone("the supervisor is gone")
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = None
        self._proc.post_at(self._later(), self._take, ask, answer)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await answer  # type: ignore[return-value]  # what ``ask`` gave
        except TimeoutError:
            raise SupervisorGone("the supervisor does not answer") from None
        finally:
            del self._waiting[answer]

    def _later(self) -> float:
        return self._proc.loop.time() + WAY_S

    def _take(
        self, ask: Callable[[LocalSupervisor], Awaitable[R]], answer: asyncio.Future[object]
    ) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self._proc.spawn(self._serve(ask, answer)))

    async def _serve(
        self, ask: Callable[[LocalSupervisor], Awaitable[R]], answer: asyncio.Future[object]
    ) -> None:
        try:
            result = await ask(self._core)
        except SlotbusError as error:
            self.caller.post_at(self._later(), _refuse, answer, error)
        else:
            self.caller.post_at(self._later(), _give, answer, result)

    def _begin_stream(self, rows: asyncio.Queue[InventoryRow | None]) -> None:
        self._tasks.append(self._proc.spawn(self._stream(rows)))

    async def _stream(self, rows: asyncio.Queue[InventoryRow | None]) -> None:
        async with contextlib.aclosing(self._core.reports()) as reports:  # type: ignore[type-var]
            async for row in reports:
                self.caller.post_at(self._later(), rows.put_nowait, row)
        self.caller.post_at(self._later(), rows.put_nowait, None)

    def _hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()


def _give(answer: asyncio.Future[object], result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _refuse(answer: asyncio.Future[object], error: SlotbusError) -> None:
    if not answer.done():
        answer.set_exception(error)
