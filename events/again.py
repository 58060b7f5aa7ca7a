"""Starting a job's last run again, as it was or with other slots.

What lives here: the order of stop and start, and what is promised about it. What may not:
the commands themselves (``events.client``).

It is a stop and a start, each of which is all or nothing; together they are not. What can be
known before the stop is looked at before it: whether the definition is remembered, and
whether there would be room. When the start fails all the same, the old run stays stopped,
and the error says so; the same call again goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from events.client import SlotbusClient, make_command_id
from events.codec import convert
from events.errors import NotEnoughSlots, SlotbusError
from events.ids import DEFAULT_GRACE_S
from events.messages import StartPipelineReq, StopReply, StopWorkersReq
from events.queries import JobReply, NodeRow, WorkerRow
from events.states import RUN_ENDED, NodeState, RunState
from events.waits import wait_for_start, wait_for_stop


class DefinitionForgotten(SlotbusError):
    """What the run was started with is not remembered any more: start it yourself."""

    code: ClassVar[str] = "definition_forgotten"
    status: ClassVar[int] = 409


class Unconfirmed(SlotbusError):
    """Workers of the old run are on nodes that don't answer: nothing new was started."""

    code: ClassVar[str] = "unconfirmed"
    status: ClassVar[int] = 409


class Again(Struct, kw_only=True, frozen=True):
    """How to run it again. ``slots`` None: as many as before; ``if_needed``: leave a run
    alone that has as many already. ``anyway``: also beside old workers whose end can't be
    confirmed. Times in seconds, as in stop and start; ``wait_s`` None: until the outcomes are
    due."""

    slots: int | None = None
    if_needed: bool = False
    anyway: bool = False
    force: bool = False
    grace_s: float = DEFAULT_GRACE_S
    wait_s: float | None = None
    command_id: str | None = None


class Rerun(Struct, frozen=True):
    """``body`` is the start's reply as it came; None: nothing was to be done. ``stopped``: the
    old run, where it had to be stopped."""

    old_run: int
    body: bytes | None
    stopped: StopReply | None


async def run_again(bus: SlotbusClient, job_id: str, how: Again) -> Rerun:
    """Stops the newest run of a job, where it runs, and starts the next with its definition.

    Under one ``command_id`` it can be repeated: what was done is not done again. Raises
    UnknownJob, DefinitionForgotten, NotEnoughSlots (before anything was stopped, or after,
    as it says), Unconfirmed, and what stop and start raise.
    """
    job = await bus.job(job_id)
    command_id = how.command_id or make_command_id()
    running = job.state not in RUN_ENDED and job.command_id != command_id  # else it is our own
    wanted = job.slots if how.slots is None else how.slots
    if how.if_needed and job.state is RunState.RUNNING and wanted == job.slots:
        return Rerun(job.run_id, None, None)
    if not job.defined:
        raise DefinitionForgotten(
            f"what run {job.run_id} of {job_id} was started with is not remembered any more: "
            "start it with its definition",
            job_id=job_id,
            run_id=job.run_id,
        )
    request = convert({"slots": wanted, **_definition(job)}, StartPipelineReq)
    wait_s = wait_for_start() if how.wait_s is None else how.wait_s
    request = replace(request, wait_s=wait_s, command_id=command_id)
    stopped = None
    if running:
        await _check_room(bus, job, wanted)
        stopped = await _stop(bus, job, how, command_id)
    try:
        return Rerun(job.run_id, await bus.send(request), stopped)
    except SlotbusError as error:
        if running:
            error.message = f"run {job.run_id} was stopped, and the next was not started: {error}"
        raise


async def _stop(bus: SlotbusClient, job: JobReply, how: Again, command_id: str) -> StopReply:
    """Stops that one run. Raises Unconfirmed."""
    due_s = wait_for_stop(how.grace_s, force=how.force)
    reply = await bus.stop(
        StopWorkersReq(
            job_id=job.job_id,
            run_id=job.run_id,
            force=how.force,
            grace_s=how.grace_s,
            wait_s=due_s if how.wait_s is None else max(how.wait_s, 2 * how.grace_s),
            command_id=f"{command_id[:120]}-stop",
        )
    )
    if reply.unconfirmed and not how.anyway:
        raise Unconfirmed(
            f"run {job.run_id} of {job.job_id} is stopped as far as its nodes answer, and nothing "
            f"was started: {len(reply.unconfirmed)} workers may live on nodes that don't "
            "(--anyway starts beside them)",
            job_id=job.job_id,
            unconfirmed=reply.unconfirmed,
        )
    return reply


def _definition(job: JobReply) -> dict[str, object]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "program": msgspec.json.decode(job.program),
        "wasm_path": job.wasm_path,
        "hash": job.hash,
        "env_vars": job.env_vars,
        "scheduler_config": msgspec.to_builtins(job.scheduler_config),
        "priority": job.priority,
        "on_failure": job.policy.on_failure,
        "on_lost": job.policy.on_lost,
        "on_drain": job.policy.on_drain,
        "restart": msgspec.structs.asdict(job.policy.restart),
    }


async def _check_room(bus: SlotbusClient, job: JobReply, wanted: int) -> None:
    """Raises NotEnoughSlots while the old run still runs."""
    nodes = await bus.nodes()
    workers = await bus.workers(job.job_id, run_id=job.run_id)
    free = room_after(nodes, workers, job.scheduler_config.selector)
    if free < wanted:
        raise NotEnoughSlots(
            wanted - free,
            free,
            f"{wanted - free} more slots are needed: with run {job.run_id} stopped {free} would be "
            f"free; it was left alone",
            job_id=job.job_id,
        )


def room_after(
    nodes: Sequence[NodeRow], workers: Sequence[WorkerRow], selector: dict[str, str]
) -> int:
    """Slots that would be free for a run with this selector, if these workers were gone."""
    open_nodes = {
        node.node_id: node
        for node in nodes
        if node.state is NodeState.READY and selector.items() <= node.labels.items()
    }
    held = dict.fromkeys(open_nodes, 0)
    for worker in workers:
        if worker.node_id in held:
            held[worker.node_id] += worker.slots
    return sum(
        max(0, node.registered_slots - (node.scheduled_slots - held[node_id]))
        for node_id, node in open_nodes.items()
    )
