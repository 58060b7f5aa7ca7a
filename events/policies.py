"""Policies of a job: what becomes of its run when a worker ends, is lost, or must leave.

What lives here: the policies, how long a restart waits, and when a lease proves a worker
gone. What may not: deciding on a run (``schedulers.decide.restarts``), clocks, randomness.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

OnEnd: TypeAlias = Literal["report", "restart"]
OnDrain: TypeAlias = Literal["move", "stop"]

BackoffSeconds = Annotated[float, Meta(gt=0, le=86_400)]
WindowSeconds = Annotated[float, Meta(gt=0, le=2_592_000)]
RestartLimit = Annotated[int, Meta(ge=1, le=1_000)]

LEASE_GRACE_S: Final = 10.0
"""Between TERM and KILL for a worker whose lease is over; the supervisor keeps to it."""

LEASE_MARGIN_S: Final = 10.0
"""Beyond lease and grace: the supervisor looks twice a second, and a killed process takes a
moment to be gone."""

CLOCK_DRIFT: Final = 0.001
"""A node's clock may run slower than the controller's by this share: crystals are good to a
tenth of it, and virtual machines to a little less."""


class RestartOptions(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """When a run is restarted, and how often; what is left out is as configured.

    The first restart waits ``first_s`` seconds, each further one twice as long up to
    ``longest_s``, all shortened by up to half by chance. More than ``limit`` restarts within
    ``window_s`` seconds are not made. A run that has run for ``quiet_s`` seconds begins anew
    with ``first_s``.
    """

    first_s: BackoffSeconds | None = None
    longest_s: BackoffSeconds | None = None
    limit: RestartLimit | None = None
    window_s: WindowSeconds | None = None
    quiet_s: WindowSeconds | None = None


class Restarting(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """``RestartOptions``, with nothing left open. What is left out in the log means these
    values: they stay as they are, and the defaults of new runs are in the configuration."""

    first_s: float = 1.0
    longest_s: float = 60.0
    limit: int = 10
    window_s: float = 3_600.0
    quiet_s: float = 600.0

    def with_options(self, options: RestartOptions) -> Restarting:
        """These, but for what the options say."""
        return Restarting(
            first_s=_said(options.first_s, self.first_s),
            longest_s=_said(options.longest_s, self.longest_s),
            limit=self.limit if options.limit is None else options.limit,
            window_s=_said(options.window_s, self.window_s),
            quiet_s=_said(options.quiet_s, self.quiet_s),
        )

    def backoff_s(self, tries: int, chance: float) -> float:
        """Seconds before the ``tries``-th restart in a row; ``chance`` from 0 up to 1."""
        doubled = self.first_s * 2.0 ** min(tries - 1, 60)
        return min(max(self.first_s, self.longest_s), doubled) * (1.0 - chance / 2)


class Policy(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a run does when a worker of it failed (``on_failure``: ended with an exit code
    that is not 0, or by a signal), is gone without saying how (``on_lost``), or runs on a
    node that is drained (``on_drain``). ``report``: the others go on; ``restart``: the whole
    run is stopped and another one begins. What is left out in the log means these values."""

    on_failure: OnEnd = "report"
    on_lost: OnEnd = "report"
    on_drain: OnDrain = "stop"
    restart: Restarting = Restarting()


PLAIN: Final = Policy()
"""Nothing is restarted: left out of the log and of snapshots."""


def drain_default(on_failure: OnEnd, on_lost: OnEnd) -> OnDrain:
    """A job that may be restarted may be moved."""
    return "move" if "restart" in (on_failure, on_lost) else "stop"


def chance_of(token: str, who: str) -> float:
    """A number from 0 up to 1 that is the same for the same words, and else as good as
    random: so a restart's delay follows from the message that led to it."""
    digest = hashlib.sha256(f"{token}\n{who}".encode()).digest()
    return int.from_bytes(digest[:7]) / 2**56


def gone_at(last_seen: datetime, stop_after_s: float) -> datetime:
    """From when on a worker with this lease is gone for sure, on a node that was heard last
    at ``last_seen``: its supervisor counts from the sending of that heartbeat or an earlier
    one."""
    lease_s = stop_after_s * (1 + CLOCK_DRIFT)
    return last_seen + timedelta(seconds=lease_s + LEASE_GRACE_S + LEASE_MARGIN_S)


def _said(option: float | None, default: float) -> float:
    return default if option is None else float(option)
