"""How hard the API server is pressed, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from schedulers.kubernetes.pacing import Pacer
from slotbus_pytest.virtual import VirtualLoop


def run(work: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


async def times_of(pacer: Pacer, count: int, takes_s: float = 0.0) -> list[float]:
    """When each of so many requests began."""
    loop = asyncio.get_running_loop()
    began: list[float] = []

    async def ask() -> None:
        async with pacer.turn():
            began.append(round(loop.time(), 3))
            await asyncio.sleep(takes_s)

    await asyncio.gather(*(ask() for _ in range(count)))
    return began


def test_a_burst_at_once_and_then_the_rate() -> None:
    async def work() -> None:
        pacer = Pacer(10, 3, 100)
        await asyncio.sleep(5)
        assert await times_of(pacer, 6) == [5.0, 5.0, 5.0, 5.1, 5.2, 5.3]
        assert pacer.waits["rate"].times == 3
        assert round(pacer.waits["rate"].seconds, 3) == 0.6
        assert pacer.waits["at_once"].times == pacer.waits["server"].times == 0

    run(work())


def test_never_more_than_so_many_at_once() -> None:
    async def work() -> None:
        pacer = Pacer(1_000, 100, 2)
        await asyncio.sleep(5)
        assert await times_of(pacer, 5, takes_s=1.0) == [5.0, 5.0, 6.0, 6.0, 7.0]
        assert pacer.waits["at_once"].times == 3
        assert round(pacer.waits["at_once"].seconds, 3) == 4.0

    run(work())


def test_everybody_waits_when_the_server_asks_for_it() -> None:
    async def work() -> None:
        pacer = Pacer(1_000, 100, 10)
        await asyncio.sleep(5)
        pacer.hold_off(2.0)
        assert all(7.0 <= at <= 7.21 for at in await times_of(pacer, 3))
        assert pacer.waits["server"].times == 3
        pacer.hold_off(100_000.0)
        began = asyncio.get_running_loop().time()
        assert (await times_of(pacer, 1))[0] - began <= 66.0

    run(work())


def test_one_after_the_other_asks_a_server_that_is_away() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        pacer = Pacer(1_000, 100, 10)
        tried: list[float] = []

        async def ask() -> None:
            async with pacer.turn():
                tried.append(loop.time())
                if loop.time() < 100:
                    pacer.unanswered("connection refused")
                else:
                    pacer.answered()

        await asyncio.sleep(5)
        pacer.unanswered("connection refused")
        await asyncio.gather(*(ask() for _ in range(200)))
        away = [at for at in tried if at < 100]
        assert 95 / 5 <= len(away) <= 95 / 2.5 + 10
        assert len(tried) == 200
        assert max(tried) < 116
        assert pacer.away == ""

    run(work())


def test_who_waits_goes_on_when_anybody_was_answered() -> None:
    async def work() -> None:
        pacer = Pacer(1_000, 100, 10)
        for _ in range(20):
            pacer.unanswered("connection refused")
        waiting = asyncio.create_task(times_of(pacer, 3))
        await asyncio.sleep(1)
        assert not waiting.done()
        assert pacer.away == "connection refused"
        pacer.answered()
        assert await waiting == [1.0, 1.0, 1.0]

    run(work())
