"""From a seed to a story: who takes part, what they do, and what goes wrong.

What lives here: how often each kind happens, and within which bounds. What may not: what the
kinds mean (``workload``, ``troubles``).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.story import Action, Setup, Story

LENGTHS_S: Final = [30.0, 60.0, 120.0]
CHAOS: Final = [0.0, 0.3, 1.0, 1.0, 2.5, 2.5]
"""How much goes wrong, from nothing to nearly everything."""

OFTEN: Final = [0.0, 0.0, 1.0, 1.0, 5.0]
"""How much a kind of fault is favoured in one story: most do better with some kinds only."""

POLICIES: Final = {
    "on_shortage": ["fail", "wait", "wait"],
    "on_failure": ["report", "restart"],
    "on_lost": ["report", "restart", "restart"],
    "on_drain": ["move", "stop"],
}
HURRY: Final = [0.5, 1.0, 3.0]
FLEETS: Final = [[4, 4], [3, 5, 2], [6], [2, 2, 2]]
JOBS: Final = "abc"
GOOD_EVERY_S: Final = 2.0
BAD_EVERY_S: Final = 4.0
SETTLING_S: Final = 2.0
"""Nothing happens before the first leader leads."""

Draw = Callable[["Drawer", float], Action | list[Action]]


class Kind(Struct, frozen=True):
    """``weight``: how often, compared with the others."""

    weight: float
    draw: Draw


class Drawer:
    """What one story's kinds draw from."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"story {seed}")
        self.seed = seed
        fleet = self.rng.choice(FLEETS)
        self.setup = Setup(
            controllers=self.rng.choice([1, 2, 2, 2, 3]),
            slots=fleet,
            lease_ttl_s=self.rng.choice([2, 4, 4, 12]),
        )
        self.length_s = self.rng.choice(LENGTHS_S)
        self.chaos = self.rng.choice(CHAOS)
        self.joined = 0
        self.often = {kind: self.rng.choice(OFTEN) for kind in range(len(BAD))}
        self.hurry = self.rng.choice(HURRY)

    def story(self) -> Story:
        actions = self.series(GOOD, GOOD_EVERY_S / self.hurry)
        bad = [Kind(kind.weight * self.often[at], kind.draw) for at, kind in enumerate(BAD)]
        if self.chaos and any(kind.weight for kind in bad):
            actions += self.series(bad, BAD_EVERY_S / self.chaos)
        actions.sort(key=lambda action: action.at)
        return Story(seed=self.seed, setup=self.setup, length_s=self.length_s, actions=actions)

    def series(self, kinds: list[Kind], every_s: float) -> list[Action]:
        weights = [kind.weight for kind in kinds]
        at = SETTLING_S
        actions: list[Action] = []
        while True:
            at += self.rng.expovariate(1 / every_s)
            if at > self.length_s:
                return actions
            (kind,) = self.rng.choices(kinds, weights)
            drawn = kind.draw(self, round(at, 3))
            actions += drawn if isinstance(drawn, list) else [drawn]

    # --- what kinds draw ----------------------------------------------------------------

    def node(self) -> str:
        return f"n{self.rng.randint(1, len(self.setup.slots) + self.joined)}"

    def controller(self) -> str:
        return f"c{self.rng.randint(1, self.setup.controllers)}"

    def anybody(self) -> str:
        return self.rng.choice([self.node, self.controller])()

    def job(self) -> str:
        return self.rng.choice(JOBS)

    def seconds(self, *some: float) -> float:
        return round(self.rng.choice(some) * self.rng.uniform(0.7, 1.3), 3)

    def new_node(self) -> str:
        self.joined += 1
        return f"n{len(self.setup.slots) + self.joined}"

    def likely(self, p: float) -> bool:
        return self.rng.random() < p

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)


def _start(d: Drawer, at: float) -> Action:
    wait_s = d.rng.choice([0.0, 2.0, 8.0, 20.0])
    return Action(at=at, kind="start", job=d.job(), n=d.number(1, 7), s=wait_s, on=d.likely(0.3))


def _stop(d: Drawer, at: float) -> Action:
    return Action(
        at=at,
        kind="stop",
        job=d.job(),
        on=d.likely(0.3),
        s=d.rng.choice([0.0, 1.0, 4.0]),
        more={"queued": "yes"} if d.likely(0.15) else {},
    )


def _cordon(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="cordon", who=d.node(), on=d.likely(0.4))


def _drain(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="drain", who=d.node(), s=d.seconds(3.0, 15.0), on=d.likely(0.3))


