"""The lease on a real server: one holder, prompt succession, honest validity."""

from __future__ import annotations

import asyncio
import sys

import msgspec
import pytest
from nats.aio.client import Client

from controller.embedded import EmbeddedServer
from controller.identity import _stat, this_process
from controller.leader import Lease, LeaseLost, LeaseUnusable, LeaseValue, _Found, boot_clock
from events.subjects import Subjects
from tests.support.nats import connected
from tests.support.waiting import DEADLINE_S, background, until


def lease(nc: Client, subjects: Subjects, holder: str, ttl_s: int = 2) -> Lease:
    return Lease(nc, subjects, ttl_s=ttl_s, holder=holder)


async def within(task: asyncio.Task[None]) -> float:
    """Waits for a task; returns the seconds it took."""
    began = boot_clock()
    await asyncio.wait_for(asyncio.shield(task), DEADLINE_S)
    return boot_clock() - began


async def test_the_first_gets_it_and_the_second_waits(nc: Client, subjects: Subjects) -> None:
    first, second = lease(nc, subjects, "first"), lease(nc, subjects, "second")
    assert first.valid_for() == 0
    await first.acquire()
    assert 1.0 < first.valid_for() <= 1.8
    first.set_epoch(7)
    async with background(first.keep()), background(second.acquire()) as waiting:
        await until(lambda: second.seen is not None and second.seen.epoch == 7)
        assert not waiting.done()
        assert second.valid_for() == 0
        assert second.seen is not None
        assert second.seen.holder == "first"


async def test_a_release_is_heard_at_once(nc: Client, subjects: Subjects) -> None:
    first, second = lease(nc, subjects, "first", 60), lease(nc, subjects, "second", 60)
    await first.acquire()
    async with background(second.acquire()) as waiting:
        await until(lambda: second.seen is not None)
        await first.release()
        assert first.valid_for() == 0
        assert await within(waiting) < 1.0
    assert second.valid_for() > 50
    await first.release()  # a second time takes nothing away from the other
    assert await lease(nc, subjects, "third", 60)._try() is False


