"""The demo's scenario: a pipeline on three nodes, one of which dies.

What lives here: the steps, and what each of them promises. What may not: starting and ending
the demo's processes other than by slotbus (`main`), except for the node that dies.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import msgspec

from controller.demo import accounts
from controller.demo.pipeline import Program
from controller.demo.recorded import recording_is_the_log
from controller.demo.stage import (
    EXPIRY_S,
    JOB,
    JOB_SLOTS,
    NODE_SLOTS,
    NODES,
    RATE,
    RESULTS,
    SUBJECT,
    WINDOW_S,
    DemoFailed,
    Stage,
)
from controller.demo.story import tell
from events.audit import Auditor, Violation
from events.errors import NotEnoughSlots
from events.facts import AnyFact, NodeExpired, Record, WorkerLost
from events.ids import Position
from events.jetstream import JetStreamLog
from events.messages import SchedulerConfig, StartReply
from events.queries import NodeRow
from events.states import NodeState, WorkerState

UP_S: Final = 25.0
"""A controller and three agents must be up within this, on a busy machine too."""
RESULTS_S: Final = 15.0
EVENTS_S: Final = 5.0
EXPIRY_MARGIN_S: Final = 5.0
"""How late a busy machine may be in noticing an expiry."""
WINDOWS_TO_SEE: Final = 3


async def play(stage: Stage) -> None:
    """The whole scenario. Raises DemoFailed where it can't go on, SlotbusError."""
    await nodes_come_up(stage)
    first = await pipeline_starts(stage)
    feeding = asyncio.create_task(stage.feed(), name="demo feed")
    try:
        await results_come(stage, first)
        lost = await node_dies(stage, first)
        await rest_is_stopped(stage, first, lost)
        second = await next_run_starts(stage, lost)
        await results_come(stage, second)
        await too_much_is_refused(stage)
        await accounts_agree(stage, "while it runs")
    finally:
        stage.feeder.stop()
        await feeding
    await job_stops(stage, second, lost)
    every_reading_counted(stage)
    await accounts_agree(stage, "at the end")
    await recording_is_the_log(stage, await log_tells(stage))


async def nodes_come_up(stage: Stage) -> None:
    show = stage.show
    show.step("A controller and three node agents with 4 slots each come up")

    async def ready() -> list[NodeRow] | None:
        rows = await stage.bus.nodes()
        up = [row for row in rows if row.state is NodeState.READY]
        return rows if len(up) == len(NODES) else None

    rows = await stage.until("three nodes are ready", ready, UP_S)
    show.nodes(rows)
    free = sum(row.free_slots for row in rows)
    show.check("three nodes offer 12 free slots", free == len(NODES) * NODE_SLOTS, f"{free}")


async def pipeline_starts(stage: Stage) -> StartReply:
    stage.show.step(f"The pipeline {JOB} starts with {JOB_SLOTS} slots")
    reply = await start(stage)
    shares = sorted((worker.slots for worker in reply.workers), reverse=True)
    held = stage.show.check(
        "one node is filled, the next one takes the rest: 4 + 2",
        shares == [4, 2],
        ", ".join(f"{w.slots} on {w.node_id}" for w in reply.workers),
    )
    if not held:
        raise DemoFailed("the rest of the demo is about two workers on two nodes")
    await workers_are_processes(stage, reply)
    return reply


async def start(stage: Stage) -> StartReply:
    """Starts the next run of the job."""
    program = Program(
        server=stage.nc.connected_url.geturl() if stage.nc.connected_url else "",
        subject=SUBJECT,
        results=RESULTS,
        window_s=WINDOW_S,
        lateness_s=0.2,
        idle_s=2.0,
    )
    return await stage.bus.start(
        job_id=JOB,
        name="mean temperatures of a dairy",
        slots=JOB_SLOTS,
        program=msgspec.to_builtins(program),
        env_vars=stage.processes.marked(),
        scheduler_config=SchedulerConfig(
            command=[sys.executable, "-P", "-m", "controller.demo.pipeline"]
        ),
    )


async def workers_are_processes(stage: Stage, reply: StartReply) -> None:
    """The reply, the query and the process table name the same workers and pids."""
    rows = await stage.bus.workers(JOB, run_id=reply.run_id)
    running = await asyncio.to_thread(stage.processes.workers)
    table = {worker.worker_id: (worker.node_id, worker.slots, worker.pid) for worker in running}
    stage.show.check(
        "reply, query and process table name the same workers",
        {row.worker_id: (row.node_id, row.slots, row.pid) for row in rows} == table
        and {worker.worker_id for worker in reply.workers} == set(table),
        ", ".join(f"{w.worker_id} is pid {w.pid}" for w in running),
    )


