"""The whole of the rules against a model: machines, a bad network, people, new leaders.

After every step the laws are audited over the log and compared with the process table; when
all is quiet at last, nothing may be owed and the accounts must be the process table.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.support.fleet import Fleet
from tests.support.machines import Machine

indexes = st.integers(0, 20)
jobs = st.sampled_from(["a", "b"])
oldest_or_any = st.just(0) | indexes
seldom = st.sampled_from([False, False, False, True])
leases = st.sampled_from([None, 5.0, 25.0, 40.0])
policies = st.fixed_dictionaries(
    {},
    optional={
        "on_failure": st.just("restart"),
        "on_lost": st.just("restart"),
        "on_drain": st.sampled_from(["move", "stop"]),
        "on_shortage": st.just("wait"),
        "priority": st.sampled_from([0, 5]),
    },
)
mostly = st.sampled_from([True, True, True, False])


class FleetMachine(RuleBasedStateMachine):
    """Hypothesis chooses the steps."""

    @initialize(slots=st.sampled_from([(4, 4), (3, 5, 2), (6,)]))
    def given_a_fleet(self, slots: tuple[int, ...]) -> None:
        self.fleet = Fleet(*slots)
        for machine in self.fleet.machines:
            self.fleet.speak(machine)
            self.fleet.deliver(machine)

    def at(self, index: int) -> Machine:
        return self.fleet.machines[index % len(self.fleet.machines)]

    # --- people ---

    @rule(
        job_id=jobs,
        slots=st.integers(1, 7),
        spread=st.sampled_from(["pack", "even"]),
        lease_s=leases,
        how=policies,
    )
    def start(
        self, job_id: str, slots: int, spread: str, lease_s: float | None, how: dict[str, Any]
    ) -> None:
        self.fleet.start(job_id, slots, spread, lease_s, **how)

    @rule(job_id=jobs, force=st.booleans())
    def stop(self, job_id: str, force: bool) -> None:
        self.fleet.stop(job_id, force=force)

    @rule(index=indexes)
    def repeat(self, index: int) -> None:
        self.fleet.repeat(index)

    @rule(index=indexes, on=seldom)
    def cordon(self, index: int, on: bool) -> None:
        self.fleet.cordon(self.at(index), on=on)

    @rule(index=indexes, force=seldom)
    def drain(self, index: int, force: bool) -> None:
        self.fleet.drain(self.at(index), force=force)

    @rule(index=indexes)
    def confirm_dead(self, index: int) -> None:
        self.fleet.confirm_dead(self.at(index))

    # --- the leader ---

    @rule()
    def take_over(self) -> None:
        self.fleet.take_over()

    @rule()
    def grace(self) -> None:
        self.fleet.grace()

    @rule(seconds=st.sampled_from([0.5, 3.0, 7.0, 12.0, 30.0, 30.001]))
    def pass_time(self, seconds: float) -> None:
        self.fleet.pass_time(seconds)

    @precondition(lambda self: self.fleet.underway)
    @rule(index=indexes)
    def retry(self, index: int) -> None:
        self.fleet.retry(index)

    @precondition(lambda self: self.fleet.underway)
    @rule(index=indexes)
    def give_up(self, index: int) -> None:
        self.fleet.give_up(index)

    # --- the network ---

    @precondition(lambda self: self.fleet.orders)
    @rule(index=oldest_or_any, again=seldom)
    def deliver_order(self, index: int, again: bool) -> None:
        self.fleet.deliver_order(index, again=again)

    @precondition(lambda self: self.fleet.orders)
    @rule(index=indexes)
    def lose_order(self, index: int) -> None:
        self.fleet.lose_order(index)

    @precondition(lambda self: self.fleet.answers)
    @rule(index=oldest_or_any)
    def deliver_answer(self, index: int) -> None:
        self.fleet.deliver_answer(index)

    @precondition(lambda self: self.fleet.answers)
    @rule(index=indexes)
    def lose_answer(self, index: int) -> None:
        self.fleet.lose_answer(index)

    @rule()
    def deliver_all(self) -> None:
        """A good moment: everything on its way arrives."""
        while self.fleet.orders:
            self.fleet.deliver_order(0)
        while self.fleet.answers:
            self.fleet.deliver_answer(0)

    @rule(index=indexes, again=seldom, answered=mostly)
    def deliver(self, index: int, again: bool, answered: bool) -> None:
        self.fleet.deliver(self.at(index), again=again, answered=answered)

    @rule(index=indexes)
    def lose(self, index: int) -> None:
        self.fleet.lose(self.at(index))

    @rule(index=indexes, up=mostly)
    def cut_or_mend(self, index: int, up: bool) -> None:
        self.at(index).up = up

    @rule(index=indexes)
    def silence(self, index: int) -> None:
        self.fleet.silence(self.at(index))

    # --- machines ---

    @rule(index=indexes, listed=mostly)
    def speak(self, index: int, listed: bool) -> None:
        self.fleet.speak(self.at(index), listed=listed)

    @rule(index=indexes, exit_code=st.sampled_from([0, 0, 1]))
    def end(self, index: int, exit_code: int) -> None:
        self.fleet.end(index, exit_code)

    @rule(index=indexes)
    def restart_agent(self, index: int) -> None:
        self.at(index).restart()

    @rule(index=indexes, wiped=st.booleans())
    def reboot(self, index: int, wiped: bool) -> None:
        self.at(index).reboot(wiped=wiped)

    @rule(index=indexes)
    def refuse_next(self, index: int) -> None:
        self.at(index).refuse_next = True

    # --- what must hold ---

    @invariant()
    def the_process_table_agrees(self) -> None:
        self.fleet.check()

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.settle()
            self.fleet.check_settled()


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
