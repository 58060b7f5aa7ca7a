"""Warm standbys: they follow whatever happens, change nothing, and take over at the end."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import structlog.testing
from nats.aio.client import Client

from controller.app import ControllerInfo
from controller.config import Address
from controller.embedded import EmbeddedServer
from controller.standby import Standby
from events.facts import Record
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.jetstream_snapshots import JetStreamSnapshots
from events.ledger import Ledger
from events.log import LogError, LogLost, LogUnsettled, MemoryLog
from events.recall import fold, recall
from events.snapshots import MemorySnapshots, take
from events.subjects import Subjects
from tests.support.controllers import Caller, config_for, controller, page, samples
from tests.support.lives import a_life
from tests.support.nats import connected
from tests.support.records import append
from tests.support.waiting import DEADLINE_S, background, until

RECORDS = a_life(jobs=40)


def folded(count: int) -> Ledger:
    ledger = Ledger()
    fold(ledger, RECORDS[:count])
    return ledger


def standby(nc: Client, subjects: Subjects) -> Standby:
    return Standby(
        lambda: JetStreamLog(nc, subjects, create=False, stall_s=2.0),
        JetStreamSnapshots(nc, subjects),
        look_s=0.01,
    )


@asynccontextmanager
async def following(nc: Client, subjects: Subjects) -> AsyncIterator[Standby]:
    made = standby(nc, subjects)
    async with background(made.run()) as task:
        yield made
        assert not task.done()


async def write(log: JetStreamLog, first: int, last: int) -> None:
    for at in range(first, last):
        await append(log, [RECORDS[at]], at)


async def test_it_follows_and_gives_both_ledgers_at_the_logs_end(
    nc: Client, subjects: Subjects
) -> None:
    log = JetStreamLog(nc, subjects)
    async with following(nc, subjects) as warm:
        await write(log, 0, 30)
        await until(lambda: warm.position == 30)
        await write(log, 30, 50)
        await until(lambda: warm.position == 50)
        assert warm.beginnings <= 2
    await write(log, 50, 70)
    twins = await warm.take_over()
    assert twins is not None
    assert twins.ledger.snapshot() == twins.shadow.snapshot() == folded(70).snapshot()
    assert twins.ledger.workers is not twins.shadow.workers
    assert await warm.take_over() is None


async def test_it_begins_with_a_snapshot_behind_a_purge(nc: Client, subjects: Subjects) -> None:
    log, store = JetStreamLog(nc, subjects), JetStreamSnapshots(nc, subjects)
    await write(log, 0, 60)
    await store.keep(take(folded(40)))
    await log.trim(Position(39))
    async with following(nc, subjects) as warm:
        await until(lambda: warm.position == 60)
    twins = await warm.take_over()
    assert twins is not None
    assert twins.ledger.snapshot() == folded(60).snapshot()


async def test_a_purge_ahead_of_it_makes_it_begin_anew(nc: Client, subjects: Subjects) -> None:
    log, store = JetStreamLog(nc, subjects), JetStreamSnapshots(nc, subjects)
    await write(log, 0, 20)
    warm = standby(nc, subjects)
    async with background(warm.run()):
        await until(lambda: warm.position == 20)
    await write(log, 20, 60)  # while it was away
    await store.keep(take(folded(50)))
    await log.trim(Position(49))
    async with background(warm.run()):
        await until(lambda: warm.position == 60)
    assert warm.beginnings == 2
    twins = await warm.take_over()
    assert twins is not None
    assert twins.ledger.snapshot() == folded(60).snapshot()


async def test_servers_that_die_and_come_back(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc, connected(own_nats_server.url) as other:
        log = JetStreamLog(other, subjects)
        await write(log, 0, 20)
        async with following(nc, subjects) as warm:
            await until(lambda: warm.position == 20)
            for end in (30, 40):
                own_nats_server.kill()
                await own_nats_server.start()
                await until(lambda: other.is_connected)
                await write(log, end - 10, end)
                await until(lambda end=end: warm.position == end)  # type: ignore[misc]
            assert warm.beginnings == 1


async def test_what_passes_costs_nothing_of_what_was_read() -> None:
    class Flaky(MemoryLog):
        away = False

        async def read(self, after: Position = START) -> AsyncGenerator[list[Record], None]:
            if self.away:
                raise LogUnsettled("away")
            async for batch in super().read(after):
                yield batch

    log = Flaky()
    await append(log, RECORDS[:20], 0)
    warm = Standby(lambda: log, MemorySnapshots(), look_s=0.01)
    with structlog.testing.capture_logs() as said:
        async with background(warm.run()):
            await until(lambda: warm.position == 20)
            log.away = True
            await until(lambda: len(said) == 1)
            await append(log, RECORDS[20:40], 20)
            log.away = False
            await until(lambda: warm.position == 40)
    assert warm.beginnings == 1


async def test_a_log_that_was_made_anew_is_not_mixed_with_the_old_one(
    nc: Client, subjects: Subjects
) -> None:
    await write(JetStreamLog(nc, subjects), 0, 30)
    with structlog.testing.capture_logs() as said:
        async with following(nc, subjects) as warm:
            await until(lambda: warm.position == 30)
            await nc.jetstream().delete_stream(subjects.log_stream)
            await write(JetStreamLog(nc, subjects), 0, 50)
            await until(lambda: warm.position == 50)
    assert any("made anew" in each["cause"] or "is gone" in each["cause"] for each in said)
    twins = await warm.take_over()
    assert twins is not None
    assert twins.ledger.snapshot() == folded(50).snapshot()


async def test_a_log_that_lost_its_end_and_was_written_on_is_read_again() -> None:
    """As long as before, but another: what was folded last is looked for at each look."""
    logs = [MemoryLog()]
    await logs[0].append(RECORDS[:20], expected=START, timeout_s=1.0)
    warm = Standby(lambda: logs[-1], MemorySnapshots(), look_s=0.01)
    async with background(warm.run()):
        await until(lambda: warm.position == 20)
    again = [*RECORDS[:19], msgspec.structs.replace(RECORDS[19], epoch=RECORDS[19].epoch + 1)]
    shorter = MemoryLog()
    await shorter.append(again, expected=START, timeout_s=1.0)
    logs[0].__dict__.update(shorter.__dict__)
    with pytest.raises(LogLost, match="written on"):
        await warm.take_over()
    assert warm.position == START


async def test_an_end_that_cant_be_read_is_no_take_over(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc:
        await write(JetStreamLog(nc, subjects), 0, 20)
        async with following(nc, subjects) as warm:
            await until(lambda: warm.position == 20)
        await own_nats_server.stop()
        with pytest.raises(LogError):
            await warm.take_over()
        assert await warm.take_over() is None


# --- what it may do ---------------------------------------------------------------------------

READING = """
authorization {
  users: [
    { user: all, password: "change-me", permissions: { publish: ">", subscribe: ">" } }
    { user: reader, password: "change-me"
      permissions: {
        publish: [
          "$KV.ROOT_lease.leader", "$JS.API.STREAM.INFO.KV_ROOT_lease"
          "$JS.API.STREAM.MSG.GET.*", "$JS.API.STREAM.INFO.UPPER_LOG"
          "$JS.API.STREAM.INFO.UPPER_SNAPSHOT"
          "$JS.API.CONSUMER.CREATE.UPPER_LOG.>", "$JS.API.CONSUMER.DELETE.UPPER_LOG.>"
          "$JS.API.CONSUMER.MSG.NEXT.UPPER_LOG.>"
          "$JS.API.CONSUMER.CREATE.UPPER_SNAPSHOT.>"
          "$JS.API.CONSUMER.DELETE.UPPER_SNAPSHOT.>"
          "$JS.API.CONSUMER.MSG.NEXT.UPPER_SNAPSHOT.>"
        ]
        subscribe: ["_INBOX_reader.>", "$KV.ROOT_lease.leader"]
      }
    }
  ]
}
"""
"""A reader may look at streams, read them through consumers that end by themselves, and write
the lease's key: nothing that is slotbus's own, no order to an agent, no stream."""


@pytest.mark.parametrize("scheduler", ["node", "process", "kubernetes"])
async def test_a_standby_makes_no_call_that_changes_anything(
    tmp_path: Path, scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = Subjects("quiet")
    config = READING.replace("ROOT", subjects.token).replace("UPPER", subjects.token.upper())
    heard: list[bytes] = []

    async def api(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readline())
        writer.close()

    listener = await asyncio.start_server(api, "127.0.0.1", 0)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.replace("PORT", str(listener.sockets[0].getsockname()[1])))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    async with EmbeddedServer(tmp_path / "nats", config=config) as server, listener:
        await stand_by_quietly(server, subjects, tmp_path, scheduler)
        said = await asyncio.to_thread(server.log_path.read_text)
    listed = scheduler == "kubernetes"
    assert re.findall(r"(?:Publish|Subscription) Violation.*", said) == []
    # Where there is a cluster, it may look whether it could lead.
    assert {line.split(b" ")[0] for line in heard} <= ({b"GET"} if listed else set())


async def stand_by_quietly(
    server: EmbeddedServer, subjects: Subjects, tmp_path: Path, scheduler: str
) -> None:
    """A standby that begins with a snapshot and follows a leader's decisions to their end."""
    leading = config_for(
        server.url,
        subjects,
        tmp_path / "leader",
        scheduler="embedded",
        user="all",
        password="change-me",
        snapshot_every=10,
    )
    here = Address("127.0.0.1", free_port())
    waiting = config_for(
        server.url,
        subjects,
        tmp_path / "standby",
        scheduler=scheduler,
        http=f"{here.host}:{here.port}",
        user="reader",
        password="change-me",
        inbox_prefix="_INBOX_reader",
    )
    second = ControllerInfo(holder="", epoch=0, scheduler=scheduler, http=here)
    async with (
        controller(leading) as leader,
        connected(server.url.replace("//", "//all:change-me@")) as nc,
    ):
        first = await leader.leading()
        caller = Caller(nc, subjects)
        await cordon_often(caller, 10)
        await until_gauge(first, "slotbus_snapshot_position", 10)
        async with controller(waiting) as made:
            await until(lambda: listens(here))
            await until_gauge(second, "slotbus_standby_position", 10)
            await cordon_often(caller, 10)
            end = (await recall(JetStreamLog(nc, subjects))).ledger.position
            await until_gauge(second, "slotbus_standby_position", end)
            assert (await page(second, "/readyz")).startswith("standby")
            assert "slotbus_free_slots" not in await page(second, "/metrics")
            assert not made.leads.done()


async def cordon_often(caller: Caller, times: int) -> None:
    for number in range(times):
        await caller.cmd(("cordon", "uncordon")[number % 2], node_id="embedded")


async def until_gauge(info: ControllerInfo, name: str, least: float) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while samples(await page(info, "/metrics"))[name] < least:  # noqa: ASYNC110  remote
            await asyncio.sleep(0.02)


def listens(address: Address) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address.host, address.port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:PORT"}}]
users: [{name: u, user: {}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
"""
