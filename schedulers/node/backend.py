"""The node backend: workers on machines with agents.

What lives here: the backend over the NATS launcher, and ``NodeScheduler`` for use as a
library. What may not: the agent's side, and the subscriptions that bring node traffic in
(the controller's inbox).
"""

from __future__ import annotations

from nats.aio.client import Client

from events.log import EventLog, MemoryLog
from events.subjects import Subjects
from schedulers.decide import Rules
from schedulers.engine import Backend, Engine, EngineSettings
from schedulers.launcher import Launcher
from schedulers.node.launcher import NatsLauncher


def node_backend(nc: Client, subjects: Subjects) -> Backend:
    """The node backend over a connection made with ``pending_size=0``."""
    return Backend(name="node", launcher=NatsLauncher(nc, subjects))


class NodeScheduler(Engine):
    """Runs pipelines on nodes; whoever uses it hands node traffic to ``register_node``,
    ``heartbeat_node`` and ``worker_finished``. On a log in memory unless one is given."""

    def __init__(
        self, launcher: Launcher, log: EventLog | None = None, rules: Rules | None = None
    ) -> None:
        super().__init__(
            Backend(name="node", launcher=launcher),
            log or MemoryLog(),
            EngineSettings(rules=rules or Rules()),
        )
