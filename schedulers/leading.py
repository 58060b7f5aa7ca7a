"""How a leadership begins and ends around the loop.

What lives here: reading the log, the first record, the tasks, and taking all of it down
again, whoever asks for it and however far it came. What may not: what the loop does with a
message (``schedulers.loop``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Final, Self

from events.errors import Internal, NotLeader, SlotbusError
from events.ids import Position
from events.log import EventLog
from events.pulse import Pulse
from events.traffic import InventoryReply, RegisterNodeReq
from schedulers.backend import Backend, LocalNode
from schedulers.chance import Chance
from schedulers.clock import Clock
from schedulers.decide.messages import InventoryTaken, LedRead
from schedulers.launcher import Unreachable
from schedulers.loop import PULSE_S, Decision, EngineLoop, EngineSettings, log

SETTLE_S: Final = 2.0
"""How long a new leader waits for the nodes' first inventories before it serves."""

LOCAL_TRY_S: Final = 5.0
LOCAL_WAIT_S: Final = 30.0
"""How long the launcher of a local node may take to be there."""

LOCAL_PAUSE_S: Final = 0.2


class Leading(EngineLoop):
    """An engine loop that can be started and closed. A start that fails leaves nothing
    behind and may be tried again; after ``close`` there is no other start."""

    def __init__(
        self,
        backend: Backend,
        log: EventLog,
        settings: EngineSettings | None = None,
        *,
        clock: Clock | None = None,
        chance: Chance | None = None,
        may_act: Callable[[], float] = lambda: math.inf,
    ) -> None:
        super().__init__(backend, log, settings, clock=clock, chance=chance, may_act=may_act)
        self._home: asyncio.AbstractEventLoop | None = None
        self._starting = asyncio.Lock()
        self._starter: asyncio.Task[None] | None = None
        self._started = False
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[SlotbusError | None] | None = None

    async def start(self) -> None:
        """Reads the log, writes that this controller leads, asks the nodes what they run.

        Raises LogError, NotLeader; the launcher's errors where a local node is not there.
        """
        self._check_usable()
        async with self._starting:
            if self._started:
                return
            self._check_usable()
            self._starter = asyncio.create_task(self._take_the_lead(), name="engine start")
            try:
                await self._starter
            except asyncio.CancelledError:
                await self._take_down(None)
                if self._closed and self._starter.cancelled() and not _being_cancelled():
                    raise NotLeader("this scheduler was closed while it started") from None
                raise
            except Exception:
                await self._take_down(None)
                await self._after_failed_start()
                self._ended = None
                raise
            self._started = True

    async def _after_failed_start(self) -> None:
        """For schedulers that own more than an engine: let go of it."""

    def _check_usable(self) -> None:
        if self._closed:
            raise NotLeader("this scheduler was closed: make a new one")
        if not self.runs_here():
            raise NotLeader(
                "this scheduler was started in another event loop (another asyncio.run): "
                "close it there, and make a new one here"
            )
        self._home = asyncio.get_running_loop()

    def runs_here(self) -> bool:
        """Whether it was not started in another event loop, which then is over."""
        return self._home in (None, asyncio.get_running_loop())

    async def _take_the_lead(self) -> None:
        self.pulse, self._lost = Pulse(self.rules.expiry), None
        await self._read_log()
        loop = asyncio.get_running_loop()
        self._ended, self._ran_at, self._leading = loop.create_future(), loop.time(), True
        self.tape.open(self)
        entry = self._entry(
            LedRead(self.settings.cluster, self.backend.name, self.settings.version), None
        )
        for turn in self._turns(entry):
            self._unreleased.append(Decision(turn, self._decide(turn)))
        await self._append()
        self._release_all()
        self._set_timer()
        self._tasks = [
            asyncio.create_task(self._guard(work), name=f"engine {name}")
            for name, work in (
                ("loop", self._lead),
                ("pulse", self._beat),
                ("reports", self._take_reports),
            )
        ]
        if self.backend.local is not None:
            await self._register_local(self.backend.local)
        await self.dispatcher.until_idle(SETTLE_S)
        if self._ended.done():
            raise self._ended.result() or NotLeader("closed while it started")

    async def _read_log(self) -> None:
        self.ledger.become(await self._fold_log())
        self._stored = Position(self.ledger.position)
        if self.ledger.state.at is not None:
            self.clock.not_before(self.ledger.state.at)
        seen, wanted = self.ledger.state.epoch, self.settings.epoch
        if wanted is not None and wanted <= seen:
            raise NotLeader(f"epoch {wanted} is over: the log has seen {seen}", epoch_seen=seen)
        wall_ms = int(datetime.now(UTC).timestamp() * 1000)
        self.epoch = wanted or max(seen + 1, self.settings.above_epoch + 1, wall_ms)

    async def _register_local(self, local: LocalNode) -> None:
        workers = (await self._local_inventory(local)).workers if local.listed else None
        await self.submit(
            RegisterNodeReq(
                node_id=local.node_id,
                task_slots=local.task_slots,
                incarnation=local.incarnation,
                machine_id=local.machine_id,
                workers=workers,
                epoch=self.epoch,
            )
        )

    async def _local_inventory(self, local: LocalNode) -> InventoryReply:
        """Raises Unreachable after LOCAL_WAIT_S seconds, other errors at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LOCAL_WAIT_S
        while True:
            try:
                return await self.backend.launcher.inventory(
                    local.node_id, local.incarnation, self.epoch, LOCAL_TRY_S
                )
            except Unreachable:
                if loop.time() + LOCAL_PAUSE_S >= deadline:
                    raise
            await asyncio.sleep(LOCAL_PAUSE_S)

    # --- its tasks ----------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            self._notice_stall()

    async def _take_reports(self) -> None:
        async for report in self.backend.launcher.reports():
            if not isinstance(report, InventoryReply):
                self._put(report)
            elif self.backend.local is not None:
                self._put(InventoryTaken(self.backend.local.node_id, report))

    async def _guard(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Whatever ends one of the engine's tasks ends the leadership, with its cause."""
        try:
            await work()
        except SlotbusError as error:
            log.warning("the lead is over", cause=error.message)
            self._end(error)
        except Exception as error:  # noqa: BLE001  the edge: logged, and the lead ends
            self.stats.loop_errors += 1
            log.exception("loop failed")
            self._end(Internal(f"the engine's loop failed: {error!r}"))

    # --- the end ------------------------------------------------------------------------

    def _end(self, error: SlotbusError | None) -> None:
        """From here on nothing is taken, decided or begun, and everybody is answered."""
        self._leading = False
        self._lost = self._lost or error
        self.tape.ended(error)
        if self._timer is not None:
            self._timer.cancel()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(error)
        self._refuse_all(error)

    async def _take_down(self, error: SlotbusError | None) -> None:
        self._end(error)
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.dispatcher.close()

    async def wait_closed(self) -> SlotbusError | None:
        """Waits for the end of this leadership; its cause, or None after ``close``."""
        if self._ended is None:
            raise NotLeader("this engine was never started")
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Ends this leadership: nothing goes out afterwards, everybody is answered."""
        self._closed = True
        if not self.runs_here():
            self._leading = False
            return  # its tasks ended with their event loop
        if self._starter is not None and not self._starter.done():
            self._starter.cancel()
            await asyncio.gather(self._starter, return_exceptions=True)
        await self._take_down(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
