"""What an agent counts, as plain numbers for whoever shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class AgentStats:
    """``invalid``: messages that could not be read; ``refused``: orders answered with an
    error; ``ignored``: orders meant for another agent; ``faults``: errors of our own."""

    standing: str = "new"
    connected: bool = False
    epoch: int = 0
    starts: int = 0
    stops: int = 0
    inventories: int = 0
    invalid: int = 0
    refused: int = 0
    ignored: int = 0
    faults: int = 0
    registrations: int = 0
    heartbeats: int = 0
    unanswered: int = 0
    ends_reported: int = 0
    ends_waiting: int = 0
    supervisors: int = 0
