"""A fleet of real agents under one root, whose supervisors end with the test.

What lives here: their configuration and their lives. What may not: the controller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from events.subjects import Subjects
from schedulers.node.config import AgentConfig
from tests.support.agents import RunningAgent, end_supervisor, running


class NodeFleet:
    """Agents of one test, each with a state directory of its own, which it finds again."""

    def __init__(self, server: str, subjects: Subjects, folder: Path) -> None:
        self._server = server
        self._subjects = subjects
        self._folder = folder
        self.state_dirs: dict[str, Path] = {}

    def config(self, node_id: str, slots: int = 4) -> AgentConfig:
        state_dir = self.state_dirs.setdefault(node_id, self._folder / node_id)
        return AgentConfig(
            server=self._server,
            root=self._subjects.root,
            node_id=node_id,
            slots=slots,
            state_dir=str(state_dir),
            worker_command=["sleep", "600"],
            request_timeout_s=1.0,
        )

    @asynccontextmanager
    async def node(self, node_id: str, slots: int = 4) -> AsyncIterator[RunningAgent]:
        async with running(self.config(node_id, slots)) as agent:
            yield agent

    async def end(self) -> None:
        for state_dir in self.state_dirs.values():
            await end_supervisor(state_dir)
