"""The weather on the network: how slow, how lossy, how repetitive it is at the moment.

What lives here: numbers that faults change for a while. What may not: what is done with them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

CALM_S: Final = (0.0002, 0.002)
"""Of one way between a process and the server."""


class Weather(Struct):
    """Likelihoods are of each message that the server hands to a client. ``slow_s``: the most
    that a way takes. ``acks_lost``: of a stream's acknowledgements. ``disk_s``: the most that
    storing takes."""

    slow_s: float = CALM_S[1]
    loss: float = 0.0
    twice: float = 0.0
    acks_lost: float = 0.0
    disk_s: float = 0.001
