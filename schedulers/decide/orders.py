"""Orders to nodes, and outcomes of commands: the words in which decisions are carried out.

What lives here: asking for a worker's launch or end and for inventories, and closing a
command. What may not: when that is to be done.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from events.entities import Node, Worker
from events.errors import SlotbusError
from events.facts import CommandDone, PassedOver, WorkerStopping
from schedulers.decide.draft import Draft
from schedulers.decide.messages import Launch, Reply, Stop, TakeInventory
from schedulers.decide.words import split_command
from schedulers.launcher import Assignment, StopOrder

ASK_AGAIN: Final = timedelta(seconds=5)
"""An inventory asked for and not answered nor failed in this time is asked for again."""


def ask(draft: Draft, node: Node, *, anew: bool = False) -> None:
    """Asks a node what it runs, unless that is being asked already (``anew``: of an earlier
    incarnation). Its heartbeats ask again until there was an answer."""
    beat = draft.pulse.beats.get(node.node_id)
    if beat is not None:
        beat.owed = True
        if not anew and beat.asked_at is not None and draft.now - beat.asked_at < ASK_AGAIN:
            return
        beat.asked_at = draft.now
    draft.effect(TakeInventory(node.node_id, node.incarnation, draft.epoch))


def obeys(draft: Draft, node: Node) -> bool:
    """Whether a node has seen this leader's epoch, so that it takes no older order any more."""
    beat = draft.pulse.beats.get(node.node_id)
    return not node.watched or (beat is not None and beat.epoch >= draft.epoch)


def launch(draft: Draft, worker: Worker) -> None:
    """Asks for the launch of an assigned worker, under its own stamp, on the incarnation
    its node has now. One that does not obey us yet is asked for its inventory, which shows
    that the worker is not there, and then it is launched."""
    node = draft.ledger.nodes[worker.node_id]
    if not obeys(draft, node):
        ask(draft, node)
        return
    run = draft.ledger.run_of(worker)
    config = run.scheduler_config
    draft.effect(
        Launch(
            Assignment(
                worker_id=worker.worker_id,
                job_id=worker.job_id,
                run_id=worker.run_id,
                slots=worker.slots,
                node_id=worker.node_id,
                incarnation=node.incarnation,
                epoch=draft.epoch,
                stamp=msgspec.structs.replace(
                    draft.stamp, epoch=worker.epoch, position=worker.position
                ),
                command=split_command(config.command),
                default_command=draft.rules.worker_command,
                env_vars=run.env_vars,
                program=run.program,
                name=run.name,
                hash=run.hash,
                wasm_path=run.wasm_path,
                selector=config.selector,
                spread=config.spread,
                stop_after_s=config.stop_after_s,
                kubernetes=config.kubernetes,
            )
        )
    )


def stop_worker(
    draft: Draft, worker: Worker, reason: str, *, force: bool = False, grace_s: float
) -> None:
    """Decides that a live worker is to end, and asks its node for it."""
    draft.emit(
        WorkerStopping(worker_id=worker.worker_id, reason=reason, force=force, grace_s=grace_s)
    )
    signal(draft, worker)


def signal(draft: Draft, worker: Worker) -> None:
    """Asks a node to stop a worker; a silent node is asked when it returns."""
    if draft.ledger.answers(worker):
        draft.effect(
            Stop(
                StopOrder(
                    worker_id=worker.worker_id,
                    node_id=worker.node_id,
                    incarnation=draft.ledger.nodes[worker.node_id].incarnation,
                    force=worker.force,
                    grace_s=worker.grace_s,
                    epoch=draft.epoch,
                )
            )
        )


def refuse(
    draft: Draft, command_id: str, error: SlotbusError, passed_over: list[PassedOver] | None = None
) -> None:
    """The outcome of a command is an error."""
    draft.emit(
        CommandDone(
            command_id=command_id, ok=False, reply=error.body(), passed_over=passed_over or []
        )
    )


def succeed(draft: Draft, command_id: str, reply: Reply) -> None:
    """The outcome of a command is its reply."""
    draft.emit(CommandDone(command_id=command_id, ok=True, reply=msgspec.to_builtins(reply)))