async def results_come(stage: Stage, run: StartReply) -> None:
    stage.show.step(f"Results of run {run.run_id}, {RATE:.0f} readings a second are sent")
    enough = RATE * WINDOW_S * WINDOWS_TO_SEE

    def seen() -> bool:
        results = stage.results
        all_slots = len(results.shares(run.run_id)) == JOB_SLOTS
        return all_slots and results.counted(run.run_id) >= enough

    came = await stage.results.until(seen, RESULTS_S)
    slots = len(stage.results.shares(run.run_id))
    stage.show.check(
        f"results of run {run.run_id} come from all its {JOB_SLOTS} slots",
        came,
        f"{stage.results.counted(run.run_id)} readings counted by {slots} slots",
    )


async def node_dies(stage: Stage, run: StartReply) -> str:
    """Kills the node with the larger worker; returns that worker's id."""
    victim = max(run.workers, key=lambda worker: worker.slots)
    rest = next(worker for worker in run.workers if worker is not victim)
    show, node_id = stage.show, victim.node_id
    show.step(f"Node {node_id} dies: agent, supervisor and worker are killed at once")
    show.say(f"silence for more than {EXPIRY_S:g} s is an expired node here (default: 30 s)")
    stage.killed.add(node_id)
    killed = await asyncio.to_thread(stage.processes.kill_node, node_id, stage.state_dir(node_id))
    show.say(f"killed: pids {', '.join(map(str, killed))}")
    show.check("an agent, a supervisor and a worker were killed", len(killed) == 3, f"{killed}")
    sent = stage.feeder.sent

    def expiry(fact: AnyFact) -> bool:
        return isinstance(fact, NodeExpired) and fact.node_id == node_id

    record = await stage.until_seen(f"{node_id} expires", expiry, EXPIRY_S + EXPIRY_MARGIN_S)
    expired = next(fact for fact in record.events if isinstance(fact, NodeExpired))
    silent_s = (record.at - expired.last_seen).total_seconds()
    late = f"{silent_s:.3f} s after its last heartbeat"
    in_time = EXPIRY_S < silent_s < EXPIRY_S + EXPIRY_MARGIN_S
    show.check("it expires after its time, not before", in_time, late)

    lost = {fact.worker_id for fact in record.events if isinstance(fact, WorkerLost)}
    show.check("its worker is lost, and no other", lost == {victim.worker_id})
    rows = await stage.bus.workers(JOB, run_id=run.run_id)
    states = {row.worker_id: row.state for row in rows}
    show.check("the other worker runs on", states.get(rest.worker_id) is WorkerState.RUNNING)

    def goes_on() -> bool:
        return stage.results.counts_after(rest.worker_id, sent)

    came = await stage.results.until(goes_on, RESULTS_S)
    show.check("its results still come, of readings sent after the kill", came)
    return victim.worker_id


async def rest_is_stopped(stage: Stage, run: StartReply, lost: str) -> None:
    show = stage.show
    show.step(f"What is left of run {run.run_id} is stopped")
    reply = await stage.bus.stop(JOB, run_id=run.run_id, grace_s=5.0)
    rest = sorted(worker.worker_id for worker in run.workers if worker.worker_id != lost)
    show.check("the rest has stopped", sorted(reply.workers) == rest, ", ".join(reply.workers))
    show.check("the lost worker is reported as unconfirmed", reply.unconfirmed == [lost])
    running = await asyncio.to_thread(stage.processes.workers)
    show.check("no worker process is left", not running, f"{running or ''}")
    show.nodes(await stage.bus.nodes())


async def next_run_starts(stage: Stage, lost: str) -> StartReply:
    stage.show.step(f"The next run starts on what is left: {JOB_SLOTS} of 8 slots")
    reply = await start(stage)
    dead = {row.node_id for row in await stage.bus.workers(JOB) if row.worker_id == lost}
    used = {worker.node_id for worker in reply.workers}
    stage.show.check(
        f"run {reply.run_id} has {JOB_SLOTS} slots on the two nodes that are left",
        sum(worker.slots for worker in reply.workers) == JOB_SLOTS
        and len(used) == 2
        and not used & dead,
        ", ".join(f"{w.slots} on {w.node_id}" for w in reply.workers),
    )
    await workers_are_processes(stage, reply)
    return reply


