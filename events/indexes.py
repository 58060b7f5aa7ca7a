"""What is kept beside the ledger's state, so that nothing has to be searched.

What lives here: live workers and held slots of each node, free slots in order, commands
without an outcome. What may not: what a fact changes (``events.folding``).
"""

from __future__ import annotations

from events.capacity import Capacity
from events.entities import CommandEntry, Job, LedgerState, Node, Run, Worker


class Indexes:
    """The state, and what follows from it: live workers and held slots of each node,
    commands without an outcome."""

    def __init__(self, state: LedgerState | None = None) -> None:
        self.state = state or LedgerState()
        self.nodes: dict[str, Node] = self.state.nodes
        self.workers: dict[str, Worker] = self.state.workers
        self.jobs: dict[str, Job] = self.state.jobs
        self.commands: dict[str, CommandEntry] = self.state.commands
        self.live_by_node: dict[str, dict[str, Worker]] = {}
        self.pending: dict[str, CommandEntry] = {}
        """Commands taken and without an outcome yet."""
        self.pending_of: dict[str, dict[str, CommandEntry]] = {}
        """The same, by job; "" for those that concern none."""
        self._following = self.state.position + 1
        """Where the record that is being folded will stand."""
        self._held: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._defined = sum(self.state.definitions.values())
        """Bytes of the definitions that are kept."""
        self.capacity = Capacity(self.state.nodes, self.free_slots)
        """The nodes in the order in which they are filled."""
        for worker in self.state.workers.values():
            if not worker.gone:
                self._hold(worker)
        for command in self.state.commands.values():
            if not command.done:
                self._await(command)

    @property
    def position(self) -> int:
        return self.state.position

    def held_slots(self, node_id: str) -> int:
        """Slots of the live workers on a node."""
        return self._held.get(node_id, 0)

    def free_slots(self, node_id: str) -> int:
        """Law 1: registered minus held, never below 0; an unknown node has none."""
        node = self.nodes.get(node_id)
        return max(0, node.task_slots - self.held_slots(node_id)) if node else 0

    def run_of(self, worker: Worker) -> Run:
        return self.jobs[worker.job_id].run(worker.run_id)

    def _await(self, entry: CommandEntry) -> None:
        self.pending[entry.command_id] = entry
        self.pending_of.setdefault(entry.job_id, {})[entry.command_id] = entry

    def _hold(self, worker: Worker) -> None:
        self._held[worker.node_id] = self._held.get(worker.node_id, 0) + worker.slots
        self.live_by_node.setdefault(worker.node_id, {})[worker.worker_id] = worker
        self.capacity.changed(worker.node_id)
        self._digests.pop(worker.node_id, None)
