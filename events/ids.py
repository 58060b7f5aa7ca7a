"""Identifiers, units and the stated limits of slotbus.

What lives here: the types that give a plain value its meaning, the patterns they must
match and the numbers the rest of the project keeps to. What may not: behaviour.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NewType

from msgspec import Meta

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
WorkerId = NewType("WorkerId", str)
CommandId = NewType("CommandId", str)
RunId = NewType("RunId", int)
"""Grows with every attempt at a job; the first is 1. Arroyo calls it generation."""

Epoch = NewType("Epoch", int)
"""The fencing token: grows with every leader, in wall-clock milliseconds at least."""

Position = NewType("Position", int)
"""How many records of the event log lie at or before a point; the first record is at 1."""

START: Final = Position(0)
"""Before the first record."""

Seconds = NewType("Seconds", float)
Slots = NewType("Slots", int)

ID_PATTERN: Final = r"^[A-Za-z0-9_-]{1,128}\Z"
ID_RE: Final = re.compile(ID_PATTERN)
ENV_NAME_RE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
RESERVED_ENV_PREFIX: Final = "SLOTBUS_"

Id = Annotated[str, Meta(pattern=ID_PATTERN)]
"""1 to 128 of ``[A-Za-z0-9_-]``: safe in a NATS subject, a file name and a shell."""

MAX_INT: Final = 2**63 - 1
RunNumber = Annotated[int, Meta(ge=1, le=MAX_INT)]
SlotCount = Annotated[int, Meta(ge=1, le=MAX_INT)]
Capacity = Annotated[int, Meta(ge=0, le=1_000_000)]
MAX_WAIT_S: Final = 86_400.0
WaitSeconds = Annotated[float, Meta(ge=0, le=MAX_WAIT_S)]

MAX_WORKERS_A_RUN: Final = 1_000
MAX_PROGRAM_BYTES: Final = 512 * 1024
MAX_PROGRAM_DEPTH: Final = 128
"""Levels of lists and objects in a program; what reads it recursively must not fail."""

MAX_ENV_BYTES: Final = 128 * 1024
"""All names and values of a job's ``env_vars`` together, in bytes of UTF-8."""

MAX_POD_OPTIONS_BYTES: Final = 64 * 1024
"""A job's changes to its pods (``scheduler_config.kubernetes``), in bytes of JSON."""

MAX_INLINE_PROGRAM_BYTES: Final = 64 * 1024
"""Larger programs reach the worker as a file (``SLOTBUS_PROGRAM_FILE``)."""

MAX_LOG_MESSAGE_BYTES: Final = 512 * 1024
"""Records gathered into one log message stay below this."""

MAX_RECORD_BYTES: Final = 1_000_000
"""What one decision writes is smaller, so that a NATS server as it comes (1 MiB a message)
takes it."""

MAX_REASON: Final = 500
"""Characters of a reason that the log keeps; what programs say of themselves has no end."""

MAX_LABELS_BYTES: Final = 64 * 1024
"""All names and values of a node's labels together, or of a selector, in bytes of UTF-8."""

MAX_NODE_TEXT: Final = 1_024
"""Bytes of a node's ``addr``, ``machine_id`` and ``version``, each."""

DEFAULT_WAIT_S: Final = 30.0
DEFAULT_GRACE_S: Final = 10.0
DEFAULT_DRAIN_S: Final = 300.0
DEFAULT_HEARTBEAT_S: Final = 5.0
DEFAULT_EXPIRY_S: Final = 30.0
