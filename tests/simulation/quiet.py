"""What must hold when all is quiet: nothing is owed, and the accounts are the process table.

What lives here: one question, asked again and again until there is no problem left. What may
not: making it quiet (``troubles``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from events.states import RunState

if TYPE_CHECKING:
    from tests.simulation.world import World


def problems(world: World) -> list[str]:
    """What is not as it should be, in sentences."""
    if world.laws.doubts.any:  # what else is amiss after a loss is for a person to settle
        return list(_owed(world))
    return [*_owed(world), *_accounts(world), *_runs(world)]


def _owed(world: World) -> Iterator[str]:
    ledger = world.laws.ledger
    waiting = _waiting(world)
    pending = sorted(set(ledger.pending) - waiting)
    if pending:
        yield f"no outcome: {pending}"
    unanswered = [
        command_id for command_id in world.people.unanswered() if command_id not in waiting
    ]
    if unanswered:
        yield f"no answer: {unanswered}"
    lost = [
        command_id
        for command_id, asked in world.people.asked.items()
        if asked.queued
        and asked.answer
        and command_id not in world.laws.taken
        and command_id not in world.laws.doubts.commands
    ]
    if lost:
        yield f"left in the queue, and not done: {lost}"
    for agent in world.agents.values() if not world.laws.doubts.any else ():
        core = agent.host.core
        ended = [w.born.worker_id for w in core._state.ended_after(0)] if core else []
        if ended:
            yield f"ends that nobody acknowledged on {agent.name}: {ended}"


def _waiting(world: World) -> set[str]:
    """Commands of runs that wait for slots, for as long as it takes."""
    return {
        run.command_id
        for job in world.laws.ledger.jobs.values()
        for run in job.runs
        if run.state is RunState.WAITING
    }


def _accounts(world: World) -> Iterator[str]:
    ledger = world.laws.ledger
    alive = {process.worker_id for _, process in world.laws.processes()}
    live = {worker.worker_id for worker in ledger.workers.values() if not worker.gone}
    if alive != live:
        yield f"only processes: {sorted(alive - live)}, only in the log: {sorted(live - alive)}"
    for agent in world.agents.values():
        node = ledger.nodes.get(agent.name)
        if node is None or node.expired:
            yield f"node {agent.name} is not there"
            continue
        used = sum(process.slots for process in agent.node.alive())
        if ledger.free_slots(agent.name) != agent.node.slots - used:
            yield (
                f"node {agent.name} has {ledger.free_slots(agent.name)} free slots, and "
                f"{agent.node.slots - used} in truth"
            )


def _runs(world: World) -> Iterator[str]:
    ledger = world.laws.ledger
    slots: dict[tuple[str, int], int] = {}
    for _, process in world.laws.processes():
        key = (process.job_id, process.run_id)
        slots[key] = slots.get(key, 0) + process.slots
    if len({job_id for job_id, _ in slots}) != len(slots):
        yield f"two runs of a job live: {sorted(slots)}"
    for job in ledger.jobs.values():
        for run in job.runs:
            has = slots.get((run.job_id, run.run_id), 0)
            if run.ended and has:
                yield f"run {run.run_id} of {run.job_id} is {run.state}, and has workers"
            elif not run.ended and run.state not in ("running", "waiting"):
                yield f"run {run.run_id} of {run.job_id} is still {run.state}"
