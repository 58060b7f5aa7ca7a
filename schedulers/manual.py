"""The manual backend: a person starts and stops the workers; slotbus says how.

What lives here: the instructions, their launcher, and ``ManualScheduler``. What may not:
NATS, and processes.

What the words mean here: a worker is *launched*, and so ``running``, once its command was
handed to the person, whether or not they have run it. A stop is handed over too; the worker
is ``stopping`` and holds its slots until somebody reports its end (``worker_finished``, the
message of that name, or ``slotbus ended``). Nothing is ever concluded: a restart or a new
leader changes nothing about who runs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from events.errors import Invalid, TooLarge
from events.ids import MAX_INLINE_PROGRAM_BYTES
from events.log import EventLog, MemoryLog
from events.messages import StartPipelineReq
from events.traffic import AgentStopReply, InventoryReply, WorkerFinishedReq
from schedulers.decide import Rules
from schedulers.engine import Backend, Engine, EngineSettings, LocalNode
from schedulers.launcher import (
    Assignment,
    LaunchAck,
    LaunchDoubtful,
    LaunchRefused,
    StopOrder,
    Unreachable,
)
from schedulers.tracking import Tracking
from schedulers.variables import PROGRAM, fits_inline, variables_of

NODE: Final = "manual"
SLOTS_PER_WORKER: Final = 16
TASK_SLOTS: Final = 1_000
_TOO_LONG: Final = (
    f"a program of more than {MAX_INLINE_PROGRAM_BYTES} bytes can't be handed over on a command "
    "line: store it elsewhere and pass its address"
)


class StartInstruction(Struct, frozen=True, kw_only=True):
    """A person is to start a worker: ``command`` is a line for a shell, ``text`` all of it
    in words."""

    worker_id: str
    job_id: str
    run_id: int
    slots: int
    command: str
    text: str


class StopInstruction(Struct, frozen=True, kw_only=True):
    """A person is to stop a worker: TERM, and KILL ``grace_s`` seconds later."""

    worker_id: str
    grace_s: float
    text: str


Instruction: TypeAlias = StartInstruction | StopInstruction
Tell: TypeAlias = Callable[[Instruction], None]


def print_instruction(instruction: Instruction) -> None:
    """Writes its text to standard output, at once."""
    sys.stdout.write(instruction.text + "\n")
    sys.stdout.flush()


class ManualLauncher:
    """Implements ``schedulers.launcher.Launcher``, but can't list what runs."""

    def __init__(self, tell: Tell, incarnation: str = NODE) -> None:
        self._tell = tell
        self._tracking = Tracking(incarnation)

    async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
        """Hands a worker's command over, once. Raises LaunchRefused, Fenced; LaunchDoubtful
        where an earlier controller may have handed it over."""
        self._tracking.fence(assignment.incarnation, assignment.epoch)
        done = self._tracking.launched(assignment.worker_id)
        if done is not None:
            return done
        try:
            instruction = _start(assignment)
        except LaunchRefused as error:
            self._tracking.bury(assignment.worker_id)
            if assignment.stamp.epoch != assignment.epoch:
                raise LaunchDoubtful(error.message) from error
            raise
        ack = self._tracking.begin(assignment)
        self._tell(instruction)
        return ack

    async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
        """Asks the person to stop a worker. Raises Fenced.

        Never answers ``unknown``: an earlier controller may have handed its command over.
        """
        self._tracking.fence(order.incarnation, order.epoch)
        reply = self._tracking.stop(order.worker_id)
        if reply.state == "ended":
            return reply
        self._tell(_stop(order, sure=reply.state == "stopping"))
        return AgentStopReply(state="stopping", seq=reply.seq)

    async def inventory(
        self, node_id: str, incarnation: str, epoch: int, timeout_s: float
    ) -> InventoryReply:
        """Only raises the epoch. Raises Fenced, else Unreachable."""
        self._tracking.fence(incarnation, epoch)
        raise Unreachable("nobody can list what a person has started")

    def reports(self) -> AsyncIterator[WorkerFinishedReq]:
        """None: ends are reported to the engine. Lasts until ``close``."""
        return self._tracking.reports()

    async def acknowledge(self, node_id: str, worker_id: str) -> None:
        """The end of this worker, as somebody reported it, is in the log."""
        self._tracking.forget(node_id, worker_id)

    async def close(self) -> None:
        """What runs is the person's, and runs on."""
        self._tracking.close()


