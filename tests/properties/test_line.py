"""No start that waits is passed for ever: the rule of the line, as two invariants.

*No passing*: while a run waits that the nodes could hold, nothing is placed on them that would
stand behind it in the line. *No idling*: the first in line waits only while it lacks room. So
what keeps a run waiting is only ever a finite number of others: those that ran when it began
to wait, and those before it; when these have ended it is placed, however small and many those
behind it are.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from events.entities import Run
from events.facts import RunPlaced
from events.line import place_of
from events.messages import StartPipelineReq
from events.states import RunState
from schedulers.decide import Draft, Rules
from tests.support.story import Story, acknowledged, ended, launches, register, start

NODES = {"a1": (4, "a"), "a2": (3, "a"), "b1": (5, "b")}
STEPS = 40

selectors = st.sampled_from([{}, {}, {"zone": "a"}, {"zone": "b"}])


class Start(Struct, frozen=True):
    slots: int
    priority: int
    selector: dict[str, str]
    wait: bool


class End(Struct, frozen=True):
    """Of one of the runs that run."""

    index: int


steps = st.lists(
    st.builds(
        Start,
        slots=st.sampled_from([1, 1, 1, 2, 3, 7, 12, 13]),
        priority=st.sampled_from([0, 0, 0, 1]),
        selector=selectors,
        wait=st.booleans(),
    )
    | st.builds(End, index=st.integers(0, 20)),
    min_size=5,
    max_size=STEPS,
)


class World:
    """A fleet of two zones, on which runs begin and end."""

    def __init__(self) -> None:
        self.story = Story(Rules(expiry_s=1e6))
        for node_id, (slots, zone) in NODES.items():
            self.story.tell(register(node_id, slots, labels={"zone": zone}))
        self._made = 0

    def step(self, step: Start | End) -> None:
        if isinstance(step, Start):
            self._made += 1
            self.tell(
                start(
                    f"j{self._made}",
                    step.slots,
                    priority=step.priority,
                    selector=step.selector,
                    on_shortage="wait" if step.wait else "fail",
                )
            )
        else:
            running = self.running()
            if running:
                self.end(running[step.index % len(running)])

    def tell(self, message: StartPipelineReq) -> Draft:
        before = self.line()
        draft = self.story.tell(message)
        self.follow(draft, before)
        return draft

    def follow(self, draft: Draft, before: list[Run]) -> None:
        """All that was placed is launched; nothing that was placed has passed anybody."""
        for fact in draft.events:
            if isinstance(fact, RunPlaced):
                run = self.story.ledger.jobs[fact.job_id].run(fact.run_id)
                for waiting in before:
                    if waiting.state is RunState.WAITING:
                        assert not self._passes(run, waiting), (run, waiting)
        for order in launches(draft):
            self.story.tell(acknowledged(order))
        self._nobody_idles()

    def end(self, run: Run) -> None:
        for worker_id in list(run.workers):
            worker = self.story.ledger.workers[worker_id]
            before = self.line()
            draft = self.story.tell(ended(worker_id, worker.node_id, job_id=run.job_id))
            self.follow(draft, before)

    def running(self) -> list[Run]:
        runs = [run for job in self.story.ledger.jobs.values() for run in job.runs]
        return [run for run in runs if run.state is RunState.RUNNING]

    def line(self) -> list[Run]:
        ledger = self.story.ledger
        return [ledger.jobs[place[2]].run(place[3]) for place in ledger.waiting]

    def could_hold(self, run: Run) -> bool:
        return run.slots <= sum(NODES[node_id][0] for node_id in self.nodes_of(run))

    def nodes_of(self, run: Run) -> list[str]:
        zone = run.scheduler_config.selector.get("zone")
        return [node_id for node_id, (_, its) in NODES.items() if zone in (None, its)]

    def _passes(self, run: Run, waiting: Run) -> bool:
        behind = place_of(run) > place_of(waiting)
        workers = [self.story.ledger.workers[worker_id] for worker_id in run.workers]
        theirs = set(self.nodes_of(waiting))
        return behind and self.could_hold(waiting) and any(w.node_id in theirs for w in workers)

    def _nobody_idles(self) -> None:
        kept: set[str] = set()
        for run in self.line():
            if self.could_hold(run):
                mine = set(self.nodes_of(run))
                free = sum(self.story.free(node_id) for node_id in mine - kept)
                assert free < run.slots, f"{run.job_id} could be placed"
                kept |= mine


@settings(max_examples=300, deadline=None)
@given(steps)
def test_nothing_passes_what_waits_and_nobody_waits_without_need(made: list[Start | End]) -> None:
    world = World()
    for step in made:
        world.step(step)
    world.story.check()


@settings(max_examples=100, deadline=None)
@given(steps, st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_a_large_start_is_placed_whatever_small_ones_come(
    made: list[Start | End], order: list[int]
) -> None:
    world = World()
    for step in made:
        world.step(step)
    draft = world.tell(start("large", 12, priority=1, on_shortage="wait"))
    large = world.story.ledger.jobs["large"].run(1)
    ends = 0
    while large.state is RunState.WAITING:
        running = world.running()
        assert running, draft.events
        world.end(running[order[ends % len(order)] % len(running)])
        for _ in range(3):  # three new ones for each that ends
            world.step(Start(slots=1, priority=0, selector={}, wait=True))
            world.step(Start(slots=1, priority=1, selector={}, wait=False))
        ends += 1
        assert ends <= 12 + STEPS, "it is starved"
    world.story.check()
