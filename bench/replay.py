"""Replay: from a log to a ledger, and the reading alone.

What lives here: the file log against msgspec decoding the same lines, the JetStream log
against raw pulls of the same stream. What may not: what a fold costs beside others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.material import busy_day
from bench.measure import ROUNDS, Goal, Pair, Row, compare, cpu_seconds_of
from bench.rig import linked, nats_server, scratch
from events.audit import Auditor
from events.collector import calm_collector, paused_collector
from events.facts import Record
from events.filelog import FileLog
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.jetstream_api import Deadline, JetStreamApi
from events.ledger import Ledger
from events.log import EventLog
from events.recall import recall
from events.subjects import Subjects

JOBS: Final = 6_000
SINGLE: Final = 20_000
"""Records of the stream in which each travelled alone, as under light load."""

PULL: Final = 1_000
TIMEOUT_S: Final = 30.0


async def rows() -> list[Row]:
    calm_collector()
    records = busy_day(JOBS).records
    async with scratch() as folder:
        found = await _file(folder / "log", records)
    async with nats_server() as server, linked(server) as nc:
        bare = await nats.connect(server.url)
        found.append(await _stream(nc, bare, "single", records[1 : SINGLE + 1], 1))
        found.append(await _stream(nc, bare, "gathered", records, 256))
        await bare.close()
    return found


async def _file(path: Path, records: list[Record]) -> list[Row]:
    events = sum(len(record.events) for record in records)
    log = FileLog(path, fsync="never")
    await log.append(records, expected=START, timeout_s=TIMEOUT_S)
    await log.close()
    decoder = msgspec.json.Decoder(Record)

    async def bare() -> None:
        for line in path.read_bytes().splitlines():
            decoder.decode(line)

    reads: list[Pair] = []
    folds: list[Pair] = []
    audits: list[Pair] = []
    for _ in range(ROUNDS):
        floor = events / await cpu_seconds_of(bare)
        reads.append(Pair(events / await cpu_seconds_of(lambda: _drain(FileLog(path))), floor))
        folded = await cpu_seconds_of(lambda: _fold(FileLog(path)))
        folds.append(Pair(events / folded, floor))
        audits.append(Pair(await cpu_seconds_of(lambda: _audit(FileLog(path))), folded))
    unit, against = "events a CPU second", "msgspec decoding the same lines"
    return [
        compare("file log read", reads, unit, against),
        compare(
            "file log replayed into a ledger",
            folds,
            unit,
            against,
            [Goal(500_000, at_least=True, of="value")],
        ),
        compare("the same, audited", audits, "CPU s", "replayed without the auditor", [Goal(1.5)]),
    ]


async def _drain(log: EventLog) -> None:
    async with contextlib.aclosing(log.read()) as batches:
        async for _ in batches:
            pass
    await log.close()


async def _fold(log: EventLog) -> Ledger:
    recalled = await recall(log)
    await log.close()
    return recalled.ledger


async def _audit(log: EventLog) -> Auditor:
    """As a controller does beside its work."""
    auditor = Auditor(snapshot_every=0)
    position = START
    with paused_collector():
        async with contextlib.aclosing(log.read()) as batches:
            async for records in batches:
                for record in records:
                    position = Position(position + 1)
                    assert not auditor.observe(position, record)
    await log.close()
    return auditor


async def _stream(nc: Client, bare: Client, root: str, records: list[Record], together: int) -> Row:
    """Messages of ``together`` records each."""
    subjects = Subjects(root)
    log = JetStreamLog(nc, subjects)
    writing = JetStreamLog(nc, subjects)
    for at in range(0, len(records), together):
        await writing.append(
            records[at : at + together], expected=Position(at), timeout_s=TIMEOUT_S
        )
    count = len(records)
    pairs: list[Pair] = []
    for number in range(ROUNDS):
        floor = count / await _pull(bare, subjects.log_stream, f"r{number}", together > 1)
        took = await cpu_seconds_of(lambda: _drain(log))
        pairs.append(Pair(count / took, floor))
    if together > 1:
        what, against = (
            f"JetStream log read, {together} records a message",
            ("raw pulls by nats-py, lines decoded by msgspec"),
        )
    else:
        what, against = (
            "JetStream log read, a record a message",
            "raw pulls by nats-py, nothing decoded",
        )
    return compare(what, pairs, "records a CPU second", against, [Goal(0.8, at_least=True)])


async def _pull(nc: Client, stream: str, name: str, decoding: bool) -> float:
    """CPU seconds for the whole stream through raw pulls without acknowledgement."""
    api = JetStreamApi(nc)
    info = await api.info(stream, Deadline(TIMEOUT_S))
    assert info is not None
    await api.create_reader(stream, name, 1, TIMEOUT_S, Deadline(TIMEOUT_S))
    decoder = msgspec.json.Decoder(Record)
    left, asked = info.state.messages, 0
    some = asyncio.Event()
    inbox = nc.new_inbox()

    async def taken(message: Msg) -> None:
        nonlocal left, asked
        if message.headers and "Status" in message.headers:
            asked = 0
        else:
            left -= 1
            asked -= 1
            if decoding:
                for line in message.data.split(b"\n"):
                    decoder.decode(line)
        if asked <= 0:
            some.set()

    subscription = await nc.subscribe(inbox, cb=taken)
    body = msgspec.json.encode({"batch": PULL, "expires": 2_000_000_000})
    began = time.process_time()
    while left > 0:
        asked = min(PULL, left)
        await nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", body, reply=inbox)
        some.clear()
        await some.wait()
    took = time.process_time() - began
    await subscription.unsubscribe()
    return took
