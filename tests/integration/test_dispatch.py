"""The dispatcher alone, in virtual time: what replaces what, bounds, faults, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from events.errors import SlotbusError
from events.traffic import AgentStopReply, InventoryReply, Stamp
from schedulers.backend import AT_ONCE
from schedulers.decide.messages import (
    Acknowledge,
    Effect,
    InventoryFailed,
    InventoryTaken,
    Launch,
    Launched,
    LaunchFailed,
    LaunchUncertain,
    Outcome,
    Stop,
    StopAnswered,
    TakeInventory,
)
from schedulers.dispatch import LISTS_AT_ONCE, Dispatcher
from schedulers.launcher import (
    Assignment,
    LaunchAck,
    LaunchDoubtful,
    LaunchRefused,
    StopOrder,
    Unreachable,
)
from tests.support.scripted import NEVER, OK, ScriptedLauncher, ScriptedNode, late, refused

pytestmark = pytest.mark.looptime

TIMEOUT_S = 10.0


class Desk:
    """A dispatcher and what it told."""

    def __init__(self, launcher: ScriptedLauncher) -> None:
        self.told: list[Outcome] = []
        self.wanted: Callable[[Effect], bool] = lambda _: True
        self.dispatcher = Dispatcher(
            launcher,
            wanted=lambda effect: self.wanted(effect),
            tell=self.told.append,
            launch_timeout_s=TIMEOUT_S,
        )

    async def settle(self) -> list[Outcome]:
        assert await self.dispatcher.until_idle(1_000)
        return self.told


def launch(worker_id: str, node_id: str = "n1", incarnation: str = "i-1") -> Launch:
    return Launch(
        Assignment(
            worker_id=worker_id,
            job_id="j",
            run_id=1,
            slots=1,
            node_id=node_id,
            incarnation=incarnation,
            epoch=1,
            stamp=Stamp(cluster="test", epoch=1, position=1),
        )
    )


def stop(worker_id: str, *, force: bool = False, node_id: str = "n1") -> Stop:
    return Stop(
        StopOrder(
            worker_id=worker_id,
            node_id=node_id,
            incarnation="i-1",
            force=force,
            grace_s=3.0,
            epoch=1,
        )
    )


async def test_outcomes_are_told_as_what_they_are() -> None:
    node = ScriptedNode("n1")
    node.turns.extend([OK, refused("no disk")])
    desk = Desk(ScriptedLauncher(node))
    desk.dispatcher.start(launch("w1"))
    desk.dispatcher.start(launch("w2"))
    await desk.settle()
    desk.dispatcher.start(stop("w1"))
    desk.dispatcher.start(TakeInventory("n1", "i-1", 1))
    desk.dispatcher.start(TakeInventory("n1", "i-0", 1))
    await desk.settle()

    assert desk.told[:2] == [
        Launched("w1", "i-1", pid=1_001, seq=1),
        LaunchFailed("w2", "no disk"),
    ]
    assert StopAnswered("w1", "stopping", "n1") in desk.told
    kinds = [type(outcome) for outcome in desk.told[2:]]
    # Asked for another incarnation, the first question is void.
    assert sorted(k.__name__ for k in kinds) == ["InventoryFailed", "StopAnswered"]
    assert desk.dispatcher.outcomes["Launched"] == 1


async def test_uncertainty_comes_when_the_time_for_launching_is_over() -> None:
    desk = Desk(ScriptedLauncher(ScriptedNode("n1", usual=NEVER)))
    desk.dispatcher.start(launch("w1"))
    began = asyncio.get_running_loop().time()
    assert [type(outcome) for outcome in await desk.settle()] == [LaunchUncertain]
    assert 8 <= asyncio.get_running_loop().time() - began <= TIMEOUT_S + 3


async def test_what_ran_already_did_not_fail_to_launch() -> None:
    """The answer to the launch was lost, and the worker has ended since: its end, with its
    exit code, is reported, and is not to be overtaken by "it never ran"."""

    class Ended(ScriptedLauncher):
        async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
            raise LaunchRefused("it is finished", ran=True)

    desk = Desk(Ended(ScriptedNode("n1")))
    desk.dispatcher.start(launch("w1"))
    assert await desk.settle() == []
    assert desk.dispatcher.outcomes["RanAlready"] == 1


@pytest.mark.parametrize(
    "refusal",
    [LaunchDoubtful("no room"), LaunchRefused("it already ran", ran=True, told=True)],
    ids=["unproved", "told already"],
)
async def test_what_is_not_proved_to_have_never_run_is_in_doubt(refusal: SlotbusError) -> None:
    class Refusing(ScriptedLauncher):
        async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
            raise refusal

    desk = Desk(Refusing(ScriptedNode("n1")))
    desk.dispatcher.start(launch("w1"))
    assert await desk.settle() == [LaunchUncertain("w1", refusal.message)]


async def test_what_is_under_way_is_not_begun_twice() -> None:
    node = ScriptedNode("n1", usual=late(1.0))
    desk = Desk(ScriptedLauncher(node))
    for _ in range(3):
        desk.dispatcher.start(launch("w1"))
    assert len(await desk.settle()) == 1
    assert len(node.orders) == 1


async def test_a_stop_takes_the_place_of_its_launch() -> None:
    node = ScriptedNode("n1", usual=late(1.0))
    desk = Desk(ScriptedLauncher(node))
    desk.dispatcher.start(launch("w1"))
    await asyncio.sleep(0.5)
    desk.dispatcher.start(stop("w1"))
    desk.dispatcher.start(launch("w1"))  # too late: it is being stopped
    assert await desk.settle() == [StopAnswered("w1", "unknown", "n1")]
    assert node.spawned == []


async def test_a_launch_for_the_next_incarnation_replaces_the_old_one() -> None:
    node = ScriptedNode("n1", usual=late(1.0), incarnation="i-2")
    desk = Desk(ScriptedLauncher(node))
    desk.dispatcher.start(launch("w1", incarnation="i-1"))
    await asyncio.sleep(0.5)
    desk.dispatcher.start(launch("w1", incarnation="i-2"))
    assert await desk.settle() == [Launched("w1", "i-2", pid=1_001, seq=1)]


async def test_force_replaces_a_stop_that_nobody_answers() -> None:
    node = ScriptedNode("n1", silent=True)
    desk = Desk(ScriptedLauncher(node))
    desk.dispatcher.start(stop("w1"))
    await asyncio.sleep(0.5)
    desk.dispatcher.start(stop("w1", force=True))
    node.silent = False
    await desk.settle()
    assert [order.force for order in node.signals] == [True]


async def test_a_stop_is_repeated_until_it_is_answered_or_unwanted() -> None:
    node = ScriptedNode("n1", silent=True)
    desk = Desk(ScriptedLauncher(node))
    desk.dispatcher.start(stop("w1"))
    desk.dispatcher.start(stop("w2"))
    await asyncio.sleep(100)
    assert desk.told == []
    desk.wanted = lambda effect: effect == stop("w1")
    node.silent = False
    assert await desk.settle() == [StopAnswered("w1", "unknown", "n1")]


async def test_what_is_not_wanted_any_more_does_not_go_out() -> None:
    node = ScriptedNode("n1")
    desk = Desk(ScriptedLauncher(node))
    desk.wanted = lambda _: False
    desk.dispatcher.start(launch("w1"))
    desk.dispatcher.start(stop("w2"))
    desk.dispatcher.start(TakeInventory("n1", "i-1", 1))
    desk.dispatcher.start(Acknowledge("n1", "w3"))
    assert [type(outcome) for outcome in await desk.settle()] == [InventoryFailed]
    assert (node.orders, node.signals) == ([], [])


async def test_a_silent_node_holds_up_no_other() -> None:
    silent, good = ScriptedNode("n1", silent=True), ScriptedNode("n2", slots=500)
    desk = Desk(ScriptedLauncher(silent, good))
    for number in range(4 * AT_ONCE):
        desk.dispatcher.start(launch(f"s{number}", "n1"))
    for number in range(3):
        desk.dispatcher.start(launch(f"g{number}", "n2"))
    await asyncio.sleep(0.1)
    assert [type(outcome) for outcome in desk.told] == [Launched] * 3
    await desk.dispatcher.close()


async def test_tries_on_one_node_are_bounded() -> None:
    under_way, most = 0, 0

    class Counting(ScriptedLauncher):
        async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await super().launch(assignment, timeout_s)
            finally:
                under_way -= 1

    desk = Desk(Counting(ScriptedNode("n1", slots=1_000, usual=late(0.1))))
    for number in range(1_000):
        desk.dispatcher.start(launch(f"w{number}"))
    assert len(await desk.settle()) == 1_000
    assert (under_way, most) == (0, AT_ONCE)


async def test_a_fleet_is_not_asked_for_its_inventories_all_at_once() -> None:
    under_way, most = 0, 0
    count = 4 * LISTS_AT_ONCE

    class Counting(ScriptedLauncher):
        async def inventory(
            self, node_id: str, incarnation: str, epoch: int, timeout_s: float
        ) -> InventoryReply:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.1)
            under_way -= 1
            return InventoryReply(incarnation=incarnation, seq=1, epoch=epoch, workers=[])

    desk = Desk(Counting(ScriptedNode("n1")))
    for number in range(count):
        desk.dispatcher.start(TakeInventory(f"n{number}", "i-0", 1))
        desk.dispatcher.start(TakeInventory(f"n{number}", "i-1", 1))
    assert len(asyncio.all_tasks()) <= 2 * LISTS_AT_ONCE + 1
    assert {type(outcome) for outcome in await desk.settle()} == {InventoryTaken}
    taken = [outcome for outcome in desk.told if isinstance(outcome, InventoryTaken)]
    assert {outcome.inventory.incarnation for outcome in taken} == {"i-1"}
    assert (len(desk.told), under_way, most) == (count, 0, LISTS_AT_ONCE)


async def test_what_waits_to_be_asked_is_forgotten_at_the_end() -> None:
    desk = Desk(ScriptedLauncher(ScriptedNode("n1", usual=NEVER)))
    for number in range(2 * LISTS_AT_ONCE):
        desk.dispatcher.start(TakeInventory(f"n{number}", "i-1", 1))
    await desk.dispatcher.close()
    assert await desk.settle() == []
    assert len(asyncio.all_tasks()) == 1


async def test_a_launcher_that_breaks_its_contract_is_heard_of() -> None:
    class Broken(ScriptedLauncher):
        async def launch(self, assignment: Assignment, timeout_s: float) -> LaunchAck:
            raise ZeroDivisionError("a fault of the backend")

        async def signal(self, order: StopOrder, timeout_s: float) -> AgentStopReply:
            raise ZeroDivisionError("a fault of the backend")

        async def inventory(
            self, node_id: str, incarnation: str, epoch: int, timeout_s: float
        ) -> InventoryReply:
            raise ZeroDivisionError("a fault of the backend")

    desk = Desk(Broken(ScriptedNode("n1")))
    desk.dispatcher.start(launch("w1"))
    desk.dispatcher.start(stop("w2"))
    desk.dispatcher.start(TakeInventory("n1", "i-1", 1))
    told = await desk.settle()
    assert {type(outcome) for outcome in told} == {LaunchUncertain, InventoryFailed}
    assert desk.dispatcher.outcomes["Fault"] == 3


async def test_an_acknowledgement_is_tried_a_few_times() -> None:
    tries: list[str] = []

    class Shaky(ScriptedLauncher):
        async def acknowledge(self, node_id: str, worker_id: str) -> None:
            tries.append(worker_id)
            if worker_id == "never" or len(tries) < 3:
                raise Unreachable("not now")

    desk = Desk(Shaky(ScriptedNode("n1")))
    desk.dispatcher.start(Acknowledge("n1", "w1"))
    await desk.settle()
    assert tries == ["w1"] * 3
    desk.dispatcher.start(Acknowledge("n1", "never"))
    await desk.settle()
    assert tries.count("never") == 5


async def test_close_ends_everything_at_once() -> None:
    node = ScriptedNode("n1", silent=True)
    desk = Desk(ScriptedLauncher(node))
    for number in range(200):
        desk.dispatcher.start(launch(f"w{number}"))
        desk.dispatcher.start(stop(f"v{number}"))
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await desk.dispatcher.close()
    assert asyncio.get_running_loop().time() == began
    assert desk.told == []
    assert await desk.dispatcher.until_idle(0.1)
    assert len(asyncio.all_tasks()) == 1


async def test_waiting_for_idleness_is_bounded() -> None:
    desk = Desk(ScriptedLauncher(ScriptedNode("n1", usual=late(2.0))))
    assert await desk.dispatcher.until_idle(0)
    desk.dispatcher.start(launch("w1"))
    assert not await desk.dispatcher.until_idle(1.0)
    assert await desk.dispatcher.until_idle(1.5)
    assert [type(outcome) for outcome in desk.told] == [Launched]


async def test_an_inventory_is_brought_back_whole() -> None:
    node = ScriptedNode("n1")
    desk = Desk(ScriptedLauncher(node))
    desk.dispatcher.start(launch("w1"))
    await desk.settle()
    desk.dispatcher.start(TakeInventory("n1", "i-1", 1))
    taken = (await desk.settle())[-1]
    assert isinstance(taken, InventoryTaken)
    assert [row.worker_id for row in taken.inventory.workers] == ["w1"]
