"""The agent of a node: one program that puts the parts of this package together.

What lives here: who owns which task, and how an agent starts and leaves. What may not: what
any of the parts does.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
from nats.aio.msg import Msg

from events.codec import encode
from events.errors import SlotbusError
from events.subjects import Subjects
from events.traffic import InventoryRow, LogLines
from schedulers.node.config import AgentConfig, check_agent, node_id_of, state_dir_of
from schedulers.node.desk import Desk
from schedulers.node.ends import EndReporter
from schedulers.node.identity import Identity, StateDirLock, make_identity
from schedulers.node.keeper import Ensure, Keeper
from schedulers.node.link import Link
from schedulers.node.orders import Orders
from schedulers.node.presence import Presence
from schedulers.node.roster import LIVE, Roster
from schedulers.node.stats import AgentStats
from schedulers.shipping import LogShipper
from schedulers.supervisor.api import Inventory
from schedulers.supervisor.starter import ensure_supervisor

ANSWER_TIMEOUT_S: Final = 5.0
"""What was taken before the agent leaves gets this long to be answered."""
STOP_MARGIN_S: Final = 5.0
"""With ``stop_workers_on_exit``: for the killed to be seen gone, beyond their grace."""
REPORT_TIMEOUT_S: Final = 5.0
"""With ``stop_workers_on_exit``: for the leader to acknowledge the ends."""

_log = structlog.get_logger("slotbus.agent")


async def run_agent(
    config: AgentConfig,
    *,
    ready: Callable[[], None] | None = None,
    stop: asyncio.Event,
    stats: AgentStats | None = None,
    ensure: Ensure | None = None,
) -> None:
    """Runs an agent until ``stop`` is set. Its workers stay with their supervisor, unless
    ``stop_workers_on_exit`` says otherwise.

    ``ready`` is called once, when a controller has accepted the node. ``stats`` is filled
    for whoever shows it; ``ensure`` finds or starts the supervisor. Neither NATS nor a
    controller is needed to run, nor can they end it.

    Raises Invalid for a configuration that can't be, StateDirUnusable where another agent
    uses the state directory, and what ``ensure`` raises at the start.
    """
    check_agent(config)
    state_dir = state_dir_of(config)
    with StateDirLock(state_dir):
        identity = make_identity(node_id_of(config), state_dir, config.machine_id)
        chosen = ensure or partial(ensure_supervisor, state_dir, identity.node_id)
        await _Agent(config, identity, chosen, stats or AgentStats(), ready).run(stop)


class _Agent:
    """The parts, wired together."""

    def __init__(
        self,
        config: AgentConfig,
        identity: Identity,
        ensure: Ensure,
        stats: AgentStats,
        ready: Callable[[], None] | None,
    ) -> None:
        subjects = Subjects(config.root)
        self._config = config
        self._identity = identity
        self._subjects = subjects
        self._ready = ready
        self._end_news = asyncio.Event()
        roster = Roster()
        self._keeper = Keeper(
            ensure, roster, stats, on_end=self._on_end, on_attached=self._on_attached
        )
        self._shipper = LogShipper(self._keeper, self._publish_lines)
        self._link = Link(
            config.server,
            name=f"slotbus agent {identity.node_id}",
            access=config.access(),
            connect_timeout_s=config.connect_timeout_s,
            subject=subjects.agent(identity.node_id, "*"),
            receive=self._receive,
            on_up=lambda: self._presence.kick(),
            stats=stats,
        )
        self._presence = Presence(
            config, identity, _version(), self._link, self._keeper, stats, self._on_accepted
        )
        orders = Orders(
            identity,
            config.slots,
            config.worker_command,
            self._keeper,
            roster,
            self._shipper,
            stats,
            self._presence.accepted,
        )
        self._desk = Desk(orders, stats)
        self._ends = EndReporter(
            identity,
            subjects,
            self._link,
            self._keeper,
            self._shipper,
            stats,
            self._presence.accepted,
            on_unknown=self._presence.forgotten,
            on_told=self._end_news.set,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Starts every part as a task, and ends them in order."""
        _log.info(
            "agent starts",
            node_id=self._identity.node_id,
            incarnation=self._identity.incarnation,
            slots=self._config.slots,
        )
        try:
            await self._keeper.open()
            async with asyncio.TaskGroup() as group:
                parts = {
                    "supervisor": self._keeper.run(),
                    "orders": self._desk.run(),
                    "ends": self._ends.run(),
                    "output": self._shipper.run(),
                    "presence": self._presence.run(),
                    "link": self._link.run(),
                }
                tasks = [group.create_task(part, name=name) for name, part in parts.items()]
                await stop.wait()
                await self._leave()
                for task in tasks:
                    task.cancel()
            if self._config.stop_workers_on_exit:
                await self._keeper.shutdown()
        finally:
            await self._keeper.close()
        _log.info("agent has left", node_id=self._identity.node_id)

    async def _leave(self) -> None:
        """Takes nothing more, finishes what was begun."""
        await self._link.deafen()
        await self._desk.finish(ANSWER_TIMEOUT_S)
        if self._config.stop_workers_on_exit:
            with contextlib.suppress(SlotbusError, TimeoutError):
                await self._stop_workers()

    async def _stop_workers(self) -> None:
        """Stops all workers and has their ends acknowledged, within bounds.

        Raises SlotbusError, TimeoutError.
        """
        grace_s = self._config.exit_grace_s
        async with asyncio.timeout(grace_s + STOP_MARGIN_S):
            for row in (await self._keeper.inventory()).workers:
                if row.state in LIVE:
                    await self._keeper.stop(
                        row.worker_id, force=False, grace_s=grace_s, epoch=self._keeper.epoch
                    )
            await self._until_none(lambda row: row.state in LIVE)
        async with asyncio.timeout(REPORT_TIMEOUT_S):
            await self._until_none(lambda row: True)

    async def _until_none(self, which: Callable[[InventoryRow], bool]) -> None:
        """Returns when the inventory lists no such worker (acknowledged ends leave it)."""
        while True:
            self._end_news.clear()
            if not any(which(row) for row in (await self._keeper.inventory()).workers):
                return
            await self._end_news.wait()

    async def _receive(self, message: Msg) -> None:
        await self._desk.receive(message)

    def _on_end(self, row: InventoryRow) -> None:
        self._ends.add(row)
        self._end_news.set()

    def _on_attached(self, inventory: Inventory) -> None:
        for row in inventory.workers:
            if row.state in LIVE:  # what it printed before is in its files
                self._shipper.follow(row.worker_id, row.job_id, row.run_id, since=None)
        self._presence.kick()

    def _on_accepted(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready()

    async def _publish_lines(self, lines: LogLines) -> None:
        await self._link.publish(self._subjects.log(lines.job_id, lines.worker_id), encode(lines))


def _version() -> str:
    try:
        return importlib.metadata.version("slotbus")
    except importlib.metadata.PackageNotFoundError:
        return ""
