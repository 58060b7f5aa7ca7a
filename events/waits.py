"""How long a client waits for an outcome where nobody says: until it is due, and a little.

What lives here: one rule per command that takes its time. What may not: waiting. The margins
are those of a controller's default settings; where it takes longer, the answer is a
``timeout`` that says so, and the work goes on.
"""

from __future__ import annotations

from typing import Final

from events.ids import DEFAULT_GRACE_S, MAX_WAIT_S

MARGIN_S: Final = 10.0
"""An outcome comes when the leader gets to it."""

CONFIRM_S: Final = 30.0
"""By then workers that were not seen gone are reported as unconfirmed, beyond their grace."""

LAUNCH_S: Final = 30.0
"""By then all workers are launched, or what was launched is stopped again."""

ROLL_BACK_S: Final = 5.0
"""The grace of workers whose start failed."""


def wait_for_start() -> float:
    """Seconds to wait for the outcome of a start, its roll-back included."""
    return LAUNCH_S + ROLL_BACK_S + CONFIRM_S + MARGIN_S


def wait_for_stop(grace_s: float | None = None, *, force: bool = False) -> float:
    """Seconds to wait until all workers are gone, or are reported as unconfirmed."""
    grace_s = 0.0 if force else DEFAULT_GRACE_S if grace_s is None else grace_s
    return min(MAX_WAIT_S, grace_s + CONFIRM_S + MARGIN_S)


def wait_for_drain(deadline_s: float) -> float:
    """Seconds to wait for the end of a drain."""
    return min(MAX_WAIT_S, deadline_s + MARGIN_S)
