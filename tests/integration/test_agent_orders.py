"""What an agent does with orders: in bounds, fenced, and whatever bytes they are made of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from events.codec import encode, error_from_body
from events.errors import Invalid, NotEnoughSlots, SlotbusError, StartFailed
from events.states import WorkerState
from events.subjects import Subjects
from events.traffic import (
    AgentInventory,
    AgentStart,
    AgentStartReply,
    AgentStop,
    InventoryReply,
    Stamp,
    WorkerFinishedReq,
)
from schedulers.launcher import Assignment, LaunchDoubtful, LaunchRefused
from schedulers.node.config import AgentConfig
from schedulers.node.identity import new_incarnation
from schedulers.node.launcher import NatsLauncher
from tests.support.agents import EPOCH, NodeLeader, RunningAgent, order_start, running
from tests.support.waiting import until

TIMEOUT_S = 10.0


class Site:
    """One agent, and orders to it as their bytes travel."""

    def __init__(self, nc: Client, subjects: Subjects, agent: RunningAgent, incarnation: str):
        self._nc = nc
        self._subjects = subjects
        self.agent = agent
        self.incarnation = incarnation

    async def ask(self, verb: str, body: bytes, timeout_s: float = TIMEOUT_S) -> bytes:
        subject = self._subjects.agent("n1", verb)
        return (await self._nc.request(subject, body, timeout_s)).data

    async def tell(self, verb: str, body: bytes) -> None:
        await self._nc.publish(self._subjects.agent("n1", verb), body)

    async def start(self, order: AgentStart) -> AgentStartReply:
        """Raises the refusal."""
        answer = await self.ask("start", encode(order))
        refusal = error_from_body(answer)
        if refusal is not None:
            raise refusal
        return msgspec.json.decode(answer, type=AgentStartReply)

    async def inventory(self) -> InventoryReply:
        answer = await self.ask("inventory", encode(AgentInventory(epoch=EPOCH)))
        return msgspec.json.decode(answer, type=InventoryReply)

    async def running(self) -> list[str]:
        rows = (await self.inventory()).workers
        return sorted(row.worker_id for row in rows if row.state is WorkerState.RUNNING)

    def order(self, worker_id: str, *command: str, **fields: object) -> AgentStart:
        order = order_start(worker_id, self.incarnation, *command)
        return msgspec.structs.replace(order, **fields)


@pytest_asyncio.fixture
async def site(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent_config: AgentConfig
) -> AsyncIterator[Site]:
    async with running(agent_config) as agent:
        yield Site(nc, subjects, agent, node_leader.registered[-1].incarnation)


async def test_no_more_slots_are_given_out_than_the_node_has(site: Site) -> None:
    await site.start(site.order("w1", "sleep", "60", slots=6))
    with pytest.raises(NotEnoughSlots) as refused:
        await site.start(site.order("w2", "sleep", "60", slots=3))
    assert (refused.value.slots_needed, refused.value.slots_free) == (1, 2)
    await site.start(site.order("w3", "sleep", "60", slots=2))
    assert await site.running() == ["w1", "w3"]


async def test_starts_that_race_for_the_last_slots_do_not_both_win(site: Site) -> None:
    orders = [site.order(f"w{i}", "sleep", "60", slots=3) for i in range(5)]
    outcomes = await asyncio.gather(*map(site.start, orders), return_exceptions=True)
    assert sum(isinstance(one, AgentStartReply) for one in outcomes) == 2
    assert sum(isinstance(one, NotEnoughSlots) for one in outcomes) == 3
    assert len(await site.running()) == 2


async def test_a_start_refused_for_want_of_slots_never_happens_later(
    site: Site, node_leader: NodeLeader
) -> None:
    await site.start(site.order("w1", "sleep", "60", slots=8))
    refused = site.order("w2", "sleep", "60")
    with pytest.raises(NotEnoughSlots):
        await site.start(refused)
    await site.ask(
        "stop",
        encode(AgentStop(worker_id="w1", epoch=EPOCH, incarnation=site.incarnation, force=True)),
    )
    await node_leader.end_of("w1")
    with pytest.raises(StartFailed):
        await site.start(refused)


@pytest.mark.parametrize("told", [False, True], ids=["end not told yet", "end acknowledged"])
async def test_a_repeated_start_without_room_says_that_the_first_was_obeyed(
    site: Site, node_leader: NodeLeader, told: bool
) -> None:
    """Its answer was lost, it ran, and others have its slots by now."""
    answer = node_leader.policy
    node_leader.policy = lambda said: (
        None if isinstance(said, WorkerFinishedReq) and not told else answer(said)
    )
    first = site.order("w1", "true", slots=8)
    await site.start(first)
    await node_leader.end_of("w1")
    if told:
        await until(lambda: site.agent.stats.ends_reported == 1)
    await site.start(site.order("w2", "sleep", "60", slots=8))
    with pytest.raises(NotEnoughSlots) as refused:
        await site.start(first)
    assert (refused.value.facts["ran"], refused.value.facts["told"]) == (True, told)
    with pytest.raises(NotEnoughSlots) as never:
        await site.start(site.order("w3", "true"))
    assert (never.value.facts["ran"], never.value.facts["told"]) == (False, False)


async def test_a_refusal_that_proves_nothing_leaves_the_launch_in_doubt(
    nc: Client, subjects: Subjects
) -> None:
    """As an agent's of an earlier version, or of one that can't read the order."""
    launcher = NatsLauncher(nc, subjects)
    answers: list[SlotbusError] = [
        NotEnoughSlots(1, 0),
        Invalid("no such field"),
        NotEnoughSlots(1, 0, ran=False),
        NotEnoughSlots(1, 0, ran=True),
    ]

    async def answer(message: Msg) -> None:
        await message.respond(encode(answers.pop(0).body()))

    await nc.subscribe(subjects.agent("n1", "start"), cb=answer)
    kinds = []
    for _ in range(len(answers)):
        with pytest.raises((LaunchDoubtful, LaunchRefused)) as refused:
            await launcher.launch(an_assignment(), TIMEOUT_S)
        kinds.append((type(refused.value), refused.value.facts.get("ran")))
    assert kinds == [
        (LaunchDoubtful, None),
        (LaunchDoubtful, None),
        (LaunchRefused, False),
        (LaunchRefused, True),
    ]
    await launcher.close()


def an_assignment() -> Assignment:
    return Assignment(
        worker_id="w1",
        job_id="j",
        run_id=1,
        slots=1,
        node_id="n1",
        incarnation="i-1",
        epoch=EPOCH,
        stamp=Stamp(cluster="test", epoch=EPOCH, position=1),
    )


async def test_slots_come_back_with_the_end_of_a_worker(
    site: Site, node_leader: NodeLeader
) -> None:
    for round_ in range(3):
        await site.start(site.order(f"w{round_}", "true", slots=8))
        await node_leader.end_of(f"w{round_}")


async def test_the_full_node_still_answers_a_repeated_start(site: Site) -> None:
    order = site.order("w1", "sleep", "60", slots=8)
    assert (await site.start(order)).pid == (await site.start(order)).pid


async def test_nothing_to_execute_is_refused_and_says_what_is_missing(site: Site) -> None:
    with pytest.raises(StartFailed, match="worker command"):
        await site.start(site.order("w1"))
    with pytest.raises(StartFailed):
        await site.start(site.order("w1", "sleep", "60"))


async def test_whose_command_a_worker_executes(
    nc: Client, subjects: Subjects, node_leader: NodeLeader, agent_config: AgentConfig
) -> None:
    def says(number: int) -> list[str]:
        return ["sh", "-c", f"exit {number}"]

    config = msgspec.structs.replace(agent_config, worker_command=says(2))
    async with running(config) as agent:
        site = Site(nc, subjects, agent, node_leader.registered[-1].incarnation)
        await site.start(site.order("w1", *says(1), default_command=says(3)))
        await site.start(site.order("w2", default_command=says(3)))
        await agent.stop()
    async with running(agent_config) as agent:
        site = Site(nc, subjects, agent, node_leader.registered[-1].incarnation)
        await site.start(site.order("w3", default_command=says(3)))
        ends = [(await node_leader.end_of(f"w{number}")).exit_code for number in (1, 2, 3)]
    assert ends == [1, 2, 3]


async def test_what_fences_an_order_is_in_the_refusal(site: Site) -> None:
    with pytest.raises(StartFailed) as refused:
        await site.start(site.order("w1", "sleep", "60", epoch=EPOCH - 1))
    assert refused.value.facts["epoch_seen"] == EPOCH
    with pytest.raises(StartFailed) as refused:
        await site.start(site.order("w1", "sleep", "60", incarnation=new_incarnation(1)))
    assert refused.value.facts["incarnation"] == site.incarnation
    assert await site.running() == []


async def test_an_order_for_a_later_agent_of_this_name_is_left_to_it(site: Site) -> None:
    order = site.order("w1", "sleep", "60", incarnation=new_incarnation(2**47))
    with pytest.raises(TimeoutError):
        await site.ask("start", encode(order), timeout_s=0.3)
    assert site.agent.stats.ignored == 1
    assert await site.running() == []


async def test_an_order_of_a_new_leader_raises_the_epoch(site: Site) -> None:
    await site.start(site.order("w1", "sleep", "60", epoch=EPOCH + 1))
    with pytest.raises(StartFailed):
        await site.start(site.order("w2", "sleep", "60"))


async def test_orders_for_one_worker_are_carried_out_in_their_order(site: Site) -> None:
    stop = AgentStop(worker_id="w1", epoch=EPOCH, incarnation=site.incarnation, force=True)
    for _ in range(5):
        await site.tell("start", encode(site.order("w1", "sleep", "60")))
        await site.tell("stop", encode(stop))
    with pytest.raises(SlotbusError):
        await site.start(site.order("w1", "sleep", "60"))
    assert site.agent.stats.starts == 1


@pytest.mark.parametrize("verb", ["start", "stop", "inventory", "logs", "", "START", "x.y"])
async def test_no_bytes_end_an_agent(
    site: Site, node_leader: NodeLeader, verb: str, nc: Client
) -> None:
    chance = random.Random(f"seed of {verb}")
    good = encode(site.order("w1", "sleep", "60"))
    bodies = [
        *(b"", b"null", b"[]", b"{", b'"', b"\x00", b"\xff\xfe", b"[" * 50_000),
        *(b'{"worker_id": 3}', b'{"worker_id": "a b"}', b'{"worker_id": "' + b"x" * 129 + b'"}'),
        *(b'{"epoch": -1}', b'{"epoch": 1e400}', b'{"epoch": 99999999999999999999}'),
        *(chance.randbytes(chance.randrange(200)) for _ in range(50)),
        *(good[: chance.randrange(len(good))] for _ in range(20)),
    ]
    for body in bodies:
        if verb and "." not in verb:
            answer = error_from_body(await site.ask(verb, body))
            assert answer is not None
            assert answer.code == "invalid"
        await nc.publish(f"{site.agent.config.root}.agent.n1.{verb or 'nothing'}", body)
    await node_leader.next_beat()
    assert await site.running() == []
    assert site.agent.stats.faults == 0
    assert not site.agent.task.done()


async def test_a_refusal_without_a_reply_subject_is_only_counted(
    site: Site, node_leader: NodeLeader
) -> None:
    await site.tell("start", b"no json")
    await node_leader.next_beat()
    assert site.agent.stats.invalid == 1
