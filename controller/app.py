"""The controller: one program that connects, waits for its turn, leads, and waits again.

What lives here: the life of a controller, from its first connection to its orderly end.
What may not: what a leadership is made of (``controller.leadership``).

    connect -> standby -> (lease) -> read the log -> lead -> ... -> standby, connected anew

Every leadership has a connection of its own. Whatever ends it, all that belonged to it is
closed, its ledger is thrown away, and the next one reads the log again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import re
import time
from collections.abc import Callable
from typing import Final

import nats.errors
import structlog
from msgspec import Struct
from nats.aio.client import Client

from controller.backends import obstacle_of
from controller.config import Address, ControllerConfig, check_controller
from controller.http import Health, Pages, Phase
from controller.identity import new_holder_name
from controller.leader import Lease, LeaseLost, LeaseUnusable
from controller.leadership import Leadership
from controller.metrics import Metrics
from controller.outbox import InboxStats
from controller.racing import first_of
from controller.standby import Standby
from events.connection import ConnectionFailed, Hooks, connect
from events.errors import Invalid, SlotbusError
from events.jetstream import JetStreamLog
from events.jetstream_snapshots import JetStreamSnapshots
from events.log import LogUnreadable
from events.recall import LogBeheaded
from events.subjects import Subjects
from schedulers.backoff import Backoff

PAUSE_FIRST_S, PAUSE_MOST_S = 0.1, 3.0
"""Between two attempts to connect or to lead."""

SERVED_WELL_S: Final = 10.0
"""A leadership that lasted so long was none that failed at once."""

LOOK_AHEAD_S: Final = 30.0
"""How often a standby looks whether it could lead."""

CLOSE_TIMEOUT_S: Final = 3.0

_HOPELESS: Final = (Invalid, LeaseUnusable, LogBeheaded, LogUnreadable)
"""Trying again would not help: somebody has to do something, so say it and end."""

_log = structlog.get_logger("slotbus.controller")


class ControllerInfo(Struct, frozen=True, kw_only=True):
    """A controller that leads and serves. ``http``: where its pages are, if anywhere."""

    holder: str
    epoch: int
    scheduler: str
    http: Address | None


async def run_controller(
    config: ControllerConfig,
    *,
    ready: Callable[[ControllerInfo], None] | None = None,
    stop: asyncio.Event,
) -> None:
    """Runs a controller until ``stop`` is set: then takes nothing more, lets what is under
    way end, lets go of the lease, and returns. Its workers run on.

    ``ready`` is called once, in the loop, when it leads and serves for the first time.
    Raises Invalid, ConnectionFailed for the first connection, HttpFailed, LeaseUnusable,
    LogBeheaded, LogUnreadable.
    """
    check_controller(config)
    controller = _Controller(config, ready)
    await controller.pages.start(config.http)
    try:
        await controller.run(stop)
    finally:
        await controller.pages.close()


class _Controller:
    def __init__(
        self, config: ControllerConfig, ready: Callable[[ControllerInfo], None] | None
    ) -> None:
        self._config = config
        self._subjects = Subjects(config.root)
        self._ready = ready
        self._version = version()
        self._holder = new_holder_name()
        """One name over all connections: a lease left behind by the last one is ours."""
        self._health = Health()
        self._metrics = Metrics(
            InboxStats(), version=self._version, node_series=config.metrics_nodes
        )
        self._backoff = Backoff(PAUSE_FIRST_S, PAUSE_MOST_S)
        self._leadership: Leadership | None = None
        self._above_epoch = 0
        """The highest epoch that ended a leadership of ours: nodes obey none below it."""
        self._said = ""
        self.pages = Pages(self._health, self._metrics.render)

    async def run(self, stop: asyncio.Event) -> None:
        """One connection after the other. Raises as ``run_controller``."""
        _log.info(
            "controller starts",
            holder=self._holder,
            scheduler=self._config.scheduler,
            version=self._version,
        )
        first = True
        while not stop.is_set():
            closed = asyncio.Event()
            self._health.phase = Phase.CONNECTING
            try:
                nc = await self._connect(closed)
            except ConnectionFailed as error:
                if first:
                    raise
                self._say("no connection to NATS, trying again", error)
            else:
                first = False
                await self._use(nc, stop, closed)
            await self._pause(stop)
        _log.info("controller has stopped")

    async def _connect(self, closed: asyncio.Event) -> Client:
        return await connect(
            self._config.server,
            name="slotbus controller",
            access=self._config.access(),
            hooks=Hooks(reconnected=self._reconnected, closed=closed.set),
            connect_timeout_s=self._config.connect_timeout_s,
        )

    def _reconnected(self) -> None:
        if self._leadership is not None:
            self._leadership.reconnected()

    async def _pause(self, stop: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.next()):
                await stop.wait()

    def _say(self, what: str, error: Exception) -> None:
        """One line for each new cause, not one for each attempt."""
        cause = str(error) or repr(error)
        if cause != self._said:
            self._said = cause
            _log.error(what, cause=cause)

    async def _use(self, nc: Client, stop: asyncio.Event, closed: asyncio.Event) -> None:
        """Waits for the lease and leads, over one connection."""
        try:
            await self._stand_by(nc, stop, closed)
        except LeaseLost as error:
            _log.warning("no longer the leader", cause=error.message)
        except _HOPELESS:
            raise
        except (SlotbusError, nats.errors.Error, OSError) as error:
            seen = error.facts.get("epoch_seen") if isinstance(error, SlotbusError) else None
            if isinstance(seen, int):
                self._above_epoch = max(self._above_epoch, seen)
            self._say("leadership ended", error)
        finally:
            await _close(nc)

    async def _stand_by(self, nc: Client, stop: asyncio.Event, closed: asyncio.Event) -> None:
        lease = Lease(
            nc,
            self._subjects,
            holder=self._holder,
            ttl_s=self._config.lease_ttl_s,
            replicas=self._config.replicas,
        )
        standby = Standby(
            lambda: JetStreamLog(nc, self._subjects, create=False),
            JetStreamSnapshots(nc, self._subjects),
        )
        self._health.phase = Phase.STANDBY
        self._metrics.following = lambda: standby.position
        try:
            await first_of(
                stop.wait(), closed.wait(), lease.acquire(), standby.run(), self._look_ahead()
            )
            if lease.valid_for() and not stop.is_set() and not closed.is_set():
                await self._lead(nc, lease, standby, stop, closed)
        finally:
            if not closed.is_set():
                await lease.release()

    async def _look_ahead(self) -> None:
        """Says of a standby what would be in its way if it had to lead, and when it is gone."""
        said = ""
        while True:
            wrong = await obstacle_of(self._config)
            if wrong != said:
                if wrong:
                    _log.warning("this standby could not lead", cause=wrong)
                else:
                    _log.info("this standby could lead again")
                said = wrong
            self._health.unready = f"standby, and could not lead: {wrong}" if wrong else ""
            await asyncio.sleep(LOOK_AHEAD_S)

    async def _lead(
        self,
        nc: Client,
        lease: Lease,
        standby: Standby,
        stop: asyncio.Event,
        closed: asyncio.Event,
    ) -> None:
        self._health.phase = Phase.STARTING
        self._health.unready = f"starting again: {self._said}" if self._said else ""
        leadership = Leadership(
            self._config,
            nc,
            self._subjects,
            lease,
            metrics=self._metrics,
            health=self._health,
            version=self._version,
            above_epoch=self._above_epoch,
            standby=standby,
        )
        self._leadership = leadership
        try:
            await first_of(lease.keep(), closed.wait(), self._reign(leadership, lease, stop))
        finally:
            self._leadership = None
            self._health.phase = Phase.STOPPING
            await leadership.cut()

    async def _reign(self, leadership: Leadership, lease: Lease, stop: asyncio.Event) -> None:
        """From reading the log to the end that was asked for. Raises what else ends it."""
        await first_of(leadership.start(), stop.wait())
        if stop.is_set():
            return
        self._serve(leadership, lease)
        began = time.monotonic()
        try:
            await first_of(leadership.ended(), stop.wait())
        finally:
            if time.monotonic() - began > SERVED_WELL_S:
                self._backoff.reset()
        self._health.phase = Phase.STOPPING
        await leadership.close(self._config.shutdown_timeout_s)

    def _serve(self, leadership: Leadership, lease: Lease) -> None:
        self._health.phase = Phase.LEADING
        self._said = self._health.unready = ""
        epoch = leadership.engine.epoch
        _log.info("leading", epoch=epoch, position=leadership.engine.ledger.position)
        ready, self._ready = self._ready, None
        if ready is not None:
            ready(
                ControllerInfo(
                    holder=lease.holder,
                    epoch=epoch,
                    scheduler=self._config.scheduler,
                    http=self.pages.address,
                )
            )


async def _close(nc: Client) -> None:
    """Closes a connection, which may be lost already."""
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await nc.close()


def version() -> str:
    """Our version as the services framework wants it: three numbers."""
    try:
        found = importlib.metadata.version("slotbus")
    except importlib.metadata.PackageNotFoundError:
        found = ""
    numbers = re.match(r"\d+\.\d+\.\d+", found)
    return numbers.group() if numbers else "0.0.0"
