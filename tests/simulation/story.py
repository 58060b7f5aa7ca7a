"""Stories as data: who takes part, and what happens when.

What lives here: the structs that a seed becomes, that shrinking shortens, and that regressions
are kept as. What may not: drawing them (``drawing``), telling them (``world``).
"""

from __future__ import annotations

from msgspec import Struct, field


class Setup(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Who takes part, and the settings of all. Times in seconds."""

    controllers: int = 2
    slots: list[int] = field(default_factory=lambda: [4, 4])
    lease_ttl_s: int = 4
    heartbeat_s: float = 1.0
    expiry_s: float = 8.0
    start_timeout_s: float = 10.0
    launch_timeout_s: float = 4.0
    stop_timeout_s: float = 6.0


class Action(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Something that happens ``at`` so many seconds after the beginning. What the other
    fields mean is said by the kind (``workload``, ``troubles``)."""

    at: float
    kind: str
    who: str = ""
    job: str = ""
    n: int = 0
    s: float = 0.0
    p: float = 0.0
    on: bool = False
    more: dict[str, str | float] = {}


class Story(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """``seed``: of everything that actions don't say. ``length_s``: then all is mended."""

    seed: int
    setup: Setup = Setup()
    length_s: float = 60.0
    actions: list[Action] = []


class Told(Struct, kw_only=True):
    """What came of telling a story. ``broken``: the first law that was, in a sentence;
    ``trouble``: the actions that are faults, by kind, with what the weather did."""

    digest: str
    broken: str
    steps: int
    turns: int
    records: int
    lasted_s: float
    trouble: dict[str, int]
    lines: list[str] = []
