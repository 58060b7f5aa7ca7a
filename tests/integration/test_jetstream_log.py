"""The JetStream log when things go wrong: lost acknowledgements, restarts, full, gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import nats.js.api
import pytest
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from events.errors import TooLarge
from events.ids import START, Position
from events.jetstream import JetStreamLog
from events.log import (
    LogConflict,
    LogError,
    LogFull,
    LogLost,
    LogPurged,
    LogUnreadable,
    LogUnsettled,
)
from events.subjects import Subjects
from tests.support.nats import connected
from tests.support.proxy import Proxy, proxy_to
from tests.support.records import a_large_record, a_record, append, read_all, some_records
from tests.support.waiting import until


@pytest.fixture
async def proxy(nats_server: EmbeddedServer) -> AsyncIterator[Proxy]:
    async with proxy_to(nats_server.port) as made:
        yield made


@pytest.fixture
async def far(proxy: Proxy) -> AsyncIterator[Client]:
    """A connection that goes through the proxy."""
    async with connected(proxy.url) as client:
        yield client


async def _until_stored(nc: Client, subjects: Subjects, seq: int) -> None:
    js = nc.jetstream()
    async with asyncio.timeout(10):
        while (  # noqa: ASYNC110  the server tells nobody by itself
            await js.stream_info(subjects.log_stream)
        ).state.last_seq < seq:
            await asyncio.sleep(0.005)


# --- lost acknowledgements ----------------------------------------------------------------------


async def test_an_append_whose_acknowledgement_was_lost_is_recognised_as_ours(
    nc: Client, far: Client, proxy: Proxy, subjects: Subjects
) -> None:
    log = JetStreamLog(far, subjects)
    await append(log, [a_record(1)], START)
    proxy.swallow = True
    appending = asyncio.create_task(append(log, some_records(2, first=2), 1, timeout_s=20))
    await _until_stored(nc, subjects, 2)
    await until(lambda: proxy.swallowed_bytes > 0)
    proxy.swallow = False
    assert await appending == 3
    await append(log, [a_record(4)], 3)
    assert await read_all(JetStreamLog(nc, subjects)) == some_records(4)


async def test_a_broken_connection_in_the_middle_of_an_append_stores_it_once(
    nc: Client, far: Client, proxy: Proxy, subjects: Subjects
) -> None:
    log = JetStreamLog(far, subjects)
    await append(log, [a_record(1)], START)
    for number in range(2, 5):
        proxy.swallow = True
        appending = asyncio.create_task(append(log, [a_record(number)], number - 1, timeout_s=20))
        await _until_stored(nc, subjects, number)
        proxy.swallow = False
        proxy.drop()
        assert await appending == number
    assert await read_all(log) == some_records(4)


async def test_a_lost_acknowledgement_and_another_writer_is_a_conflict(
    nc: Client, far: Client, proxy: Proxy, subjects: Subjects
) -> None:
    log, other = JetStreamLog(far, subjects), JetStreamLog(nc, subjects)
    await append(log, [a_record(1)], START)
    proxy.passing.clear()
    appending = asyncio.create_task(append(log, [a_record(2)], 1, timeout_s=20))
    await append(other, some_records(2, first=7), 1)
    proxy.passing.set()
    with pytest.raises(LogConflict) as caught:
        await appending
    assert caught.value.facts == {"expected": 1, "found": 3}
    assert await read_all(log) == [a_record(1), *some_records(2, first=7)]


async def test_an_append_that_cant_be_settled_ends_in_time_and_may_be_read_later(
    nc: Client, far: Client, proxy: Proxy, subjects: Subjects
) -> None:
    log = JetStreamLog(far, subjects)
    await append(log, [a_record(1)], START)
    proxy.swallow = True
    began = asyncio.get_running_loop().time()
    with pytest.raises(LogUnsettled):
        await append(log, [a_record(2)], 1, timeout_s=0.5)
    assert asyncio.get_running_loop().time() - began < 3
    proxy.swallow = False
    proxy.drop()
    assert await read_all(log) == some_records(2)  # it was stored: only reading tells
    with pytest.raises(LogConflict):
        await append(log, [a_record(9)], 1)
    await append(log, [a_record(3)], 2)
    assert await read_all(JetStreamLog(nc, subjects)) == some_records(3)


async def test_after_a_cancelled_append_the_log_is_read_again(
    nc: Client, far: Client, proxy: Proxy, subjects: Subjects
) -> None:
    log = JetStreamLog(far, subjects)
    await append(log, [a_record(1)], START)
    proxy.swallow = True
    appending = asyncio.create_task(append(log, [a_record(2)], 1, timeout_s=20))
    await _until_stored(nc, subjects, 2)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    proxy.swallow = False
    proxy.drop()
    assert await read_all(log) == some_records(2)
    await append(log, [a_record(3)], 2)


async def test_a_message_from_elsewhere_in_our_place_is_a_conflict(
    nc: Client, subjects: Subjects
) -> None:
    log = JetStreamLog(nc, subjects)
    await append(log, [a_record(1)], START)
    await nc.jetstream().publish(subjects.eventlog, b"hello")
    with pytest.raises(LogConflict, match="not of this writer"):
        await append(log, [a_record(2)], 1)
    with pytest.raises(LogUnreadable, match="slotbus did not write it"):
        await read_all(log)


async def test_on_a_closed_connection_nothing_is_waited_for(
    nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(nats_server.url) as client:
        log = JetStreamLog(client, subjects)
        await append(log, [a_record(1)], START)
    async with asyncio.timeout(2):
        with pytest.raises(LogUnsettled, match="is over"):
            await append(log, [a_record(2)], 1, timeout_s=30)
        with pytest.raises(LogUnsettled, match="is over"):
            await read_all(log)


# --- the server goes away -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_what_was_acknowledged_survives_the_server(
    own_nats_server: EmbeddedServer, subjects: Subjects, how: str
) -> None:
    async with connected(own_nats_server.url) as nc:
        log = JetStreamLog(nc, subjects)
        end: int = START
        for _ in range(3):
            end = await append(log, some_records(20, first=end + 1), end)
            if how == "kill":
                own_nats_server.kill()
            else:
                await own_nats_server.stop()
            await own_nats_server.start()
        end = await append(log, some_records(1, first=end + 1), end, timeout_s=20)
        assert await read_all(log) == some_records(end)


async def test_an_append_during_a_restart_waits_for_the_server(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc:
        log = JetStreamLog(nc, subjects)
        await append(log, [a_record(1)], START)
        await own_nats_server.stop()
        appending = asyncio.create_task(append(log, [a_record(2)], 1, timeout_s=30))
        reading = asyncio.create_task(read_all(log))
        await own_nats_server.start()
        assert await appending == 2
        assert await reading in (some_records(1), some_records(2))


async def test_with_the_server_gone_append_and_read_end_in_time(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc:
        log = JetStreamLog(nc, subjects, stall_s=0.3)
        await append(log, [a_record(1)], START)
        own_nats_server.kill()
        async with asyncio.timeout(10):
            with pytest.raises(LogUnsettled):
                await append(log, [a_record(2)], 1, timeout_s=0.3)
            with pytest.raises(LogUnsettled):
                await read_all(log)


async def test_a_reader_goes_on_where_a_broken_connection_stopped_it(
    nc: Client, far: Client, proxy: Proxy, subjects: Subjects
) -> None:
    total = 6_000
    await append(JetStreamLog(nc, subjects), some_records(total), START)
    writer = JetStreamLog(nc, subjects)
    end = total
    for _ in range(300):  # many messages, not only a few large ones
        end = await append(writer, [a_record(end + 1)], end)
    seen = []
    broken = 0
    async for batch in JetStreamLog(far, subjects).read():
        seen += batch
        if broken < 3:
            broken += 1
            proxy.drop()
    assert seen == some_records(end)
    assert broken == 3


async def test_a_server_without_jetstream_is_an_error_in_time(
    tmp_path: Path, subjects: Subjects
) -> None:
    # The configuration's later value wins over the one written before it.
    async with (
        EmbeddedServer(tmp_path, config="jetstream: disabled") as server,
        connected(server.url) as nc,
    ):
        with pytest.raises(LogUnsettled, match="is it enabled"):
            await read_all(JetStreamLog(nc, subjects, stall_s=0.2))


# --- full, too large ----------------------------------------------------------------------------


async def test_a_full_stream_refuses_and_loses_nothing(nc: Client, subjects: Subjects) -> None:
    log = JetStreamLog(nc, subjects, max_bytes=20_000)
    end: int = START
    with pytest.raises(LogFull, match="maximum bytes"):  # noqa: PT012 - until it is full
        while True:
            end = await append(log, some_records(10, first=end + 1), end)
    assert end > 0
    assert await read_all(log) == some_records(end)
    with pytest.raises(LogFull):
        await append(log, some_records(10), end)
    wider = JetStreamLog(nc, subjects, max_bytes=40_000)
    await append(wider, some_records(10, first=end + 1), end)
    assert await read_all(log) == some_records(end + 10)


async def test_a_batch_that_fits_by_half_is_not_settled(nc: Client, subjects: Subjects) -> None:
    log = JetStreamLog(nc, subjects, max_bytes=800_000)
    records = [a_large_record(100_000, number) for number in range(10)]
    with pytest.raises(LogUnsettled, match="only 5 of 10"):
        await append(log, records, START)
    stored = await read_all(log)
    assert stored == records[:5]
    await append(log, [a_record(6)], len(stored))


async def test_a_purge_makes_room_and_keeps_positions(nc: Client, subjects: Subjects) -> None:
    log = JetStreamLog(nc, subjects)
    end: int = START
    for _ in range(10):
        end = await append(log, some_records(3, first=end + 1), end)
    await log.trim(Position(14))  # in the middle of the fifth message: it stays
    for reader in (log, JetStreamLog(nc, subjects)):
        assert await read_all(reader, Position(12)) == some_records(18, first=13)
        assert await read_all(reader, Position(20)) == some_records(10, first=21)
        with pytest.raises(LogPurged) as caught:
            await read_all(reader, Position(11))
        assert caught.value.facts["first"] == 13
    await log.trim(Position(end))
    fresh = JetStreamLog(nc, subjects)
    assert await read_all(fresh, Position(end)) == []
    end = await append(fresh, [a_record(end + 1)], end)
    assert await read_all(log, Position(end - 1)) == [a_record(end)]


async def test_a_record_over_the_servers_limit_is_too_large_and_sends_nothing(
    tmp_path: Path, subjects: Subjects
) -> None:
    async with (
        EmbeddedServer(tmp_path, config="max_payload: 8192") as server,
        connected(server.url) as nc,
    ):
        log = JetStreamLog(nc, subjects)
        with pytest.raises(TooLarge, match="record 2 has"):
            await append(log, [a_record(1), a_large_record(8_000, 2)], START)
        assert await read_all(log) == []
        records = [a_large_record(5_000, 1), a_record(2), a_large_record(5_000, 3)]
        await append(log, records, START)
        assert await read_all(JetStreamLog(nc, subjects)) == records


# --- loss ---------------------------------------------------------------------------------------


async def test_a_deleted_stream_is_a_loss_and_is_not_made_again(
    nc: Client, subjects: Subjects
) -> None:
    log = JetStreamLog(nc, subjects)
    await append(log, some_records(2), START)
    await nc.jetstream().delete_stream(subjects.log_stream)
    with pytest.raises(LogLost, match="is gone"):
        await append(log, [a_record(3)], 2)
    with pytest.raises(LogLost, match="is gone"):
        await read_all(log)
    names = [info.config.name for info in await nc.jetstream().streams_info()]
    assert subjects.log_stream not in names


async def test_a_stream_made_anew_is_a_loss_even_when_it_has_grown(
    nc: Client, subjects: Subjects
) -> None:
    log = JetStreamLog(nc, subjects)
    end = await append(log, some_records(2), START)
    end = await append(log, some_records(2), end)
    await log.check()
    await nc.jetstream().delete_stream(subjects.log_stream)
    other = JetStreamLog(nc, subjects)
    await append(other, [a_record(9)], START)
    with pytest.raises(LogLost, match="made anew"):
        await append(log, [a_record(3)], end)
    await append(other, some_records(5), 1)
    for again in (log.check(), read_all(log), append(log, [a_record(3)], end)):
        with pytest.raises(LogLost, match="made anew"):
            await again


async def test_a_server_that_came_back_from_an_older_copy_lost_the_tail(
    own_nats_server: EmbeddedServer, subjects: Subjects, tmp_path: Path
) -> None:
    data, copy = own_nats_server.store_dir / "data", tmp_path / "copy"
    async with connected(own_nats_server.url) as nc:
        log, other = JetStreamLog(nc, subjects), JetStreamLog(nc, subjects)
        end = await append(log, some_records(2), START)
        await own_nats_server.stop()
        shutil.copytree(data, copy)
        await own_nats_server.start()
        end = await append(log, [a_record(3)], end, timeout_s=20)
        assert await read_all(other) == some_records(3)
        await own_nats_server.stop()
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        await own_nats_server.start()
        with pytest.raises(LogLost, match="lost its tail"):
            await append(log, [a_record(4)], end, timeout_s=20)
        with pytest.raises(LogLost, match="lost its tail"):
            await read_all(other)
        await append(JetStreamLog(nc, subjects), some_records(3, first=7), 2)
        with pytest.raises(LogLost, match="lost its tail"):  # and it goes on saying so
            await read_all(log)


async def test_a_stream_emptied_by_hand_is_a_loss(nc: Client, subjects: Subjects) -> None:
    await append(JetStreamLog(nc, subjects), some_records(2), START)
    await nc.jetstream().purge_stream(subjects.log_stream)
    with pytest.raises(LogLost, match="emptied by hand"):
        await read_all(JetStreamLog(nc, subjects))


async def test_a_gap_in_positions_is_unreadable(nc: Client, subjects: Subjects) -> None:
    log = JetStreamLog(nc, subjects)
    await append(log, some_records(2), START)
    line = b'{"v":1,"at":"2026-01-01T00:00:00Z","epoch":1,"cause":"x","events":[]}'
    await nc.jetstream().publish(subjects.eventlog, line, headers={"Slotbus-Position": "4"})
    with pytest.raises(LogUnreadable, match="begins with record 4 where 3 was due"):
        await read_all(JetStreamLog(nc, subjects))


# --- the stream's configuration -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"discard": nats.js.api.DiscardPolicy.OLD}, "discard 'old'"),
        ({"discard": nats.js.api.DiscardPolicy.NEW, "max_age": 60}, "max_age"),
        ({"storage": nats.js.api.StorageType.MEMORY}, "storage 'memory'"),
        ({"discard": nats.js.api.DiscardPolicy.NEW, "max_msgs": 10}, "max_msgs 10"),
    ],
)
async def test_a_stream_that_may_drop_records_is_refused(
    nc: Client, subjects: Subjects, wrong: dict[str, object], named: str
) -> None:
    config = nats.js.api.StreamConfig(
        name=subjects.log_stream, subjects=[subjects.eventlog]
    ).evolve(**wrong)
    await nc.jetstream().add_stream(config)
    with pytest.raises(LogError, match=named):
        await append(JetStreamLog(nc, subjects), [a_record(1)], START)


async def test_an_existing_stream_is_widened_and_never_narrowed(
    nc: Client, subjects: Subjects
) -> None:
    js = nc.jetstream()

    async def limit_after(max_bytes: int | None) -> int | None:
        await read_all(JetStreamLog(nc, subjects, max_bytes=max_bytes))
        return (await js.stream_info(subjects.log_stream)).config.max_bytes

    assert await limit_after(50_000) == 50_000
    assert await limit_after(40_000) == 50_000
    assert await limit_after(60_000) == 60_000
    assert await limit_after(None) == -1
    assert await limit_after(70_000) == -1


async def test_a_reader_that_may_not_make_the_stream_says_that_there_is_none(
    nc: Client, subjects: Subjects
) -> None:
    with pytest.raises(LogError, match="no event log was ever written"):
        await read_all(JetStreamLog(nc, subjects, create=False))


async def test_two_controllers_may_make_the_stream_at_once(nc: Client, subjects: Subjects) -> None:
    logs = [JetStreamLog(nc, subjects, max_bytes=size) for size in (100_000, 200_000, 300_000)]
    assert await asyncio.gather(*map(read_all, logs)) == [[], [], []]
