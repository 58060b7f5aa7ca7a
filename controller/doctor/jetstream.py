"""JetStream, the streams, and the lease.

What lives here: examinations of what the server keeps. What may not: asking controllers or
agents.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from controller.doctor.finding import ASK_S, Finding, read
from controller.leader import KEY, LeaseValue
from events.asking import NobodyThere
from events.client import SlotbusClient
from events.errors import SlotbusError
from events.jetstream_api import NANOSECONDS, StreamConfig
from events.streams import event_stream, log_stream

NEARLY_FULL: Final = 0.8


class _Tier(Struct, frozen=True):
    max_storage: int = -1
    max_streams: int = -1


class _ApiError(Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Account(Struct, frozen=True):
    storage: int = 0
    streams: int = 0
    limits: _Tier = _Tier()
    error: _ApiError | None = None


class _State(Struct, frozen=True):
    bytes: int = 0
    messages: int = 0


class _StreamReply(Struct, frozen=True):
    config: StreamConfig | None = None
    state: _State = _State()
    error: _ApiError | None = None
    ts: datetime | None = None


async def jetstream(bus: SlotbusClient) -> list[Finding]:
    what = "JetStream"
    off = Finding(
        what=what,
        level="bad",
        text="JetStream is not enabled on this server, or not for this account",
        advice="`jetstream {}` in the server's configuration; limits for the account in its JWT",
    )
    try:
        account = read(await bus.ask("$JS.API.INFO", timeout_s=ASK_S), _Account)
    except NobodyThere:
        return [off]
    if account.error is not None:
        return [off]
    limits = account.limits
    room = "no limit" if limits.max_storage < 0 else f"{limits.max_storage:,} bytes"
    streams = "no limit" if limits.max_streams < 0 else str(limits.max_streams)
    text = f"{account.streams} streams of {streams}, {account.storage:,} bytes stored of {room}"
    findings = [Finding(what=what, level="ok", text=text)]
    if limits.max_storage > 0 and account.storage > NEARLY_FULL * limits.max_storage:
        findings.append(
            Finding(
                what=what,
                level="warning",
                text="the account's storage is nearly full: then nothing more is decided",
                advice="raise the account's limit, or remove streams that are not needed",
            )
        )
    findings.append(await sync_interval(bus))
    return findings


class _JszConfig(Struct, frozen=True):
    sync_always: bool = False
    sync_interval: int = 0


class _JszData(Struct, frozen=True):
    config: _JszConfig = _JszConfig()


class _Jsz(Struct, frozen=True):
    data: _JszData = _JszData()


async def sync_interval(bus: SlotbusClient) -> Finding:
    """How soon the server brings what it acknowledged to the disk; only a user of the system
    account sees it."""
    what = "sync_interval"
    advice = "set `sync_interval: always` in its `jetstream {}`: the log's promise rests on it"
    try:
        subject = "$SYS.REQ.SERVER.PING.JSZ"
        answer = await bus.ask(subject, b'{"config":true}', timeout_s=ASK_S)
    except SlotbusError:
        text = "not visible to this user: what is acknowledged may be on the disk only later"
        return Finding(what=what, level="note", text=text, advice=advice)
    config = read(answer, _Jsz).data.config
    if config.sync_always:
        return Finding(what=what, level="ok", text="always")
    seconds = config.sync_interval / NANOSECONDS
    text = f"a power cut can take back the last {seconds:g} s of the log"
    return Finding(what=what, level="warning", text=text, advice=advice)


async def server_time(bus: SlotbusClient) -> datetime | None:
    """What the server's clock says; None where it does not say it to us."""
    try:
        body = await bus.ask(f"$JS.API.STREAM.INFO.{bus.subjects.log_stream}", timeout_s=ASK_S)
    except SlotbusError:
        return None
    return read(body, _StreamReply).ts


async def streams(bus: SlotbusClient) -> list[Finding]:
    found: list[Finding] = []
    for config in (log_stream(bus.subjects), event_stream(bus.subjects)):
        subject = f"$JS.API.STREAM.INFO.{config.name}"
        reply = read(await bus.ask(subject, timeout_s=ASK_S), _StreamReply)
        found += _stream(config, reply)
    return found


def _stream(wanted: StreamConfig, reply: _StreamReply) -> list[Finding]:
    what = f"stream {wanted.name}"
    there = reply.config
    if there is None:
        said = reply.error.description if reply.error else "no answer"
        advice = "a controller makes it at its first start, or `slotbus init` does"
        return [Finding(what=what, level="warning", text=said, advice=advice)]
    found = []
    for field in ("subjects", "discard", "retention", "storage"):
        is_so, should = getattr(there, field), getattr(wanted, field)
        if is_so != should:
            advice = (
                ("another --root" if field == "subjects" else "`slotbus init` puts it right")
                if field in ("subjects", "discard")
                else "make the stream anew, when nothing runs"
            )
            found.append(
                Finding(
                    what=what,
                    level="bad",
                    text=f"{field} is {is_so}, which should be {should}",
                    advice=advice,
                )
            )
    limit = "no limit" if there.max_bytes < 0 else f"{there.max_bytes:,}"
    text = (
        f"{reply.state.messages:,} messages, {reply.state.bytes:,} bytes of {limit}, "
        f"replicas {there.num_replicas}"
    )
    full = there.max_bytes > 0 and reply.state.bytes > NEARLY_FULL * there.max_bytes
    if full and there.discard == "new":
        advice = "`slotbus init --log-max-bytes N` gives it more room"
        found.append(
            Finding(what=what, level="warning", text=f"nearly full: {text}", advice=advice)
        )
    if not found:
        found.append(Finding(what=what, level="ok", text=text))
    return found


class _Message(Struct, frozen=True):
    data: bytes = b""
    hdrs: str = ""
    time: datetime | None = None


class _MessageReply(Struct, frozen=True):
    message: _Message | None = None
    error: _ApiError | None = None


async def lease(bus: SlotbusClient) -> list[Finding]:
    what = "lease"
    bucket = bus.subjects.lease_bucket
    body = msgspec.json.encode({"last_by_subj": f"$KV.{bucket}.{KEY}"})
    answer = await bus.ask(f"$JS.API.STREAM.MSG.GET.KV_{bucket}", body, timeout_s=ASK_S)
    message = read(answer, _MessageReply).message
    advice = "start a controller: `slotbus controller`"
    if message is None or not message.data:
        return [Finding(what=what, level="bad", text="nobody holds it", advice=advice)]
    try:
        value = msgspec.json.decode(message.data, type=LeaseValue)
    except msgspec.DecodeError as error:
        text = f"its key holds something else: {error}"
        return [Finding(what=what, level="bad", text=text, advice=f"delete the key {KEY}")]
    epoch = f", epoch {value.epoch}" if value.epoch else ", which reads the log or just began"
    return [Finding(what=what, level="ok", text=f"held by {value.holder}{epoch}")]
