"""Facts of the event log as sentences.

What lives here: one sentence per fact that a spectator cares about. What may not: reading the
log, and colours.
"""

from __future__ import annotations

from collections.abc import Iterable

from events import facts as f


def tell(facts: Iterable[f.AnyFact]) -> list[str]:
    """The sentences of a record; facts that say nothing to a spectator are left out."""
    return [sentence for fact in facts if (sentence := _sentence(fact))]


def _sentence(fact: f.AnyFact) -> str:
    match fact:
        case f.LeaderStarted():
            return f"a controller leads, epoch {fact.epoch}"
        case f.CommandDone(ok=True):
            return f"command {fact.command_id} is done"
        case f.CommandDone():
            error = fact.reply.get("error", {}) if isinstance(fact.reply, dict) else {}
            return f"command {fact.command_id} is refused: {error.get('code', 'unknown')}"
        case f.RunCreated() | f.RunWaiting() | f.RunRunning() | f.RunStopping() | f.RunEnded():
            return _run(fact)
        case _:
            return _node(fact) or _worker(fact)


def _node(fact: f.AnyFact) -> str:
    match fact:
        case f.NodeRegistered():
            return f"node {fact.node_id} offers {fact.task_slots} slots"
        case f.NodeExpired():
            return f"node {fact.node_id} has expired, last heard at {fact.last_seen:%H:%M:%S}"
        case f.NodeReturned():
            return f"node {fact.node_id} is back"
        case f.NodeCordoned():
            return f"node {fact.node_id} gets no new workers"
        case f.NodeUncordoned():
            return f"node {fact.node_id} may have new workers again"
        case f.NodeDraining():
            return f"node {fact.node_id} is to be empty by {fact.deadline:%H:%M:%S}"
        case f.NodeConfirmedDead():
            return f"node {fact.node_id} is dead, says a person ({fact.command_id})"
        case _:
            return ""


def _run(
    fact: f.RunCreated | f.RunWaiting | f.RunRunning | f.RunStopping | f.RunEnded,
) -> str:
    match fact:
        case f.RunCreated() if fact.restart_of is not None:
            how = "restarts" if fact.tries else "moves"
            return f"{fact.job_id} {how}: run {fact.run_id} follows run {fact.restart_of}"
        case f.RunWaiting():
            return f"{fact.job_id} run {fact.run_id} waits: {fact.reason}"
        case f.RunCreated():
            return f"{fact.job_id} run {fact.run_id} is to have {fact.slots} slots"
        case f.RunRunning():
            return f"{fact.job_id} run {fact.run_id} runs"
        case f.RunStopping():
            return f"{fact.job_id} run {fact.run_id} stops: {fact.reason}"
        case f.RunEnded():
            return f"{fact.job_id} run {fact.run_id} has {fact.state}"


def _worker(fact: f.AnyFact) -> str:
    match fact:
        case f.WorkerAssigned():
            return f"worker {fact.worker_id}: {fact.slots} slots on node {fact.node_id}"
        case f.WorkerLaunched():
            return f"worker {fact.worker_id} runs, pid {fact.pid}"
        case f.WorkerStopping():
            return f"worker {fact.worker_id} is asked to end: {fact.reason}"
        case f.WorkerLost():
            return f"worker {fact.worker_id} is lost: {fact.reason}"
        case f.WorkerReturned():
            return f"worker {fact.worker_id} is back"
        case f.WorkerEnded():
            return f"worker {fact.worker_id} has {fact.state}: {fact.reason}"
        case _:
            return ""