async def too_much_is_refused(stage: Stage) -> None:
    stage.show.step("3 slots for another job, where 2 are free")
    try:
        await stage.bus.start(job_id="too-much", slots=3)
    except NotEnoughSlots as error:
        exact = (error.slots_needed, error.slots_free) == (1, 2)
        stage.show.check("refused, with the number of slots that are missing", exact, str(error))
    else:
        stage.show.check("refused, with the number of slots that are missing", False, "it ran")


async def job_stops(stage: Stage, run: StartReply, lost: str) -> None:
    show = stage.show
    show.step(f"The feed ends after {stage.feeder.sent} readings, and the job is stopped")
    reply = await stage.bus.stop(JOB, grace_s=5.0)
    stopped = sorted(worker.worker_id for worker in run.workers)
    show.check("every worker that can be reached has stopped", sorted(reply.workers) == stopped)
    show.check("the lost one is still reported as unconfirmed", reply.unconfirmed == [lost])
    rows = await stage.bus.workers(JOB, run_id=run.run_id, include_ended=True)
    codes = [row.exit_code for row in rows]
    show.check("they ended by themselves, with exit code 0", codes == [0, 0], f"{codes}")
    due = stage.feeder.sent

    def complete() -> bool:
        return stage.results.coverage(run.run_id, stage.feeder).last_seq == due

    await stage.nc.flush()
    await stage.results.until(complete, RESULTS_S)


def every_reading_counted(stage: Stage) -> None:
    first = stage.results.coverage(1, stage.feeder)
    total = first.counted + first.missing
    stage.show.say(f"run 1 counted {first.counted} of {total} readings: {first.missing} were in")
    stage.show.say("the memory of the worker that was killed (plain NATS delivers at most once)")
    second = stage.results.coverage(2, stage.feeder)
    stage.show.check(
        "run 2 counted every reading once, and every mean is right",
        not second.wrong and not second.missing and second.last_seq == stage.feeder.sent,
        second.wrong or f"readings {second.first_seq} to {second.last_seq}",
    )


async def accounts_agree(stage: Stage, when: str) -> None:
    stage.show.step(f"The slot accounts {when}")
    alive = [node_id for node_id in NODES if node_id not in stage.killed]
    found = [
        accounts.from_queries(await stage.bus.nodes()),
        accounts.from_metrics(await accounts.fetch_metrics(stage.metrics_url), alive),
        accounts.from_ledger(await accounts.fold(event_log(stage))),
        accounts.from_processes(
            await asyncio.to_thread(stage.processes.workers),
            dict.fromkeys(alive, NODE_SLOTS),
        ),
    ]
    rows = [
        [a.source, *(str(a.free.get(n, "-")) for n in alive), str(a.registered), str(a.nodes)]
        for a in found
    ]
    header = ["says", *(f"free on {n}" for n in alive), "registered", "nodes"]
    stage.show.table(header, rows)
    differ = accounts.agree(found)
    stage.show.check(f"query, gauges, event log and process table agree {when}", not differ, differ)


def event_log(stage: Stage) -> JetStreamLog:
    return JetStreamLog(stage.nc, stage.bus.subjects, create=False)


async def log_tells(stage: Stage) -> list[Record]:
    show = stage.show
    show.step(f"The story of {JOB}, as the event log tells it")
    records: list[Record] = []
    async for batch in event_log(stage).read():
        records += batch
    rows = [
        [str(position), f"{record.at:%H:%M:%S.%f}"[:-3], sentence]
        for position, record in enumerate(records, start=1)
        for sentence in tell(record.events)
    ]
    show.table(["position", "time", "what happened"], rows)
    broken = audit(records)
    show.check(
        "the auditor finds no law broken: accounts, epochs, one outcome for every command",
        not broken and bool(records),
        "; ".join(broken) or f"{len(records)} records",
    )
    silent = await stage.until_all_seen(len(records), EVENTS_S)
    show.check("every record of the log was published as an event", not silent, f"{silent or ''}")
    return records


def audit(records: list[Record]) -> list[str]:
    """What an independent reader of a whole log has to object to."""
    auditor = Auditor()
    found: list[Violation] = []
    for position, record in enumerate(records, start=1):
        found += auditor.observe(Position(position), record)
    found += auditor.finish(records[-1].at if records else None)
    return [f"law {violation.law}: {violation.sentence}" for violation in found]
