"""A running deployment of compose/compose.yaml, to be broken and looked at.

What lives here: what a test does to containers, what runs in them, and whether the laws hold.
What may not: what a particular failure should lead to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from nats.aio.client import Client
from testcontainers.compose import DockerCompose

from events.audit import audit
from events.client import SlotbusClient
from events.facts import AnyFact, Record
from events.jetstream import JetStreamLog
from events.messages import SchedulerConfig
from events.queries import NodeRow, WorkerRow
from events.states import NodeState, WorkerState
from events.subjects import Subjects

CONTROLLERS: Final = ("controller-1", "controller-2")
AGENTS: Final = {"node-1": "agent-1", "node-2": "agent-2", "node-3": "agent-3"}
"""Node to service."""
PROGRAMS: Final = (*CONTROLLERS, *AGENTS.values())
NODE_SLOTS: Final = 4

COMMAND_TIMEOUT_S: Final = 120.0
DEADLINE_S: Final = 60.0
"""Generous: containers share the machine with whatever else runs there."""

PIPELINE: Final = ["python3", "-m", "controller.demo.pipeline"]
PROGRAM: Final = {"server": "nats://nats:4222", "window_s": 1, "idle_s": 1}
MODULE: Final = PIPELINE[-1]

_WORKER_IDS: Final = """
for file in /proc/[0-9]*/cmdline; do
    grep -aq controller.demo.pipeline "$file" 2>/dev/null || continue
    tr '\\0' '\\n' <"${file%cmdline}environ" 2>/dev/null | sed -n 's/^SLOTBUS_WORKER_ID=//p'
done
true
"""


class CommandFailed(Exception):
    """A docker command ended with another code than 0; says what it said."""


async def docker(*words: str) -> str:
    """What a docker command prints. Raises CommandFailed."""
    process = await asyncio.create_subprocess_exec(
        "docker",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            out, errors = await process.communicate()
    except BaseException:
        if process.returncode is None:
            process.kill()
            await process.wait()
        raise
    if process.returncode:
        raise CommandFailed(f"docker {' '.join(words)}: {errors.decode()[-2000:]}")
    return out.decode()


async def eventually(
    what: str, holds: Callable[[], Awaitable[object]], deadline_s: float = DEADLINE_S
) -> None:
    """Returns once ``holds`` gives something true. Fails with ``what`` at the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    while not await holds():
        assert loop.time() < deadline, f"not within {deadline_s:g} s: {what}"
        await asyncio.sleep(0.1)


class Deployment:
    """The containers by service, and the way in from the host."""

    def __init__(self, compose: DockerCompose, project: str, server: str) -> None:
        self._compose = compose
        self.project = project
        self.server = server
        self.ids = {
            str(row.Service): str(row.ID) for row in compose.get_containers(include_all=True)
        }

    @asynccontextmanager
    async def client(self) -> AsyncIterator[SlotbusClient]:
        """A user on the host."""
        async with SlotbusClient.connect(self.server) as bus:
            yield bus

    async def compose(self, *words: str) -> str:
        """A compose command about this deployment. Raises CommandFailed."""
        return await docker(*self._compose.docker_compose_command()[1:], *words)

    async def tell(self, verb: str, *services: str) -> None:
        """``docker kill``, ``start``, ``pause``, ... the containers of some services."""
        await docker(verb, *(self.ids[service] for service in services))

    async def inspect(self, service: str, template: str) -> str:
        return (await docker("inspect", "--format", template, self.ids[service])).strip()

    async def network(self) -> str:
        """The network that all containers are in."""
        found = await self.inspect("nats", "{{json .NetworkSettings.Networks}}")
        (name,) = json.loads(found)
        return str(name)

    async def leader(self) -> str:
        """The service of the controller that leads now, "" if none says so."""
        for service in CONTROLLERS:
            if await self.says_yes(service, "/leaderz"):
                return service
        return ""

    async def says_yes(self, service: str, page: str) -> bool:
        """Whether a program's page answers with 200; a container that is down does not."""
        probe = ["python3", "-I", "-S", "/opt/healthcheck.py", page]
        try:
            await docker("exec", self.ids[service], *probe)
        except CommandFailed:
            return False
        return True

    async def ready(self, service: str) -> None:
        """Returns when a program does its work, or stands by."""
        await eventually(f"{service} is ready", lambda: self.says_yes(service, "/readyz"))

    # --- what runs ----------------------------------------------------------------------

    async def pipeline_pids(self, node_id: str) -> list[int]:
        """Worker processes of a node as the engine sees them, frozen ones too."""
        try:
            listed = await docker("top", self.ids[AGENTS[node_id]], "-eo", "pid,args")
        except CommandFailed:  # the container is down, and all in it
            return []
        return [int(line.split()[0]) for line in listed.splitlines() if MODULE in line]

    async def worker_ids(self, node_id: str) -> list[str]:
        """One id for each worker process of a node, sorted; twice the same would show."""
        container = self.ids[AGENTS[node_id]]
        return sorted((await docker("exec", container, "sh", "-c", _WORKER_IDS)).split())

    async def agrees(self, bus: SlotbusClient) -> bool:
        """Whether exactly those workers run that the ledger says, on every node that answers."""
        for node in await bus.nodes():
            if node.state is NodeState.EXPIRED:
                return False
            said = sorted(
                worker.worker_id
                for worker in await bus.workers()
                if worker.node_id == node.node_id and worker.state is WorkerState.RUNNING
            )
            if await self.worker_ids(node.node_id) != said:
                return False
        return True

    async def records(self, nc: Client) -> list[Record]:
        log = JetStreamLog(nc, Subjects("slotbus"), create=False)
        return [record async for batch in log.read() for record in batch]

    async def facts(self, nc: Client) -> list[AnyFact]:
        return [fact for record in await self.records(nc) for fact in record.events]

    async def check_laws(self, bus: SlotbusClient) -> None:
        """The auditor over the whole log, and the ledger against the processes there are."""
        await eventually("processes are what the ledger says", lambda: self.agrees(bus))
        broken = audit(await self.records(bus.nc), datetime.now(UTC))
        assert not broken, broken


async def node(bus: SlotbusClient, node_id: str) -> NodeRow:
    (row,) = await bus.nodes(node_id)
    return row


async def reaches(bus: SlotbusClient, node_id: str, state: NodeState) -> None:
    """Returns when the node is in this state."""

    async def there() -> bool:
        return (await node(bus, node_id)).state is state

    await eventually(f"{node_id} is {state}", there)


async def start_pipeline(bus: SlotbusClient, job_id: str, slots: int) -> dict[str, WorkerRow]:
    """Runs the example pipeline until every worker has said that it listens; those by id."""
    reply = await bus.start(
        job_id=job_id,
        slots=slots,
        program=PROGRAM | {"subject": f"{job_id}.readings", "results": f"{job_id}.results"},
        scheduler_config=SchedulerConfig(command=PIPELINE),
    )
    rows = {row.worker_id: row for row in await bus.workers(job_id, run_id=reply.run_id)}

    async def all_listen() -> bool:
        lines = bus.logs(job_id, run_id=reply.run_id)
        return {line.worker_id async for line in lines if " slots on " in line.text} == set(rows)

    await eventually(f"the workers of {job_id} listen", all_listen)
    return rows


async def all_free(bus: SlotbusClient) -> bool:
    """Whether every node answers and every slot is free."""
    rows = await bus.nodes()
    free = [row.free_slots for row in rows if row.state is NodeState.READY]
    return free == [NODE_SLOTS] * len(AGENTS)