def _exits(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="exits", n=d.number(0, 20), on=d.likely(0.4))


def _join(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="join", who=d.new_node(), n=d.number(1, 5))


GOOD: Final = [
    Kind(6, _start),
    Kind(3, _stop),
    Kind(1, _cordon),
    Kind(0.5, _drain),
    Kind(1, lambda d, at: Action(at=at, kind="repeat", n=d.number(0, 5))),
    Kind(3, _exits),
    Kind(0.2, _join),
]


def _kill(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="kill", who=d.anybody(), s=d.seconds(0.3, 2.0, 12.0))


def _freeze(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="freeze", who=d.anybody(), s=d.seconds(0.3, 3.0, 6.0, 15.0))


def _freeze_supervisor(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="freeze_supervisor", who=d.node(), s=d.seconds(0.5, 5.0, 20.0))


def _power_off(d: Drawer, at: float) -> list[Action]:
    node, away_s = d.node(), d.seconds(1.0, 5.0, 20.0)
    off = Action(at=at, kind="power_off", who=node, s=away_s, on=d.likely(0.3))
    looked = Action(at=at + away_s * 0.8, kind="confirm_dead", who=node)
    return [off, looked] if d.likely(0.5) else [off]


def _cut(d: Drawer, at: float) -> Action:
    return Action(
        at=at,
        kind="cut",
        who=d.anybody(),
        s=d.seconds(0.5, 4.0, 12.0, 30.0),
        on=d.likely(0.6),
        n=d.rng.choice([0, 0, 1, 2]),
    )


def _reconnect(d: Drawer, at: float) -> Action:
    return Action(
        at=at, kind="reconnect", who=d.anybody(), s=d.seconds(0.1, 1.0), p=d.seconds(0.5, 4.0)
    )


def _server_crash(d: Drawer, at: float) -> Action:
    return Action(at=at, kind="server_crash", n=d.number(1, 4), s=d.seconds(0.5, 4.0))


def _weather(d: Drawer, at: float) -> Action:
    kind = d.rng.choice(["slow", "loss", "twice", "acks", "disk"])
    most = {"slow": 3.0, "loss": 0.4, "twice": 0.4, "acks": 0.8, "disk": 4.0}[kind]
    return Action(
        at=at,
        kind="weather",
        who=kind,
        p=round(d.rng.uniform(0.05, most), 3),
        s=d.seconds(2.0, 6.0, 15.0),
    )


def _program(d: Drawer, at: float) -> Action:
    return Action(
        at=at,
        kind="program",
        who=d.rng.choice(["deaf", "missing", "stuck", "brief"]),
        job=d.job(),
        s=d.seconds(5.0, 20.0),
    )


def _brief(d: Drawer, at: float) -> list[Action]:
    """Workers that end at once, while messages come twice."""
    job = d.job()
    return [
        Action(at=at, kind="program", who="brief", job=job, s=4.0),
        Action(at=at, kind="weather", who="twice", p=0.5, s=4.0),
        *(_later(d, at + 0.2 + step, "start", job) for step in (0.0, 0.8, 1.6)),
    ]


def _late_append(d: Drawer, at: float) -> list[Action]:
    """A leader that is cut off while it writes, and heard again after the next one leads."""
    ttl_s = d.setup.lease_ttl_s
    return [
        Action(at=at, kind="cut", who=d.controller(), s=ttl_s + 2.0, on=True, n=1),
        *(_later(d, at + 0.1 + step, "start", d.job()) for step in (0.0, 0.3)),
        _later(d, at + ttl_s + 1.0, "start", d.job()),
    ]


def _late_inventory(d: Drawer, at: float) -> list[Action]:
    """A node whose last words to a new leader are slow to come."""
    return [
        Action(at=at, kind="reconnect", who=d.node(), s=0.6, p=2.5),
        Action(at=at + 0.05, kind="terminate", who=d.controller()),
        *(_later(d, at + step, "start", d.job()) for step in (0.9, 1.2)),
    ]


def _later(d: Drawer, at: float, kind: str, job: str) -> Action:
    return Action(at=round(at, 3), kind=kind, job=job, n=d.number(1, 3), s=8.0)


def _clock_step(d: Drawer, at: float) -> Action:
    step_s = d.rng.choice([-3600.0, -30.0, 30.0, 3600.0])
    return Action(at=at, kind="clock_step", who=d.anybody(), p=step_s)


