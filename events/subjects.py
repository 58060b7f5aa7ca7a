"""Every NATS subject of slotbus, built and parsed in one place.

What lives here: the shape of the subject tree under a configurable root. What may not:
subscriptions, and knowledge of what a message says.
"""

from __future__ import annotations

import re

from msgspec import Struct

from events.errors import Invalid
from events.ids import ID_RE, JobId, NodeId, WorkerId

ROOT_RE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,7}\Z")


class NodeSubject(Struct, frozen=True):
    """A parsed ``<root>.node.<node_id>.<verb>``."""

    node_id: NodeId
    verb: str


class Subjects(Struct, frozen=True):
    """The subject tree of one cluster. ``root``: tokens joined by dots, no wildcards."""

    root: str = "slotbus"

    def __post_init__(self) -> None:
        if not ROOT_RE.match(self.root):
            raise Invalid(f"subject root {self.root!r} is not plain tokens joined by dots")

    @property
    def token(self) -> str:
        """The root as one token, for stream, bucket and queue names."""
        return self.root.replace(".", "_")

    @property
    def log_stream(self) -> str:
        return f"{self.token.upper()}_LOG"

    @property
    def event_stream(self) -> str:
        return f"{self.token.upper()}_EVENT"

    @property
    def snapshot_stream(self) -> str:
        return f"{self.token.upper()}_SNAPSHOT"

    @property
    def lease_bucket(self) -> str:
        return f"{self.token}_lease"

    @property
    def eventlog(self) -> str:
        return f"{self.root}.eventlog"

    def snapshot(self, position: int | str) -> str:
        """All that is stored of the ledger's snapshot at a position; ``*`` is any."""
        return f"{self.root}.snapshot.{position}"

    @property
    def events(self) -> str:
        return f"{self.root}.event.>"

    @property
    def event_leader(self) -> str:
        return f"{self.root}.event.leader"

    @property
    def queue_stream(self) -> str:
        return f"{self.token.upper()}_QUEUE"

    @property
    def queues(self) -> str:
        return f"{self.root}.queue.>"

    def queue(self, verb: str) -> str:
        """Where a command is left to be done once, when a controller leads."""
        return f"{self.root}.queue.{verb}"

    @property
    def aside_stream(self) -> str:
        return f"{self.token.upper()}_ASIDE"

    def aside(self, verb: str) -> str:
        """Where a message of the queue goes that is no command; ``>`` is all of them."""
        return f"{self.root}.aside.{verb}"

    def cmd(self, verb: str) -> str:
        return f"{self.root}.cmd.{verb}"

    def query(self, what: str) -> str:
        return f"{self.root}.query.{what}"

    @property
    def tap(self) -> str:
        """Where the leader is asked to publish what enters its inbox."""
        return f"{self.root}.tap"

    @property
    def inbox(self) -> str:
        """Where it does, while it is asked to."""
        return f"{self.root}.inbox"

    def event_job(self, job_id: JobId | str) -> str:
        return f"{self.root}.event.job.{job_id}"

    def event_node(self, node_id: NodeId | str) -> str:
        return f"{self.root}.event.node.{node_id}"

    def node(self, node_id: NodeId | str, verb: str) -> str:
        """What an agent says: ``verb`` is register, heartbeat or finished; ``*`` listens."""
        return f"{self.root}.node.{node_id}.{verb}"

    def agent(self, node_id: NodeId | str, verb: str) -> str:
        """What the leader asks an agent: ``verb`` is start, stop, inventory or logs."""
        return f"{self.root}.agent.{node_id}.{verb}"

    def log(self, job_id: JobId | str, worker_id: WorkerId | str) -> str:
        return f"{self.root}.log.{job_id}.{worker_id}"

    def parse_node(self, subject: str) -> NodeSubject:
        """Reads ``<root>.node.<node_id>.<verb>``. Raises Invalid."""
        prefix = f"{self.root}.node."
        tokens = subject.removeprefix(prefix).split(".") if subject.startswith(prefix) else []
        if len(tokens) != 2 or not ID_RE.match(tokens[0]):
            raise Invalid(f"subject {subject!r} is not {prefix}<node_id>.<verb>", path="subject")
        return NodeSubject(NodeId(tokens[0]), tokens[1])
