"""How everything about a job, a node or a worker looks.

What lives here: the order of fields and their words. What may not: asking for them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from datetime import datetime

import msgspec
from msgspec import Struct

from controller.cli.output import clean, drain_line, local_time, table, worker_table, write
from controller.cli.telling import tell
from events.following import EventRecord
from events.messages import SchedulerConfig
from events.policies import Policy
from events.queries import JobReply, NodeDetailReply, WorkerReply, WorkerRow

PROGRAM_SHOWN: int = 500
"""Letters of a program that people see; json has all of it."""


class Portrait(Struct, kw_only=True, frozen=True):
    """One of ``job``, ``node`` and ``worker``, its workers, and what happened to it last."""

    kind: str
    job: JobReply | None = None
    node: NodeDetailReply | None = None
    worker: WorkerReply | None = None
    workers: list[WorkerRow] = []
    events: list[EventRecord] = []


def as_json(portrait: Portrait) -> bytes:
    """For programs: the answers as they are on the wire, under their kinds."""
    parts = {"job": portrait.job, "node": portrait.node, "worker": portrait.worker}
    return msgspec.json.encode(
        {
            "kind": portrait.kind,
            **{name: part for name, part in parts.items() if part is not None},
            "workers": portrait.workers,
            "events": [msgspec.Raw(record.body) for record in portrait.events],
        }
    )


def show(portrait: Portrait) -> None:
    """For people."""
    if portrait.job is not None:
        _fields(_job(portrait.job))
        if len(portrait.job.runs) > 1:
            _head("runs")
            table(
                ("RUN", "STATE", "SLOTS", "SINCE", "REASON"),
                [
                    (str(r.run_id), r.state, str(r.slots), local_time(r.since), r.reason)
                    for r in portrait.job.runs
                ],
            )
    if portrait.node is not None:
        _fields(_node(portrait.node))
    if portrait.worker is not None:
        _fields(_worker(portrait.worker))
    if portrait.workers:
        _head("workers")
        worker_table(portrait.workers)
    if portrait.events:
        _head("events")
        for record in portrait.events:
            write("\n".join(clean(line) for line in tell(record)))


def _head(text: str) -> None:
    write(f"\n{text}:")


def _fields(fields: Iterable[tuple[str, object]]) -> None:
    said = [(name, _text(value)) for name, value in fields]
    shown = [(name, text) for name, text in said if text]
    width = max(len(name) for name, _ in shown)
    for name, text in shown:
        write(f"{name.ljust(width)}  {clean(text)}")


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return local_time(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in sorted(value.items()))
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    return "" if value is None else str(value)


def _job(job: JobReply) -> list[tuple[str, object]]:
    config = job.scheduler_config
    command = config.command
    program = bytes(job.program).decode(errors="replace")
    if len(program) > PROGRAM_SHOWN:
        program = f"{program[:PROGRAM_SHOWN]}... ({len(program)} letters)"
    rest = msgspec.structs.replace(config, command=None, selector={}, stop_after_s=None)
    return [
        ("job", job.job_id),
        ("name", job.name if job.name != job.job_id else ""),
        ("run", f"{job.run_id} (highest {job.highest_run})"),
        ("state", job.state),
        ("since", job.since),
        ("reason", job.reason),
        ("not before", job.not_before),
        ("not after", job.not_after),
        ("waits for the end of", job.awaits),
        ("slots", f"{job.slots}, {job.missing} missing" if job.missing else job.slots),
        ("priority", job.priority or ""),
        ("live workers", str(job.workers)),
        ("started by", _origin(job)),
        ("restarts", job.restarts or ""),
        ("policy", _policy(job.policy)),
        ("attempts", job.attempt if job.attempt > 1 else ""),
        ("failures", job.failures),
        ("command", shlex.join(command) if isinstance(command, list) else command),
        ("selector", config.selector),
        ("stop after", f"{config.stop_after_s:g} s" if config.stop_after_s is not None else ""),
        ("scheduler", "" if rest == SchedulerConfig() else msgspec.json.encode(rest).decode()),
        ("environment", sorted(job.env_vars)),
        ("program", program if job.defined else "not remembered any more"),
        ("hash", job.hash),
        ("wasm path", job.wasm_path),
    ]


def _origin(job: JobReply) -> str:
    if job.restart_of is None:
        return job.command_id
    how = f"restart {job.tries} in a row" if job.tries else "it moved"
    return f"run {job.restart_of} ({how})"


def _policy(policy: Policy) -> str:
    """What differs from doing nothing, in a sentence."""
    said = []
    for name, on_end in (("failure", policy.on_failure), ("loss", policy.on_lost)):
        if on_end == "restart":
            said.append(f"restart on {name}")
    if said:
        how = policy.restart
        said.append(
            f"after {how.first_s:g} s doubling to {how.longest_s:g} s, at most {how.limit} times "
            f"within {how.window_s:g} s, anew after {how.quiet_s:g} quiet s"
        )
    if policy.on_drain == "move":
        said.append("moved when a node is drained")
    return ", ".join(said)


def _node(node: NodeDetailReply) -> list[tuple[str, object]]:
    row = node.node
    age = row.heartbeat_age_s
    return [
        ("node", row.node_id),
        ("state", row.state),
        ("since", node.since),
        ("when back", node.cordon if node.cordon != row.state else ""),
        ("dead", node.dead),
        ("drain", f"{drain_line(node.drain)} ({node.drain.command_id})" if node.drain else ""),
        ("drained until", node.drain_deadline),
        ("slots", f"{row.registered_slots}: {row.free_slots} free, {row.scheduled_slots} in use"),
        ("heard", "needs no heartbeat" if age is None else f"{age:.1f} s ago"),
        ("labels", row.labels),
        ("address", row.addr),
        ("version", row.version),
        ("machine", node.machine_id),
        ("incarnation", node.incarnation),
        ("before it", node.past),
        ("not confirmed by the log", node.orphans),
    ]


def _worker(worker: WorkerReply) -> list[tuple[str, object]]:
    row = worker.worker
    end = f"signal {row.signal}" if row.signal is not None else row.exit_code
    return [
        ("worker", row.worker_id),
        ("job", f"{row.job_id} run {row.run_id}"),
        ("node", row.node_id),
        ("host", row.host),
        ("incarnation", worker.incarnation),
        ("slots", row.slots),
        ("state", f"{row.state}{', gone' if worker.gone else ''}"),
        ("since", row.since),
        ("reason", row.reason),
        ("pid", row.pid),
        ("exit", end),
        ("launched", "yes" if worker.launched else "no"),
        ("to be stopped", worker.unwanted),
        ("killed at once", worker.force),
        ("grace", f"{worker.grace_s:g} s" if worker.unwanted else ""),
        ("decided", f"epoch {worker.epoch}, position {worker.position}"),
    ]