BAD: Final = [
    Kind(3, _kill),
    Kind(1, lambda d, at: Action(at=at, kind="terminate", who=d.anybody())),
    Kind(3, _freeze),
    Kind(1, lambda d, at: Action(at=at, kind="kill_supervisor", who=d.node())),
    Kind(1, _freeze_supervisor),
    Kind(1, _power_off),
    Kind(3, _cut),
    Kind(2, _reconnect),
    Kind(1, lambda d, at: Action(at=at, kind="server_restart", s=d.seconds(0.2, 2.0, 8.0))),
    Kind(0.5, lambda d, at: Action(at=at, kind="server_freeze", s=d.seconds(0.5, 3.0, 8.0))),
    Kind(0.1, _server_crash),
    Kind(4, _weather),
    Kind(0.5, _brief),
    Kind(0.5, _late_append),
    Kind(0.5, _late_inventory),
    Kind(1, _clock_step),
    Kind(1, _program),
    Kind(1, lambda d, at: Action(at=at, kind="refuse", who=d.node(), n=d.number(1, 3))),
    Kind(0.5, lambda d, at: Action(at=at, kind="bystander", who=d.node(), n=d.number(1, 3))),
]


def _late_order(d: Drawer, at: float) -> list[Action]:
    """A leader repeats an order to a frozen node, is cut off, and heard again too late."""
    ttl_s = d.setup.lease_ttl_s
    return [
        *(Action(at=at, kind="freeze", who=f"n{n}", s=3.5) for n in (1, 2)),
        *(_later(d, at + 0.1 + step / 5, "start", job) for step, job in enumerate("ab")),
        Action(at=at + 0.6, kind="cut", who=d.controller(), s=ttl_s + 3.0, on=True, n=1),
    ]


def _late_again(d: Drawer, at: float) -> list[Action]:
    """An order that is repeated to a frozen node comes once more when all is over."""
    job = d.job()
    return [
        Action(at=at, kind="program", who="brief", job=job, s=8.0),
        *(Action(at=at, kind="freeze", who=f"n{n}", s=3.5) for n in (1, 2)),
        _later(d, at + 0.1, "start", job),
        *(Action(at=at + 2.9, kind="reconnect", who=who, s=0.6, p=2.0) for who in ("c1", "c2")),
    ]


def _late_list(d: Drawer, at: float) -> list[Action]:
    """What a new node says comes twice, and a start has waited for it."""
    node = d.new_node()
    return [
        Action(at=at, kind="weather", who="twice", p=0.8, s=4.0),
        replace(_later(d, at + 0.1, "start", f"all-{node}"), n=8),
        replace(_later(d, at + 0.2, "start", node), n=5, more={"on_shortage": "wait"}),
        Action(at=at + 0.5, kind="join", who=node, n=5),
    ]


def _half_a_start(d: Drawer, at: float) -> list[Action]:
    """Some workers of a start can be launched, and some nowhere."""
    start = _later(d, at + 0.1, "start", d.job())
    return [Action(at=at, kind="refuse", who=d.node(), n=4), replace(start, n=7)]


def _frozen_start(d: Drawer, at: float) -> list[Action]:
    """A node hears of a start when nobody waits for its answer any more."""
    return [
        Action(at=at, kind="freeze", who=d.node(), s=d.seconds(6.0)),
        *(_later(d, at + 0.1 + step, "start", job) for step, job in enumerate("abc")),
    ]


MOTIFS: Final[dict[str, Draw]] = {
    motif.__name__.removeprefix("_"): motif
    for motif in (
        *(_brief, _late_append, _late_inventory, _late_order, _half_a_start),
        *(_frozen_start, _late_list, _late_again),
    )
}
"""What goes wrong in stories that are all about one thing."""

MOTIF_EVERY_S: Final = 8.0


def draw(seed: int) -> Story:
    """The story of a seed."""
    return Drawer(seed).story()


def draw_about(seed: int, motif: str) -> Story:
    """A story in which one thing goes wrong again and again."""
    drawer = Drawer(seed)
    drawer.setup = replace(drawer.setup, controllers=2, lease_ttl_s=4, slots=[4, 4])
    drawer.length_s = 60.0
    actions = drawer.series(GOOD, 4 * GOOD_EVERY_S)
    actions += drawer.series([Kind(1, MOTIFS[motif])], MOTIF_EVERY_S)
    actions.sort(key=lambda action: action.at)
    return Story(seed=seed, setup=drawer.setup, length_s=drawer.length_s, actions=actions)
