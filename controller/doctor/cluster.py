"""Who leads, the nodes, and everybody's clock.

What lives here: examinations that ask controllers and agents. What may not: what the server
keeps.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from controller.app import version as our_version
from controller.doctor.finding import ASK_S, Finding, Level, read
from controller.doctor.jetstream import server_time
from events.client import SlotbusClient
from events.codec import decode
from events.errors import SlotbusError
from events.queries import NodeRow
from events.states import NodeState
from events.traffic import AgentAboutReply

CLOCKS_APART_S: Final = 2.0
"""Nothing is decided by other clocks than the leader's; logs are hard to read, though."""
LISTEN_S: Final = 0.5
MAX_AGENTS: Final = 50
"""So many agents are asked for their clocks; with more, the first."""


class _Service(Struct, frozen=True):
    name: str = ""
    id: str = ""
    version: str = ""
    metadata: dict[str, str] | None = None


async def controllers(bus: SlotbusClient) -> list[Finding]:
    """Who answers for this cluster: one controller, the leader."""
    what = "controller"
    inbox = bus.nc.new_inbox()
    listening = await bus.nc.subscribe(inbox)
    try:
        await bus.nc.publish("$SRV.INFO.slotbus", b"", reply=inbox)
        found: dict[str, _Service] = {}
        until = time.monotonic() + LISTEN_S
        while (left := until - time.monotonic()) > 0:
            try:
                message = await listening.next_msg(timeout=left)
            except TimeoutError:
                break
            service = read(message.data, _Service)
            if (service.metadata or {}).get("root") == bus.subjects.root:
                found[service.id] = service
    finally:
        await listening.unsubscribe()
    if not found:
        return []
    epochs = sorted((s.metadata or {}).get("epoch", "?") for s in found.values())
    if len(found) > 1:
        text = f"{len(found)} answer, of the epochs {', '.join(epochs)}"
        advice = "one of them was frozen and will notice; look again in some seconds"
        return [Finding(what=what, level="warning", text=text, advice=advice)]
    (only,) = found.values()
    if only.version != our_version():
        text = f"it is of version {only.version}, this command of {our_version()}"
        return [Finding(what=what, level="note", text=text)]
    return [Finding(what=what, level="ok", text=f"version {only.version}, epoch {epochs[0]}")]


async def leader(bus: SlotbusClient) -> list[Finding]:
    began = time.monotonic()
    reply = await bus.leader()
    took_ms = (time.monotonic() - began) * 1_000
    text = (
        f"epoch {reply.epoch} of cluster {reply.cluster} answers in {took_ms:.0f} ms; the log is "
        f"at {reply.position}; scheduler {reply.scheduler}, {reply.nodes} nodes, {reply.jobs} "
        f"jobs, {reply.workers} workers, {reply.pending} commands under way"
    )
    found = [Finding(what="leader", level="ok", text=text)]
    if reply.unconfirmed:
        lost = f"{reply.unconfirmed} workers live that it can't confirm: it has lost records"
        advice = "`slotbus rebuild` takes them in as they are, where they are yours"
        found.append(Finding(what="event log", level="warning", text=lost, advice=advice))
    return found


async def nodes(bus: SlotbusClient) -> list[Finding]:
    rows = await bus.nodes()
    found = [finding for row in rows for finding in [_node(row)] if finding is not None]
    ready = [row for row in rows if row.state is NodeState.READY]
    free = sum(row.free_slots for row in ready)
    level: Level = "ok" if ready else "warning"
    advice = "" if ready else "start an agent: `slotbus agent`"
    text = f"{len(ready)} of {len(rows)} ready, {free} slots free"
    return [Finding(what="nodes", level=level, text=text, advice=advice), *found]


def _node(row: NodeRow) -> Finding | None:
    what = f"node {row.node_id}"
    if row.state is NodeState.EXPIRED:
        age = "never" if row.heartbeat_age_s is None else f"{row.heartbeat_age_s:.0f} s ago"
        return Finding(
            what=what,
            level="warning",
            text=f"expired, heard {age}; {row.scheduled_slots} slots are still held there",
            advice="look whether its machine and its agent run, and reach NATS"
            + (
                f"; if it is gone for good: `slotbus node confirm-dead {row.node_id}`"
                if row.scheduled_slots
                else ""
            ),
        )
    if row.state is NodeState.DRAINING:
        text = f"draining, {row.scheduled_slots} slots are still held there"
        return Finding(what=what, level="note", text=text)
    if row.state is not NodeState.READY:
        advice = f"`slotbus uncordon {row.node_id}`, when it may have work again"
        return Finding(what=what, level="note", text=str(row.state), advice=advice)
    if row.version and row.version.partition("+")[0] != our_version():
        text = f"its agent is of version {row.version}, this command of {our_version()}"
        return Finding(what=what, level="note", text=text)
    return None


async def clocks(bus: SlotbusClient) -> list[Finding]:
    """How far the clocks are from ours, by when an answer can have been made."""
    apart: dict[str, float] = {}
    began = datetime.now(UTC)
    leader = await bus.leader()
    apart["the leader"] = _apart(leader.now, began)
    began = datetime.now(UTC)
    at_server = await server_time(bus)
    if at_server is not None:
        apart["the NATS server"] = _apart(at_server, began)
    silent: list[str] = []
    ready = [row for row in await bus.nodes() if row.state is not NodeState.EXPIRED]
    for row in ready[:MAX_AGENTS]:
        began = datetime.now(UTC)
        try:
            body = await bus.ask(bus.subjects.agent(row.node_id, "about"), b"{}", timeout_s=ASK_S)
            apart[f"node {row.node_id}"] = _apart(decode(body, AgentAboutReply).now, began)
        except SlotbusError:
            silent.append(row.node_id)
    return _told(apart, silent)


def _apart(theirs: datetime, began: datetime) -> float:
    """Seconds by which a clock is ahead of ours at least; 0 where it may agree."""
    ahead = (theirs - datetime.now(UTC)).total_seconds()
    behind = (began - theirs).total_seconds()
    return ahead if ahead > 0 else -max(0.0, behind)


def _told(apart: dict[str, float], silent: list[str]) -> list[Finding]:
    far = {who: by for who, by in apart.items() if abs(by) > CLOCKS_APART_S}
    found = [
        Finding(
            what="clocks",
            level="warning",
            text=f"{who} is {abs(by):.1f} s {'ahead of' if by > 0 else 'behind'} this machine",
            advice="keep clocks together with NTP; what happened is hard to read else",
        )
        for who, by in far.items()
    ]
    if silent:
        text = f"not asked or not answered: {', '.join(silent)}"
        found.append(Finding(what="clocks", level="note", text=text))
    if not far:
        text = f"{len(apart)} agree with this machine's within {CLOCKS_APART_S:g} s"
        found.append(Finding(what="clocks", level="ok", text=text))
    return found
