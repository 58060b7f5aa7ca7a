"""An agent with its operators' pages: what ``slotbus agent`` runs.

What lives here: the agent and the HTTP server side by side, and what the pages say of an
agent. What may not: what an agent does (``schedulers.node``).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.http import Pages, Phase
from schedulers.node.agent import run_agent
from schedulers.node.config import AgentConfig
from schedulers.node.stats import AgentStats

DEFAULT_HTTP: Final = "127.0.0.1:9623"
"""Beside the controller's; where it is taken, a free port."""

_ACCEPTED: Final = "accepted"
_GAUGES: Final = {
    "epoch": "Highest epoch of a leader heard.",
    "ends_waiting": "Ends of workers that no leader has acknowledged yet.",
}
_COUNTERS: Final = {
    "starts": "Orders to start a worker, carried out.",
    "stops": "Orders to stop a worker, carried out.",
    "inventories": "Inventories given.",
    "invalid": "Messages that could not be read.",
    "refused": "Orders answered with an error.",
    "ignored": "Orders meant for another agent.",
    "faults": "Errors of the agent itself.",
    "registrations": "Registrations sent.",
    "heartbeats": "Heartbeats sent.",
    "unanswered": "Messages to the leader without an answer in time.",
    "ends_reported": "Ends of workers reported and acknowledged.",
    "supervisors": "Supervisors found or started.",
}

_log = structlog.get_logger("slotbus.agent")


class AgentHealth:
    """The agent's life as the pages show it: ready is who a controller has accepted."""

    def __init__(self, stats: AgentStats) -> None:
        self._stats = stats

    @property
    def phase(self) -> Phase:
        if not self._stats.connected:
            return Phase.CONNECTING
        return Phase.LEADING if self._stats.standing == _ACCEPTED else Phase.STARTING

    @property
    def failure(self) -> str:
        return ""

    @property
    def unready(self) -> str:
        return ""


class AgentMetrics(Collector):
    """The agent's counts as series named ``slotbus_agent_...``."""

    def __init__(self, stats: AgentStats) -> None:
        self._stats = stats
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def render(self) -> bytes:
        """The body of ``/metrics``."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        values = dataclasses.asdict(self._stats)
        accepted = GaugeMetricFamily("slotbus_agent_accepted", "Whether a controller has taken us.")
        accepted.add_metric([], float(self._stats.standing == _ACCEPTED))
        connected = GaugeMetricFamily("slotbus_agent_connected", "Whether NATS is connected.")
        connected.add_metric([], float(self._stats.connected))
        yield from (accepted, connected)
        for name, text in _GAUGES.items():
            gauge = GaugeMetricFamily(f"slotbus_agent_{name}", text)
            gauge.add_metric([], values[name])
            yield gauge
        for name, text in _COUNTERS.items():
            counter = CounterMetricFamily(f"slotbus_agent_{name}", text)
            counter.add_metric([], values[name])
            yield counter


async def run_agent_program(config: AgentConfig, *, stop: asyncio.Event) -> None:
    """Runs an agent and its pages until ``stop`` is set. Raises what ``run_agent`` and
    ``Pages.start`` raise."""
    stats = AgentStats()
    pages = Pages(AgentHealth(stats), AgentMetrics(stats).render)
    await pages.start(config.http, default=DEFAULT_HTTP)
    if pages.address is not None:
        _log.info("pages", address=f"{pages.address.host}:{pages.address.port}")
    try:
        await run_agent(config, stop=stop, stats=stats)
    finally:
        await pages.close()
