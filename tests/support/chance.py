"""Chance: steps of a model fleet drawn by weights, the same ones for the same seed.

What lives here: how likely each step is, from calm to chaos. What may not: what a step does
(``tests.support.fleet``). Hypothesis finds and shrinks odd corners; this goes far into long
and busy stories, many times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec import Struct

from tests.support.fleet import Fleet
from tests.support.machines import Machine

FLEETS = [(4, 4), (3, 5, 2), (6,)]
LENGTHS = [20, 60, 150, 300]
CHAOS = [0.1, 0.3, 1.0]


class Step(Struct, frozen=True):
    """``weight``: how often, compared with the others."""

    weight: float
    take: Callable[[], None]


class Chance:
    """One story: a fleet, and a seed that says everything else."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.fleet = Fleet(*self._random.choice(FLEETS))
        self._length = self._random.choice(LENGTHS)
        self._chaos = self._random.choice(CHAOS)
        self._steps = self._good() + self._bad()
        self._weights = [step.weight for step in self._steps]

    def tell(self) -> None:
        """All steps with all checks, then peace with all checks."""
        for machine in self.fleet.machines:
            self.fleet.speak(machine)
            self.fleet.deliver(machine)
        for _ in range(self._length):
            (step,) = self._random.choices(self._steps, self._weights)
            step.take()
            self.fleet.check()
        self.fleet.settle()
        self.fleet.check_settled()

    def _good(self) -> list[Step]:
        fleet, chance, pick = self.fleet, self._chance, self._index
        return [
            Step(3, self._start),
            Step(1, lambda: fleet.stop(self._job(), force=chance(0.5))),
            Step(3, lambda: fleet.pass_time(self._random.choice([0.5, 1.0, 3.0, 7.0, 12.0]))),
            Step(12, lambda: fleet.deliver_order(pick(), again=chance(0.15 * self._chaos))),
            Step(12, lambda: fleet.deliver_answer(pick())),
            Step(14, self._deliver),
            Step(9, lambda: fleet.speak(self._machine(), listed=chance(0.7))),
            Step(3, lambda: fleet.end(pick(), self._random.choice([0, 1, 1]))),
            Step(0.6, lambda: fleet.drain(self._machine(), force=chance(0.3))),
            Step(0.3, lambda: fleet.cordon(self._machine(), on=False)),
            Step(3, self._mend),
        ]

    def _bad(self) -> list[Step]:
        fleet, chance, pick = self.fleet, self._chance, self._index
        often: list[tuple[float, Callable[[], None]]] = [
            (0.5, lambda: fleet.repeat(pick())),
            (0.7, lambda: fleet.cordon(self._machine(), on=chance(0.3))),
            (0.3, lambda: fleet.confirm_dead(self._machine())),
            (1.0, fleet.take_over),
            (0.5, fleet.grace),
            (4.0, lambda: fleet.retry(pick())),
            (2.0, lambda: fleet.give_up(pick())),
            (2.0, lambda: fleet.lose_order(pick())),
            (2.0, lambda: fleet.lose_answer(pick())),
            (1.0, lambda: fleet.lose(self._machine())),
            (1.5, self._cut),
            (0.8, lambda: fleet.silence(self._machine())),
            (1.5, lambda: self._machine().restart()),
            (0.7, lambda: self._machine().reboot(wiped=chance(0.4))),
            (1.5, self._refuse_next),
        ]
        return [Step(weight * self._chaos, take) for weight, take in often]

    def _start(self) -> None:
        pick = self._random.choice
        self.fleet.start(
            self._job(),
            self._random.randint(1, 5),
            pick(["pack", "even"]),
            pick([None, 5.0, 25.0, 40.0]),
            on_failure=pick(["report", "restart"]),
            on_lost=pick(["report", "restart"]),
            on_drain=pick([None, "move", "stop"]),
            on_shortage=pick(["fail", "wait"]),
            priority=pick([0, 0, 0, 5]),
        )

    def _deliver(self) -> None:
        again, answered = self._chance(0.1 * self._chaos), self._chance(1 - 0.1 * self._chaos)
        self.fleet.deliver(self._machine(), again=again, answered=answered)

    def _mend(self) -> None:
        down = [machine for machine in self.fleet.machines if not machine.up]
        if down:
            self._random.choice(down).up = True

    def _cut(self) -> None:
        self._machine().up = False

    def _refuse_next(self) -> None:
        self._machine().refuse_next = True

    def _machine(self) -> Machine:
        return self._random.choice(self.fleet.machines)

    def _job(self) -> str:
        return self._random.choice("ab")

    def _index(self) -> int:
        """Mostly the oldest."""
        return self._random.choice([0, self._random.randrange(100)])

    def _chance(self, likelihood: float) -> bool:
        return self._random.random() < likelihood
