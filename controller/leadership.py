"""One leadership: everything that is made when the lease is won, and thrown away after.

What lives here: the order in which log, engine, event subjects and inbox come and go. What
may not: the lease, and what comes before and after a leadership (``controller.app``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Final

import nats.errors
import structlog
from nats.aio.client import Client

from controller.archive import Archive
from controller.auditing import LiveAudit
from controller.backends import make_backend, rules_of
from controller.config import ControllerConfig
from controller.ears import Ears
from controller.http import Health
from controller.inbox import NatsInbox
from controller.leader import Lease
from controller.localoutput import LocalOutput
from controller.metrics import Metrics, TimedLog
from controller.queue import QueueReader
from controller.racing import end_all, first_of
from controller.recorder import FileRecorder
from controller.retention import Keeping, Retention
from controller.snapshotting import Snapshotter
from controller.standby import Standby, Twins
from controller.tap import InboxTap
from events.concerns import Directory
from events.errors import NotLeader, SlotbusError
from events.facts import Record, WorkerOrphaned
from events.ids import Position
from events.jetstream import JetStreamLog
from events.jetstream_snapshots import JetStreamSnapshots
from events.ledger import Ledger
from events.log import LogError, LogLost
from events.projection import EventProjection
from events.queries import QueryNodes
from events.recall import recall
from events.subjects import Subjects
from schedulers.backoff import Backoff
from schedulers.engine import Engine, EngineSettings
from schedulers.process import ProcessLauncher
from schedulers.recorders import Recorders

PROJECTION_GRACE_S: Final = 2.0
"""How long an orderly end waits for the event subjects; the next leader goes on anyway."""

SNAPSHOT_GRACE_S: Final = 2.0
"""How long an orderly end may take for a last snapshot; commands are served meanwhile."""

LAST_ANSWERS_S: Final = 0.02
"""For what came in last; who then still waits asks the next leader."""

PROBE_EVERY_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 20.0
"""Longer than the longest append: an engine that is silent for so long is stuck."""

LOG_LOOK_S: Final = 5.0
"""How often it is looked whether the log is still the one that was written: where nothing is to
be written, nobody else would notice."""

LINK_LOOK_S: Final = 1.0
RESTART_FIRST_S, RESTART_MOST_S = 0.2, 10.0

_log = structlog.get_logger("slotbus.controller")


class Leadership:
    """Made anew each time. ``start``, then ``ended``, then ``close`` or ``cut``; ``cut`` is
    safe at any time, and after all the others."""

    def __init__(
        self,
        config: ControllerConfig,
        nc: Client,
        subjects: Subjects,
        lease: Lease,
        *,
        metrics: Metrics,
        health: Health,
        version: str,
        above_epoch: int = 0,
        standby: Standby | None = None,
    ) -> None:
        self._config = config
        self._nc = nc
        self._subjects = subjects
        self._lease = lease
        self._metrics = metrics
        self._health = health
        self._version = version
        self._log = JetStreamLog(
            nc, subjects, max_bytes=config.log_max_bytes, replicas=config.replicas
        )
        self.engine = Engine(
            make_backend(config, nc, subjects),
            TimedLog(self._log, metrics.append_took),
            EngineSettings(
                cluster=config.cluster,
                version=version,
                rules=rules_of(config),
                above_epoch=above_epoch,
            ),
            may_act=lease.valid_for,
        )
        self._standby = standby
        self._store = JetStreamSnapshots(nc, subjects, replicas=config.replicas)
        self._snapshots: Snapshotter | None = None
        self.engine.fold_by(self._fold)
        self.engine.observe(self._offer)
        self._tap = InboxTap(
            nc,
            subjects,
            mask=config.record_mask,
            version=version,
            may_answer=lambda: lease.valid_for() > 0,
            poke=self.engine.offer,
            stats=metrics.recording,
        )
        self._recorder: FileRecorder | None = None
        settings = config.recording()
        if settings is None:
            self.engine.record(self._tap)
        else:
            self._recorder = FileRecorder(settings, version=version, stats=metrics.recording)
            self.engine.record(Recorders(self._recorder, self._tap))
        self._projection: EventProjection | None = None
        self._inbox: NatsInbox | None = None
        self._ears: Ears | None = None
        self._look_s = min(LINK_LOOK_S, config.node_expiry_s / 4)
        self._tasks: list[asyncio.Task[None]] = []
        self._cut = False
        self._over = False

    async def start(self) -> None:
        """Reads the log, leads, and listens. Raises SlotbusError, nats.errors.Error."""
        if self._recorder is not None:
            self._aside("recording", self._recorder.run)
        await self.engine.start()
        self._lease.set_epoch(self.engine.epoch)
        self._aside("tap", self._tap.run)
        self._metrics.lead(self.engine)
        # No await from the ledger to the observers: no record falls in between. What they do
        # with it can wait until commands are served.
        beside = self._observers()
        agents = self._config.scheduler == "node"
        self._inbox = NatsInbox(
            self._nc,
            self._subjects,
            self.engine,
            epoch=self.engine.epoch,
            may_answer=lambda: self._lease.valid_for() > 0,
            stats=self._metrics.inbox,
            latency=self._metrics.command_took,
            version=self._version,
            with_nodes=not agents,
        )
        await self._tap.open(self.engine.epoch)
        await self._inbox.open()
        if agents:
            await self._open_ears(self._inbox)
        for name, run in beside.items():
            self._aside(name, run)
        self._task("probe", self._probe())
        self._task("link", self._watch_link())
        queue = QueueReader(
            self._nc,
            self._subjects,
            self.engine,
            self._metrics.queue,
            replicas=self._config.replicas,
        )
        self._aside("queue", queue.run)

    async def _open_ears(self, inbox: NatsInbox) -> None:
        """Raises ConnectionFailed."""
        self._ears = Ears(
            self._config.server,
            self._config.access(),
            self._config.connect_timeout_s,
            late_s=self._look_s,
            hear=inbox.hear_nodes,
            missed=self.engine.grace,
        )
        self._aside("ears", self._ears.run)
        await self._ears.until_open()

    def _observers(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What hears of each acknowledged record from now on, and what it does by name."""
        self._projection = EventProjection(
            self._nc,
            self._subjects,
            self._log,
            directory=Directory.of(self.engine.ledger.state),
            replicas=self._config.replicas,
        )
        self.engine.observe(self._projection.offer)
        self.engine.observe(_alarm)
        beside: dict[str, Callable[[], Awaitable[None]]] = {"event subjects": self._projection.run}
        if self._snapshots is not None:
            beside["snapshots"] = self._snapshots.run
        if self._config.audit:
            audit = LiveAudit(self._log, self._metrics.violations, self._store)
            self.engine.observe(audit.grown)
            beside["audit"] = audit.run
        launcher = self.engine.backend.launcher
        if isinstance(launcher, ProcessLauncher):
            output = LocalOutput(self._nc, self._subjects, launcher, self.engine.ledger)
            self.engine.observe(output.observe)
            beside["output"] = output.run
        return beside

    async def ended(self) -> None:
        """Waits for the engine's end. Raises the error that ended it, and LogLost where the log
        is not what was written any more."""
        await first_of(self._engine_ended(), self._watch_log())

    async def _watch_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_LOOK_S)
            try:
                await self._log.check()
            except LogLost:
                raise
            except (SlotbusError, nats.errors.Error):
                continue  # the server is away, which others tell of

    async def _engine_ended(self) -> None:
        error = await self.engine.wait_closed()
        if error is not None:
            raise error

    def reconnected(self) -> None:
        """The connection is back: no node could be heard in between."""
        if self._inbox is not None:
            self.engine.grace("the connection to NATS was lost")

    async def close(self, grace_s: float) -> None:
        """Serves until what is under way has ended, for ``grace_s`` seconds, and a snapshot for
        the next leader is kept; lets go of the lease, and then cleans up."""
        if self._snapshots is not None:
            await self._snapshots.hand_over(SNAPSHOT_GRACE_S)
        if self._inbox is not None:
            await self._inbox.settle(grace_s)
            await self._inbox.finish(LAST_ANSWERS_S)
        await self._end_engine()  # nothing is written from here on
        await self._lease.release()
        if self._projection is not None:
            await self._projection.until_settled(PROJECTION_GRACE_S)
        await self.cut()

    async def cut(self) -> None:
        """Ends all of it, the inbox first: nothing goes out from here on. Safe to repeat."""
        if self._cut:
            return
        self._cut = True
        if self._inbox is not None:
            await self._inbox.cut()
        self._metrics.unlead()
        self._health.failure = self._health.unready = ""
        await end_all(self._tasks)
        await self._end_engine()
        if self._recorder is not None:
            await self._recorder.close()
        await self._tap.close()
        await self._log.close()

    async def _end_engine(self) -> None:
        """Once: its tasks, and embedded workers, end with the lead."""
        if not self._over:
            self._over = True
            await self.engine.close()
            await self.engine.backend.launcher.close()

    # --- the ledger ---------------------------------------------------------------------

    async def _fold(self) -> Ledger:
        """The engine's ledger: the standby's, if it has one, else from a snapshot and what
        follows it. At first its twin, too. Raises LogError."""
        standby, self._standby = self._standby, None
        twins = None
        if standby is not None:
            try:
                twins = await standby.take_over()
            except LogError as error:
                _log.warning("not from the standby's ledger", cause=error.message)
        if twins is None:
            ledger = (await recall(self._log, self._store)).ledger
            if self._snapshots is not None:
                return ledger
            twins = Twins.of(ledger)
        self._snapshots = self._snapshotter(twins.shadow)
        return twins.ledger

    def _offer(self, position: Position, record: Record) -> None:
        if self._snapshots is not None:
            self._snapshots.offer(position, record)

    def _snapshotter(self, shadow: Ledger) -> Snapshotter:
        config, stats = self._config, self._metrics.snapshots
        retention = Retention(
            self._log,
            self._store,
            Keeping(kept=config.snapshots_kept, log_bytes=config.keeps_log_bytes),
            archive=Archive(Path(config.archive).expanduser()) if config.archive else None,
            may_act=self._lease.valid_for,
            stats=stats,
        )
        return Snapshotter(
            self._log,
            self._store,
            shadow,
            every=config.snapshot_every,
            tidy=retention.tidy,
            may_act=self._lease.valid_for,
            stats=stats,
            version=self._version,
        )

    # --- beside the engine --------------------------------------------------------------

    def _task(self, name: str, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def _aside(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Something that may fail without ending the leadership: it is begun again."""
        self._task(name, _again_and_again(name, run))

    async def _probe(self) -> None:
        """Asks the engine now and then, as a client would: is it stuck?"""
        while True:
            await asyncio.sleep(PROBE_EVERY_S)
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    await self.engine.submit(QueryNodes(limit=1))
            except TimeoutError:
                self._health.failure = f"the engine has not answered for {PROBE_TIMEOUT_S:g} s"
                _log.error("engine does not answer", for_s=PROBE_TIMEOUT_S)
            except SlotbusError as error:
                if isinstance(error, NotLeader):
                    return
                _log.warning("engine refused a probe", cause=error.message)
            else:
                self._health.failure = ""

    async def _watch_link(self) -> None:
        """While the connection is lost no node can be heard, and so none be silent."""
        while True:
            await asyncio.sleep(self._look_s)
            failing = self.engine.backend.failing
            self._health.unready = failing() if failing is not None else ""
            deaf = self._ears is not None and not self._ears.connected
            if deaf or not self._nc.is_connected:
                self.engine.grace("no connection to NATS")


async def _again_and_again(name: str, run: Callable[[], Awaitable[None]]) -> None:
    backoff = Backoff(RESTART_FIRST_S, RESTART_MOST_S)
    while True:
        try:
            await run()
        except (SlotbusError, nats.errors.Error, OSError) as error:
            _log.warning("failed, begun again", part=name, cause=str(error) or repr(error))
        except Exception as error:  # noqa: BLE001  the edge: what is beside the engine may fail
            _log.error("fault, begun again", part=name, exc_info=error)
        await asyncio.sleep(backoff.next())


def _alarm(position: Position, record: Record) -> None:
    """What a person has to look at."""
    for fact in record.events:
        if isinstance(fact, WorkerOrphaned) and not fact.stopped:
            _log.error(
                "a worker lives that the log can't confirm: see `slotbus rebuild`",
                worker_id=fact.worker_id,
                node_id=fact.node_id,
                job_id=fact.job_id,
                position=position,
            )