def _start(assignment: Assignment) -> StartInstruction:
    """Raises LaunchRefused."""
    words = assignment.command or assignment.default_command
    if not words:
        raise LaunchRefused("no worker command: neither the job nor this controller has one")
    if not fits_inline(assignment.program):
        raise LaunchRefused(_TOO_LONG)
    variables = {**variables_of(assignment), PROGRAM: bytes(assignment.program).decode()}
    given = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    command = " ".join(["env", *given, shlex.join(words)])
    worker_id = assignment.worker_id
    return StartInstruction(
        worker_id=worker_id,
        job_id=assignment.job_id,
        run_id=assignment.run_id,
        slots=assignment.slots,
        command=command,
        text=(
            f"# start worker {worker_id} of job {assignment.job_id}, run {assignment.run_id}, "
            f"with {assignment.slots} slots:\n{command}\n"
            f"# and when it has ended: slotbus ended {worker_id} --exit-code CODE"
        ),
    )


def _stop(order: StopOrder, *, sure: bool) -> StopInstruction:
    grace_s = 0.0 if order.force else order.grace_s
    how = f"TERM, after {grace_s:g} s KILL" if grace_s else "KILL"
    doubt = "" if sure else ", if you have started it"
    return StopInstruction(
        worker_id=order.worker_id,
        grace_s=grace_s,
        text=(
            f"# stop worker {order.worker_id} ({how}){doubt}; "
            f"then: slotbus ended {order.worker_id} --exit-code CODE"
        ),
    )


def check_manual(request: StartPipelineReq) -> None:
    """Refuses what a person can't be asked for. Raises Invalid, TooLarge."""
    if request.scheduler_config.stop_after_s is not None:
        raise Invalid(
            "nobody stops a worker by itself here: leave stop_after_s out",
            path="$.scheduler_config.stop_after_s",
        )
    if len(msgspec.json.encode(request.program)) > MAX_INLINE_PROGRAM_BYTES:
        raise TooLarge(_TOO_LONG, path="$.program", limit=MAX_INLINE_PROGRAM_BYTES, unit="bytes")


def manual_backend(tell: Tell = print_instruction, *, task_slots: int = TASK_SLOTS) -> Backend:
    """The manual backend; ``tell`` must not block for long, and not raise."""
    local = LocalNode(node_id=NODE, task_slots=task_slots, incarnation=NODE, listed=False)
    return Backend(name="manual", launcher=ManualLauncher(tell), local=local, check=check_manual)


def manual_rules(rules: Rules, slots_per_worker: int = SLOTS_PER_WORKER) -> Rules:
    """Rules as the manual backend needs them."""
    return msgspec.structs.replace(rules, per_worker=slots_per_worker, local_node=NODE)


class ManualScheduler(Engine):
    """Has a person run the workers, on a log in memory unless one is given.

    ``tell`` gets what is to be done; ``worker_finished`` is how ends become known (with
    ``node_id`` ``manual``). ``close`` stops nothing.
    """

    def __init__(
        self,
        tell: Tell = print_instruction,
        *,
        worker_command: list[str] | None = None,
        slots_per_worker: int = SLOTS_PER_WORKER,
        task_slots: int = TASK_SLOTS,
        log: EventLog | None = None,
        rules: Rules | None = None,
    ) -> None:
        rules = rules or Rules()
        if worker_command is not None:
            rules = msgspec.structs.replace(rules, worker_command=worker_command)
        super().__init__(
            manual_backend(tell, task_slots=task_slots),
            log or MemoryLog(),
            EngineSettings(rules=manual_rules(rules, slots_per_worker)),
        )

    async def worker_finished(self, request: WorkerFinishedReq) -> None:
        """Somebody saw a worker end. One of another node's changes nothing."""
        await self._command(request)

    async def close(self) -> None:
        """Ends this scheduler; the workers are the person's, and run on."""
        await super().close()
        if self.runs_here():
            await self.backend.launcher.close()
