"""Making a cluster's streams and bucket before any controller ran, and changing them later.

What lives here: what is made, what may be changed on what is there, and saying so. What may
not: how streams are configured (``events.streams``), and deleting anything.

Only what was said is changed, and only where nothing that is stored would go: the log and
the events are never made to hold less than they could.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import nats.errors
from msgspec import Struct
from nats.aio.client import Client

from controller.config import LOG_MAX_BYTES
from controller.leasebucket import ensure_bucket
from events.errors import Invalid, SlotbusError
from events.jetstream_api import (
    NANOSECONDS,
    ApiRefused,
    Deadline,
    JetStreamApi,
    StreamConfig,
    StreamInfo,
)
from events.streams import (
    EVENT_MAX_AGE_S,
    aside_stream,
    event_stream,
    log_stream,
    queue_stream,
    snapshot_stream,
)
from events.subjects import Subjects

SETUP_TIMEOUT_S: Final = 10.0
NO_CLUSTER: Final = frozenset({10005, 10074})
"""No suitable peers for so many replicas; and no cluster at all."""


class SetupFailed(SlotbusError):
    """JetStream refused something, or did not answer."""

    code: ClassVar[str] = "setup_failed"
    status: ClassVar[int] = 500


class Wanted(Struct, frozen=True, kw_only=True):
    """What somebody said; None: as it is, or as usual where it is made. Bytes and seconds."""

    log_max_bytes: int | None = None
    event_max_age_s: float | None = None
    event_max_bytes: int | None = None
    replicas: int | None = None


class Done(Struct, frozen=True, kw_only=True):
    """What became of one stream or bucket. ``changes``: the fields that are new;
    ``kept``: what was asked for and not done, with the reason."""

    name: str
    did: Literal["created", "updated", "unchanged"]
    changes: list[str] = []
    kept: list[str] = []


async def set_up(nc: Client, subjects: Subjects, wanted: Wanted) -> list[Done]:
    """Makes or changes everything that a cluster keeps in JetStream.

    Raises LogError (with what JetStream says), SetupFailed, LeaseUnusable, and Invalid for a
    stream of that name that is somebody else's.
    """
    replicas = wanted.replicas or 1
    log = log_stream(subjects, max_bytes=wanted.log_max_bytes or LOG_MAX_BYTES, replicas=replicas)
    events = event_stream(
        subjects,
        max_age_s=wanted.event_max_age_s or EVENT_MAX_AGE_S,
        max_bytes=wanted.event_max_bytes or -1,
        replicas=replicas,
    )
    api = JetStreamApi(nc)
    try:
        return await _set_up(nc, api, subjects, wanted, [log, events])
    except ApiRefused as error:
        if error.err_code not in NO_CLUSTER:
            raise
        raise Invalid(
            f"there are not enough JetStream servers for {replicas} replicas of a stream: "
            f"{error.message}",
            path="replicas",
            err_code=error.err_code,
        ) from error


async def _set_up(
    nc: Client, api: JetStreamApi, subjects: Subjects, wanted: Wanted, configs: list[StreamConfig]
) -> list[Done]:
    log, events = configs
    replicas = wanted.replicas or 1
    js = nc.jetstream(timeout=SETUP_TIMEOUT_S)
    done = [
        await _stream(
            api, log, {"max_bytes": wanted.log_max_bytes, "num_replicas": wanted.replicas}
        ),
        await _stream(
            api,
            events,
            {
                "max_age": wanted.event_max_age_s and events.max_age,
                "max_bytes": wanted.event_max_bytes,
                "num_replicas": wanted.replicas,
            },
        ),
        *[
            await _stream(api, config, {"num_replicas": wanted.replicas})
            for config in (
                snapshot_stream(subjects, replicas=replicas),
                queue_stream(subjects, replicas=replicas),
                aside_stream(subjects, replicas=replicas),
            )
        ],
    ]
    try:
        made = await ensure_bucket(js, subjects.lease_bucket, replicas)
    except nats.errors.Error as error:
        raise SetupFailed(f"the bucket {subjects.lease_bucket} can't be made: {error}") from error
    name = f"KV_{subjects.lease_bucket}"
    if made:
        return [*done, Done(name=name, did="created")]
    info = await api.info(name, Deadline(SETUP_TIMEOUT_S))
    assert info is not None, name
    return [*done, await _change(api, info, {"num_replicas": wanted.replicas})]


def setup_subjects(subjects: Subjects) -> list[str]:
    """Where ``set_up`` publishes."""
    streams = (
        subjects.log_stream,
        subjects.event_stream,
        subjects.snapshot_stream,
        subjects.queue_stream,
        subjects.aside_stream,
        f"KV_{subjects.lease_bucket}",
    )
    verbs = ("INFO", "CREATE", "UPDATE")
    return [f"$JS.API.STREAM.{verb}.{stream}" for stream in streams for verb in verbs]


async def _stream(
    api: JetStreamApi, config: StreamConfig, said: Mapping[str, int | float | None]
) -> Done:
    info = await api.info(config.name, Deadline(SETUP_TIMEOUT_S))
    if info is None:
        await api.ensure(config, Deadline(SETUP_TIMEOUT_S))
        return Done(name=config.name, did="created")
    if info.config.subjects != config.subjects:
        raise Invalid(
            f"there is a stream {config.name} for {', '.join(info.config.subjects)} and not for "
            f"{', '.join(config.subjects)}: it is another cluster's or program's; choose another "
            "--root",
            path="root",
        )
    return await _change(api, info, {**said, "discard": config.discard})


async def _change(
    api: JetStreamApi, info: StreamInfo, said: Mapping[str, int | float | str | None]
) -> Done:
    """Changes the fields that were said and are others, where nothing stored would go."""
    config = info.config
    changes: dict[str, object] = {}
    kept: list[str] = []
    for field, value in said.items():
        now = getattr(config, field)
        if value is None or value == now:
            continue
        if field in ("max_bytes", "max_age") and _is_less(value, now):
            kept.append(
                f"{field} stays {_shown(field, now)} and is not made {_shown(field, value)}: "
                "what is stored could go"
            )
        elif field == "num_replicas" and config.persist_mode == "async":
            kept.append(
                f"{field} stays {now}: this stream waits for no disk, and such a one can't be "
                "replicated; remove it and call init again, the leader publishes anew what is "
                "in its log"
            )
        else:
            changes[field] = value
    if changes:
        await api.change(info, changes, Deadline(SETUP_TIMEOUT_S))
    return Done(
        name=config.name,
        did="updated" if changes else "unchanged",
        changes=[
            f"{field} {_shown(field, getattr(config, field))} -> {_shown(field, value)}"
            for field, value in changes.items()
        ],
        kept=kept,
    )


def _is_less(value: object, now: object) -> bool:
    """Whether a limit is narrower; -1 and 0 are no limit."""
    assert isinstance(value, int | float), value
    assert isinstance(now, int | float), now
    return value > 0 and (now <= 0 or value < now)


def _shown(field: str, value: object) -> str:
    if isinstance(value, int) and field == "max_age":
        return f"{value / NANOSECONDS / 86_400:g} days" if value else "no limit"
    return "no limit" if value == -1 else str(value)
