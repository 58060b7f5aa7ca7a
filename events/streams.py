"""The streams of a cluster, as slotbus makes them.

What lives here: their configuration, in one place for whoever makes one first (a controller
or `slotbus init`) and for who looks whether they are as they should be. What may not: asking
JetStream for anything.
"""

from __future__ import annotations

from typing import Final

from events.jetstream_api import NANOSECONDS, StreamConfig
from events.subjects import Subjects

EVENT_MAX_AGE_S: Final = 7 * 86_400.0
DUPLICATE_WINDOW_S: Final = 120.0
QUEUE_MAX_BYTES: Final = 256 * 1024 * 1024
ASIDE_MAX_BYTES: Final = 64 * 1024 * 1024
ASIDE_MAX_AGE_S: Final = 30 * 86_400.0


def log_stream(
    subjects: Subjects, *, max_bytes: int | None = None, replicas: int = 1
) -> StreamConfig:
    """The event log. ``max_bytes`` None: no limit."""
    return StreamConfig(
        name=subjects.log_stream,
        subjects=[subjects.eventlog],
        discard="new",  # the default drops old records silently
        deny_delete=True,
        max_bytes=-1 if max_bytes is None else max_bytes,
        num_replicas=replicas,
    )


def snapshot_stream(subjects: Subjects, *, replicas: int = 1) -> StreamConfig:
    """Snapshots of the ledger, a few messages each; the leader removes the old ones."""
    return StreamConfig(
        name=subjects.snapshot_stream,
        subjects=[subjects.snapshot("*")],
        discard="new",
        num_replicas=replicas,
    )


def queue_stream(
    subjects: Subjects, *, max_bytes: int = QUEUE_MAX_BYTES, replicas: int = 1
) -> StreamConfig:
    """Commands that wait for a controller: a full queue refuses more."""
    return StreamConfig(
        name=subjects.queue_stream,
        subjects=[subjects.queues],
        discard="new",
        max_bytes=max_bytes,
        num_replicas=replicas,
    )


def aside_stream(subjects: Subjects, *, replicas: int = 1) -> StreamConfig:
    """What was in the queue and is no command, for a person to look at for some weeks."""
    return StreamConfig(
        name=subjects.aside_stream,
        subjects=[subjects.aside(">")],
        max_bytes=ASIDE_MAX_BYTES,
        max_age=int(ASIDE_MAX_AGE_S * NANOSECONDS),
        num_replicas=replicas,
    )


def event_stream(
    subjects: Subjects,
    *,
    max_age_s: float = EVENT_MAX_AGE_S,
    max_bytes: int = -1,
    replicas: int = 1,
) -> StreamConfig:
    """The event subjects, for people's own consumers. ``max_age_s`` in seconds.

    What is in it can be published again from the log, so it waits for no disk: each sync
    saved there is one that the log's next append need not wait for.
    """
    return StreamConfig(
        name=subjects.event_stream,
        subjects=[subjects.events],
        max_age=int(max_age_s * NANOSECONDS),
        max_bytes=max_bytes,
        num_replicas=replicas,
        duplicate_window=int(min(DUPLICATE_WINDOW_S, max_age_s) * NANOSECONDS),
        allow_direct=True,
        persist_mode="async" if replicas == 1 else "default",
    )