async def test_a_lease_that_we_cant_know_to_hold_is_released_too(
    nc: Client, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = lease(nc, subjects, "first", 60), lease(nc, subjects, "second", 60)
    publish = first._publish

    async def deaf(body: bytes, expected: int, headers: dict[str, str]) -> int:
        await publish(body, expected, headers)
        raise TimeoutError

    monkeypatch.setattr(first, "_publish", deaf)
    assert await first._try() is False
    assert first.valid_for() == 0
    monkeypatch.setattr(first, "_publish", publish)
    assert await second._try() is False
    await first.release()
    await asyncio.wait_for(second.acquire(), DEADLINE_S)
    await first.release()
    assert await lease(nc, subjects, "third", 60)._try() is False


async def test_a_holder_that_falls_silent_is_followed_after_its_ttl(
    nc: Client, subjects: Subjects
) -> None:
    first, second = lease(nc, subjects, "first"), lease(nc, subjects, "second")
    await first.acquire()
    async with background(second.acquire()) as waiting:
        while not waiting.done():
            assert not (first.valid_for() and second.valid_for())
            await asyncio.sleep(0.005)
        await waiting
    with pytest.raises(LeaseLost, match="not be renewed in time"):
        await asyncio.wait_for(first.keep(), DEADLINE_S)


async def test_the_next_one_is_there_within_half_a_second_of_the_leases_end(
    nc: Client, subjects: Subjects
) -> None:
    """The server looks only now and then for what ran out; who waits counts for itself."""
    first, second = lease(nc, subjects, "first", 3), lease(nc, subjects, "second", 3)
    await first.acquire()
    async with background(first.keep()), background(second.acquire()) as waiting:
        acquired = first._until
        await until(lambda: first._until != acquired)
        assert first._until is not None
        written = first._until - 3 * 0.9

        async def frozen() -> None:
            await asyncio.Event().wait()

        first._renew = frozen  # type: ignore[method-assign]
        while not waiting.done():
            assert not (first.valid_for() and second.valid_for())
            await asyncio.sleep(0.005)
        assert boot_clock() - written < 3.5


async def test_a_key_that_the_server_does_not_remove_is_written_over_after_its_ttl(
    nc: Client, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    second = Lease(nc, subjects, ttl_s=2, holder="second", clock=lambda: now)
    found = _Found(5, LeaseValue(holder="first", serial=1), 3)
    written: list[int] = []

    async def read() -> _Found:
        return found

    async def write(expected: int) -> None:
        written.append(expected)

    monkeypatch.setattr(second, "_read", read)
    monkeypatch.setattr(second, "_write", write)
    assert not await second._try()
    now += 2.9
    assert not await second._try()
    found = _Found(6, LeaseValue(holder="first", serial=2), 3)  # renewed
    now += 0.2
    assert not await second._try()
    now += 2.9
    assert not await second._try()
    assert written == []
    now += 0.2
    assert await second._try()
    assert written == [6]


async def test_a_lease_of_a_longer_ttl_than_ours_is_waited_for(
    nc: Client, subjects: Subjects
) -> None:
    first, second = lease(nc, subjects, "first", 4), lease(nc, subjects, "second", 1)
    await first.acquire()
    async with background(second.acquire()) as waiting:
        while first.valid_for():
            assert not waiting.done()
            await asyncio.sleep(0.01)
        assert await within(waiting) < 1.0


async def test_renewals_keep_it_beyond_its_ttl(nc: Client, subjects: Subjects) -> None:
    first = lease(nc, subjects, "first", ttl_s=1)
    await first.acquire()
    ends = boot_clock() + 2.5
    async with background(first.keep()) as keeping:
        while boot_clock() < ends:
            assert first.valid_for() > 0
            assert not keeping.done()
            await asyncio.sleep(0.01)


async def test_a_holder_that_was_robbed_stops_at_its_next_renewal(
    nc: Client, subjects: Subjects
) -> None:
    first = lease(nc, subjects, "first")
    await first.acquire()
    robber = msgspec.json.encode(LeaseValue(holder="robber", serial=1))
    await nc.jetstream().publish(f"$KV.{subjects.lease_bucket}.leader", robber)
    with pytest.raises(LeaseLost, match="robber holds it"):
        await asyncio.wait_for(first.keep(), DEADLINE_S)
    assert first.valid_for() == 0


async def test_a_renewal_whose_answer_was_lost_counts_from_its_send(
    nc: Client, subjects: Subjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lease(nc, subjects, "first", ttl_s=10)
    await first.acquire()
    before = first.valid_for()
    publish = first._publish

    async def deaf(body: bytes, expected: int, headers: dict[str, str]) -> int:
        await publish(body, expected, headers)
        raise TimeoutError

    monkeypatch.setattr(first, "_publish", deaf)
    sent = boot_clock()
    with pytest.raises(TimeoutError):
        await first._renew()
    assert first.valid_for() < before
    monkeypatch.setattr(first, "_publish", publish)
    await first._renew()
    assert first.valid_for() == pytest.approx(9 - (boot_clock() - sent), abs=0.05)
    await first._renew()


async def test_a_dead_holder_on_this_machine_is_not_waited_for(
    nc: Client, subjects: Subjects
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE
    )
    first, second = lease(nc, subjects, "first", 600), lease(nc, subjects, "second", 600)
    first._process = msgspec.structs.replace(
        this_process(), pid=child.pid, started=_stat(child.pid).started
    )
    await first.acquire()
    async with background(second.acquire()) as waiting:
        await until(lambda: second.seen is not None)
        assert not waiting.done()
        await child.communicate(b"\n")
        assert await within(waiting) < 5.0


async def test_it_survives_a_restart_of_the_server(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc, connected(own_nats_server.url) as other:
        first, second = lease(nc, subjects, "first", 15), lease(other, subjects, "second", 15)
        await first.acquire()
        async with background(first.keep()) as keeping, background(second.acquire()) as waiting:
            await until(lambda: second.seen is not None)
            own_nats_server.kill()
            await own_nats_server.start()
            serial = first._serial
            await until(lambda: first.valid_for() > 12 and first._serial > serial)
            assert not keeping.done()
            assert not waiting.done()


async def test_without_a_server_it_ends_in_time(
    own_nats_server: EmbeddedServer, subjects: Subjects
) -> None:
    async with connected(own_nats_server.url) as nc:
        first = lease(nc, subjects, "first")
        await first.acquire()
        await own_nats_server.stop()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(first.keep(), DEADLINE_S)
        await own_nats_server.start()
        await asyncio.wait_for(first.acquire(), DEADLINE_S)


async def test_a_bucket_that_cant_hold_a_lease_is_told(nc: Client, subjects: Subjects) -> None:
    bucket = subjects.lease_bucket
    js = nc.jetstream()
    await js.add_stream(name=f"KV_{bucket}", subjects=[f"$KV.{bucket}.>"])
    with pytest.raises(LeaseUnusable, match="without TTLs"):
        await asyncio.wait_for(lease(nc, subjects, "first").acquire(), DEADLINE_S)


async def test_a_closed_connection_ends_the_wait(
    nats_server: EmbeddedServer, nc: Client, subjects: Subjects
) -> None:
    first = lease(nc, subjects, "first")
    await first.acquire()
    async with connected(nats_server.url) as other:
        second = lease(other, subjects, "second")
        async with background(second.acquire()) as waiting:
            await until(lambda: second.seen is not None)
            await other.close()
            with pytest.raises(LeaseLost, match="closed"):
                await asyncio.wait_for(waiting, DEADLINE_S)
