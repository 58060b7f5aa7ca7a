"""Every scheduler with eight slots to give, made ready for the same tests.

What lives here: factories of schedulers over real processes, one a backend, each with room
for two workers of four slots. What may not: what is expected of a scheduler
(tests/contracts/test_scheduler.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from controller.inbox import NatsInbox
from events.log import MemoryLog
from events.subjects import Subjects
from events.traffic import WorkerFinishedReq
from schedulers import EmbeddedScheduler, ManualScheduler, NodeScheduler, ProcessScheduler
from schedulers.decide import Rules
from schedulers.engine import Engine, EngineSettings
from schedulers.node.config import AgentConfig
from schedulers.node.launcher import NatsLauncher
from schedulers.process import LOCAL_NODE, process_backend, process_rules
from schedulers.supervisor.starter import ensure_supervisor
from tests.support.agents import end_supervisor, running
from tests.support.nats import connected
from tests.support.person import Person
from tests.support.tasks import COMMANDS
from tests.support.waiting import until
from tests.support.workers import sleeps

SLOTS = 8
SLOTS_A_WORKER = 4
RULES = Rules(heartbeat_s=0.2, worker_command=sleeps())


@dataclass
class Surroundings:
    """What a factory may build a scheduler from. State directories under ``tmp_path``
    named ``agent*`` have their supervisors ended with ``agent_config``."""

    server: str
    subjects: Subjects
    agent_config: AgentConfig
    tmp_path: Path


Factory = Callable[[Surroundings], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def in_process(around: Surroundings) -> AsyncIterator[Engine]:
    """As a library: supervisor and all in this process, nothing started yet."""
    scheduler = ProcessScheduler(
        slots_per_process=SLOTS_A_WORKER,
        task_slots=SLOTS,
        state_dir=around.tmp_path / "state",
        rules=RULES,
    )
    try:
        yield scheduler
    finally:
        await scheduler.close()


@asynccontextmanager
async def supervised(around: Surroundings) -> AsyncIterator[Engine]:
    """As in a controller: over a supervisor process, which outlives the engine."""
    state_dir = around.tmp_path / "agent-local"
    backend = process_backend(
        partial(ensure_supervisor, state_dir, LOCAL_NODE),
        machine_id="test",
        task_slots=SLOTS,
    )
    settings = EngineSettings(cluster="test", rules=process_rules(RULES, SLOTS_A_WORKER))
    engine = Engine(backend, MemoryLog(), settings)
    try:
        yield engine
    finally:
        await engine.close()
        await backend.launcher.close()
        await end_supervisor(state_dir)


@asynccontextmanager
async def on_nodes(around: Surroundings) -> AsyncIterator[Engine]:
    """Two real agents over NATS; the controller's inbox brings their traffic."""
    async with AsyncExitStack() as stack:
        nc = await stack.enter_async_context(connected(around.server))
        launcher = NatsLauncher(nc, around.subjects)
        engine = await stack.enter_async_context(NodeScheduler(launcher, rules=RULES))
        stack.push_async_callback(launcher.close)
        inbox = NatsInbox(nc, around.subjects, engine, epoch=engine.epoch, may_answer=lambda: True)
        await inbox.open()
        stack.push_async_callback(inbox.cut)
        for number in (1, 2):
            config = msgspec.structs.replace(
                around.agent_config,
                node_id=f"n{number}",
                slots=SLOTS_A_WORKER,
                state_dir=str(around.tmp_path / f"agent-{number}"),
            )
            await stack.enter_async_context(running(config))
        await until(lambda: len(engine.ledger.nodes) == 2)
        yield engine


@asynccontextmanager
async def as_tasks(around: Surroundings) -> AsyncIterator[Engine]:
    """Tasks of this process, which run the suite's commands."""
    scheduler = EmbeddedScheduler(
        COMMANDS, slots_per_worker=SLOTS_A_WORKER, task_slots=SLOTS, rules=RULES
    )
    try:
        yield scheduler
    finally:
        await scheduler.close()


@asynccontextmanager
async def by_hand(around: Surroundings) -> AsyncIterator[Engine]:
    """A person does what the scheduler says, and reports ends to it."""

    async def report(end: WorkerFinishedReq) -> None:
        await scheduler.worker_finished(end)

    person = Person(report)
    scheduler = ManualScheduler(
        person.tell, slots_per_worker=SLOTS_A_WORKER, task_slots=SLOTS, rules=RULES
    )
    try:
        yield scheduler
    finally:
        await person.leave()
        await scheduler.close()


FACTORIES: dict[str, Factory] = {
    "embedded": as_tasks,
    "manual": by_hand,
    "process": in_process,
    "supervised": supervised,
    "node": on_nodes,
}
