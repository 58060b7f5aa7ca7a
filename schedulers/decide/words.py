"""Small pure helpers on words: command lines and causes.

What lives here: splitting a command string, the one-line cause of a record. What may not:
state.
"""

from __future__ import annotations

import shlex
from typing import Final

from events.errors import Invalid
from events.messages import (
    ConfirmDeadReq,
    CordonReq,
    DrainReq,
    RebuildReq,
    StartPipelineReq,
    StopWorkersReq,
    UncordonReq,
)
from events.traffic import HeartbeatNodeReq, RegisterNodeReq, WorkerFinishedReq
from schedulers.decide.messages import (
    Grace,
    Inbound,
    InventoryFailed,
    InventoryTaken,
    Launched,
    LaunchFailed,
    LaunchUncertain,
    LedRead,
    Queued,
    StopAnswered,
)
from schedulers.launcher import HostSeen, WorkerSeen


def split_command(command: str | list[str] | None) -> list[str]:
    """A command as an argument vector; a string is split like a shell's words.

    Raises Invalid where quotes don't close or nothing is left.
    """
    if command is None:
        return []
    if isinstance(command, list):
        words = command
    else:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise Invalid(
                f"can't be split into words: {error}", path="$.scheduler_config.command"
            ) from error
    if not words or not words[0]:
        raise Invalid("a command needs a program", path="$.scheduler_config.command")
    return words


_CAUSES: Final[dict[type[Inbound], tuple[str, str]]] = {
    StartPipelineReq: ("start", ""),
    StopWorkersReq: ("stop", ""),
    CordonReq: ("cordon", ""),
    UncordonReq: ("uncordon", ""),
    DrainReq: ("drain", ""),
    ConfirmDeadReq: ("confirm_dead", ""),
    RebuildReq: ("rebuild", ""),
    RegisterNodeReq: ("register", "node_id"),
    HeartbeatNodeReq: ("heartbeat", "node_id"),
    WorkerFinishedReq: ("finished", "worker_id"),
    InventoryTaken: ("inventory", "node_id"),
    InventoryFailed: ("inventory", "node_id"),
    Launched: ("launch", "worker_id"),
    LaunchFailed: ("launch", "worker_id"),
    LaunchUncertain: ("launch", "worker_id"),
    StopAnswered: ("signal", "worker_id"),
    WorkerSeen: ("seen", "worker_id"),
    HostSeen: ("host", "worker_id"),
    LedRead: ("leader", ""),
    Queued: ("queue", "sequence"),
    Grace: ("grace", "reason"),
}


def cause_of(message: Inbound, command_id: str) -> str:
    """What a record gives as its cause: one word and, where there is one, an id.
    ``command_id`` is "" for what is no command."""
    word, field = _CAUSES.get(type(message), ("timer", ""))
    who = getattr(message, field) if field else command_id
    return f"{word} {who}" if who else word
