"""A model fleet: machines, a network that delays, doubles and loses, and the leader between.

What lives here: single steps that a test combines at will, what must hold after each, and
what must hold when all is quiet. What may not: choosing the steps, asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from events.errors import SlotbusError
from events.facts import CommandDone, NodeReturned, WorkerStopping
from events.messages import (
    ConfirmDeadReq,
    CordonReq,
    DrainReq,
    StartPipelineReq,
    StopWorkersReq,
    UncordonReq,
)
from events.policies import Restarting
from events.states import NodeState, RunState, WorkerState
from events.traffic import FinishedReply, HeartbeatReply, RegisterReply
from schedulers.decide import Draft, Rules, next_due
from schedulers.decide.messages import (
    Effect,
    Grace,
    Inbound,
    InventoryFailed,
    Launch,
    LaunchUncertain,
    NodeTraffic,
    Stop,
    TakeInventory,
    Tick,
)
from tests.support.machines import Machine, Process
from tests.support.orders import Answer, Order, carried_out, key_of, node_of, outcome_of, replaces
from tests.support.story import Story, config

RULES = Rules(
    start_timeout_s=30.0,
    stop_timeout_s=20.0,
    rollback_grace_s=5.0,
    remembered_commands=6,
    remembered_runs=2,
    remembered_jobs=2,
    restart=Restarting(first_s=1.0, longest_s=8.0, limit=2, window_s=200.0, quiet_s=25.0),
)
QUIET_ROUNDS = 60
ROUND_S = 3.0


class Said(Struct, frozen=True):
    """What a node said, and when: its leases count from there, if it is answered."""

    message: NodeTraffic
    sent_at: datetime


class Fleet:
    """Each public method is one step of one participant."""

    def __init__(self, *slots: int) -> None:
        self.story = Story(RULES)
        self.machines = [Machine(f"n{i}", s, self.story.now) for i, s in enumerate(slots, start=1)]
        self.outboxes: dict[str, list[Said]] = {m.node_id: [] for m in self.machines}
        self.orders: list[Order] = []
        self.answers: list[Answer] = []
        self.underway: dict[str, Effect] = {}
        self.commands: list[StartPipelineReq | StopWorkersReq] = []
        self._made = 0

    # --- people -------------------------------------------------------------------------

    def start(
        self,
        job_id: str,
        slots: int,
        spread: str = "pack",
        lease_s: float | None = None,
        **how: Any,
    ) -> None:
        """``how``: the policy, and what happens where slots are missing."""
        self._command(
            StartPipelineReq(
                job_id=job_id,
                slots=slots,
                command_id=self._command_id(),
                scheduler_config=config(spread=spread, stop_after_s=lease_s),
                **how,
            )
        )

    def stop(self, job_id: str, *, force: bool = False) -> None:
        self._command(StopWorkersReq(job_id=job_id, force=force, command_id=self._command_id()))

    def repeat(self, index: int) -> None:
        """A client sends one of its last commands again."""
        if self.commands:
            self._tell(self.commands[-1 - index % min(len(self.commands), 4)])

    def cordon(self, machine: Machine, *, on: bool) -> None:
        self._tell((CordonReq if on else UncordonReq)(node_id=machine.node_id))

    def drain(self, machine: Machine, *, force: bool = False, deadline_s: float = 40.0) -> None:
        self._tell(DrainReq(node_id=machine.node_id, force=force, deadline_s=deadline_s))

    def confirm_dead(self, machine: Machine) -> None:
        """Somebody pulls the plug, and says so; a node that has not expired is refused."""
        machine.up = False
        machine.reboot(wiped=False)
        self._tell(ConfirmDeadReq(node_id=machine.node_id))

    # --- the leader and its dispatcher --------------------------------------------------

    def take_over(self) -> None:
        """The leader is gone with all it had under way; what it sent may still arrive."""
        self.underway.clear()
        self._carry_out(self.story.lead())

    def grace(self) -> None:
        self._tell(Grace("test"))

    def pass_time(self, seconds: float) -> None:
        self.story.now += timedelta(seconds=seconds)
        for machine in self.machines:
            machine.pass_time(self.story.now)
        due = next_due(self.story.ledger, self.story.pulse)
        if due is not None and due < self.story.now:
            self._tell(Tick())

    def retry(self, index: int) -> None:
        """The dispatcher had no answer and tries again, or sees that it need not."""
        key = _pick(list(self.underway), index)
        if key is not None:
            if isinstance(self.underway[key], TakeInventory):
                self.give_up(index)
            elif self._wants(self.underway[key]):
                self.orders.append(Order(self.story.epoch, self.underway[key]))
            else:
                del self.underway[key]

    def give_up(self, index: int) -> None:
        """The dispatcher had no answer for long."""
        key = _pick(list(self.underway), index)
        if key is None:
            return
        match self.underway[key]:
            case Launch(assignment=assignment) as effect:
                del self.underway[key]
                if self._wants(effect):
                    self._tell(LaunchUncertain(assignment.worker_id, "no answer"))
            case TakeInventory(node_id=node_id):
                del self.underway[key]
                self._tell(InventoryFailed(node_id, "no answer"))
            case _:
                pass

    # --- the network --------------------------------------------------------------------

    def deliver_order(self, index: int, *, again: bool = False) -> None:
        """An order reaches its node (if that is up), which answers. ``again``: a copy stays
        on its way."""
        if not self.orders:
            return
        order = self.orders[index % len(self.orders)]
        if not again:
            self.orders.remove(order)
        machine = self.machine(node_of(order.effect))
        if machine.up:
            self.answers.append(Answer(order, carried_out(machine, order.effect)))

    def lose_order(self, index: int) -> None:
        if self.orders:
            self.orders.pop(index % len(self.orders))

    def deliver_answer(self, index: int) -> None:
        if not self.answers:
            return
        answer = self.answers.pop(index % len(self.answers))
        effect = answer.order.effect
        key = key_of(effect)
        if answer.order.epoch == self.story.epoch and self.underway.get(key) is effect:
            del self.underway[key]
            outcome = outcome_of(effect, answer.reply)
            if outcome is not None:
                self._tell(outcome)

    def lose_answer(self, index: int) -> None:
        if self.answers:
            self.answers.pop(index % len(self.answers))

    def deliver(self, machine: Machine, *, again: bool = False, answered: bool = True) -> None:
        """The oldest message of a node reaches the leader. ``again``: a copy comes later;
        not ``answered``: the leader's answer is lost."""
        box = self.outboxes[machine.node_id]
        if not box or not machine.up:
            return
        said = box.pop(0)
        if again:
            box.append(said)
        draft = self._tell(said.message)
        if answered and draft.answer is not None:
            _hear(machine, said, draft.answer)

    def lose(self, machine: Machine) -> None:
        if self.outboxes[machine.node_id]:
            self.outboxes[machine.node_id].pop(0)

    # --- machines -----------------------------------------------------------------------

    def speak(self, machine: Machine, *, listed: bool = True) -> None:
        """The agent registers, or beats; and reports the ends that wait."""
        box = self.outboxes[machine.node_id]
        beat = machine.heartbeat() if machine.registered else machine.registration(listed=listed)
        box.append(Said(beat, machine.now))
        if machine.registered:
            for process in machine.ended():
                report = machine.report(process)
                if report not in [said.message for said in box]:
                    box.append(Said(report, machine.now))

    def silence(self, machine: Machine) -> None:
        """A node is cut off until it has expired, while the others go on beating."""
        machine.up = False
        for _ in range(4):
            self.pass_time(8.0)
            for other in self.machines:
                if other.up:
                    self.speak(other)
                    while self.outboxes[other.node_id]:
                        self.deliver(other)

    def end(self, index: int, exit_code: int) -> None:
        """A process exits, by itself or as it was asked to."""
        alive = [(m, p) for m in self.machines for p in m.alive()]
        if alive:
            machine, process = alive[index % len(alive)]
            machine.end(process, exit_code)

    # --- what must hold -----------------------------------------------------------------

    def check(self) -> None:
        """After every step: the process table against the ledger."""
        workers = self.story.ledger.workers
        for machine, process in self.processes():
            worker = workers.get(process.worker_id)
            assert worker is not None, f"{process.worker_id} lives, and the ledger forgot it"
            assert not worker.gone, f"{process.worker_id} lives, and its end is in the log"
            assert worker.node_id == machine.node_id
        for job in self.story.ledger.jobs.values():
            for run in job.runs:
                assert sum(workers[w].slots for w in run.workers if workers[w].serves) <= run.slots
        self._check_alone()
        homes = [worker_id for machine in self.machines for worker_id in machine.spawned]
        assert len(homes) == len(set(homes)), "a worker id was spawned on two machines"

    def _check_alone(self) -> None:
        """What began by itself has no older copy of its job beside it, wherever that is."""
        alive: dict[str, set[int]] = {}
        for _, process in self.processes():
            alive.setdefault(process.job_id, set()).add(process.run_id)
        for job_id, runs in alive.items():
            newest = self.story.ledger.jobs[job_id].run(max(runs))
            assert newest.restart_of is None or len(runs) == 1, f"{job_id}: {runs} live"

    def settle(self) -> None:
        """Everything gets through, and enough time passes for every deadline."""
        for machine in self.machines:
            machine.up, machine.refuse_next = True, False
        for _ in range(QUIET_ROUNDS):
            for machine in self.machines:
                self.speak(machine)
                while self.outboxes[machine.node_id]:
                    self.deliver(machine)
                for process in machine.alive():
                    if process.state is WorkerState.STOPPING:
                        machine.end(process, 0)
            while self.orders:
                self.deliver_order(0)
            while self.answers:
                self.deliver_answer(0)
            for index in range(len(self.underway)):
                self.retry(index)  # what was lost before things became quiet
            self.check()
            self.pass_time(ROUND_S)

    def check_settled(self) -> None:
        """When all is quiet: nothing is owed, and the accounts are the process table."""
        ledger = self.story.ledger
        in_line = [ledger.jobs[place[2]].run(place[3]) for place in ledger.waiting]
        owed = ledger.pending.keys() - {run.command_id for run in in_line}
        assert not owed, f"no outcome: {sorted(owed)}"
        for run in in_line[:1]:  # with no selectors the first keeps all from the others
            assert run.not_before is None
            assert ledger.capacity.free < run.slots or ledger.capacity.registered < run.slots
        assert not ledger.draining
        assert not ledger.moving
        assert not ledger.leases
        alive = {process.worker_id for _, process in self.processes()}
        live = {worker.worker_id for worker in ledger.workers.values() if not worker.gone}
        assert alive == live, f"only processes: {alive - live}, only in the ledger: {live - alive}"
        for machine in self.machines:
            node = ledger.nodes[machine.node_id]
            assert node.state in (NodeState.READY, NodeState.CORDONED)
            used = sum(process.slots for process in machine.alive())
            assert ledger.free_slots(machine.node_id) == machine.slots - used
        runs = {(process.job_id, process.run_id) for _, process in self.processes()}
        assert len({job_id for job_id, _ in runs}) == len(runs), f"two runs of a job: {runs}"
        for job in ledger.jobs.values():
            for run in job.runs:
                waits = run.state is RunState.WAITING
                assert run.ended or waits or run.state is RunState.RUNNING, run
                assert (run.ended or waits) == ((job.job_id, run.run_id) not in runs)
        self.story.check()

    def processes(self) -> Iterator[tuple[Machine, Process]]:
        for machine in self.machines:
            for process in machine.alive():
                yield machine, process

    def machine(self, node_id: str) -> Machine:
        return next(m for m in self.machines if m.node_id == node_id)

    # --- inside -------------------------------------------------------------------------

    def _command_id(self) -> str:
        self._made += 1
        return f"c{self._made}"

    def _command(self, command: StartPipelineReq | StopWorkersReq) -> None:
        self.commands.append(command)
        self._tell(command)

    def _tell(self, message: Inbound) -> Draft:
        draft = self.story.tell(message)
        for fact in draft.events:
            if isinstance(fact, NodeReturned):
                self._nothing_stays_on_its_way(fact.node_id)
            if isinstance(fact, CommandDone) and not fact.ok:
                self._check_failed(fact)
            if isinstance(fact, WorkerStopping):
                self._check_stopping(fact)
        self._carry_out(draft)
        return draft

    def _nothing_stays_on_its_way(self, node_id: str) -> None:
        """What NATS was given for a node before its silence has reached it or is lost by the
        time it is heard again: a connection keeps its order, and nothing is stored."""
        self.orders = [order for order in self.orders if node_of(order.effect) != node_id]

    def _check_failed(self, fact: CommandDone) -> None:
        """Law 6 in the process table: what a failed start leaves behind."""
        unconfirmed = fact.reply["error"].get("unconfirmed", [])
        for machine, process in self.processes():
            worker = self.story.ledger.workers[process.worker_id]
            run = self.story.ledger.run_of(worker)
            if run.command_id == fact.command_id and worker.worker_id not in unconfirmed:
                assert self.story.ledger.nodes[machine.node_id].expired

    def _check_stopping(self, fact: WorkerStopping) -> None:
        """Nobody stops a worker that is known to run, unless its whole run is over."""
        worker = self.story.ledger.workers[fact.worker_id]
        run = self.story.ledger.run_of(worker)
        assert not worker.launched or run.ended or run.state is RunState.STOPPING, fact

    def _carry_out(self, draft: Draft) -> None:
        for effect in draft.effects:
            if isinstance(effect, (Launch, Stop, TakeInventory)):
                key = key_of(effect)
                before = self.underway.get(key)
                if before is None or replaces(effect, before):
                    self.underway[key] = effect
                    self.orders.append(Order(self.story.epoch, effect))

    def _wants(self, effect: Effect) -> bool:
        ledger = self.story.ledger
        match effect:
            case Launch(assignment=assignment):
                worker = ledger.workers.get(assignment.worker_id)
                return worker is not None and worker.state is WorkerState.ASSIGNED
            case Stop(order=order, orphan=orphan):
                worker, node = ledger.workers.get(order.worker_id), ledger.nodes.get(order.node_id)
                here = node is not None and not node.expired
                return here and (worker is None or not worker.gone or orphan)
            case _:
                return True


def _pick(keys: list[str], index: int) -> str | None:
    return keys[index % len(keys)] if keys else None


def _hear(machine: Machine, said: Said, answer: object) -> None:
    """What an agent makes of the answer to what it said."""
    message = said.message
    incarnation = getattr(message, "incarnation", machine.incarnation)
    if incarnation != machine.incarnation:
        return
    match answer:
        case RegisterReply(epoch=epoch):
            if machine.hear(epoch):
                machine.registered = True
                machine.renew(said.sent_at)
        case HeartbeatReply(epoch=epoch):
            if machine.hear(epoch):
                machine.renew(said.sent_at)
        case FinishedReply(epoch=epoch):
            if machine.hear(epoch):
                machine.acknowledge(getattr(message, "worker_id", ""))
        case SlotbusError():
            machine.registered = False
        case _:
            pass
