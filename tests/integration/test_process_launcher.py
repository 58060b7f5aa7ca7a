"""The process launcher on supervisors that are slow, gone or replaced, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from events.errors import Internal
from events.states import WorkerState
from events.traffic import AgentStopReply, InventoryRow, Stamp, WorkerFinishedReq
from schedulers.launcher import Assignment, LaunchDoubtful, LaunchRefused, Unreachable
from schedulers.process import ProcessLauncher
from schedulers.supervisor.api import (
    Inventory,
    OutputTail,
    Spawned,
    SpawnRefused,
    Supervisor,
    SupervisorGone,
    WorkerSpec,
)

pytestmark = pytest.mark.looptime

HERE = "here"


class FakeSupervisor:
    """Answers after ``delay_s``, with ``error`` where there is one. ``gone`` ends its
    reports."""

    def __init__(self, ends: list[InventoryRow]) -> None:
        self.ends = ends
        self.delay_s = 0.0
        self.error: Exception | None = None
        self.gone = asyncio.Event()
        self.closed = 0
        self.renewals = 0
        self.launched: list[str] = []

    async def _answer(self) -> None:
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error

    async def launch(self, spec: WorkerSpec, epoch: int) -> Spawned:
        await self._answer()
        self.launched.append(spec.worker_id)
        return Spawned(pid=1, seq=1)

    async def stop(
        self, worker_id: str, *, force: bool, grace_s: float, epoch: int
    ) -> AgentStopReply:
        await self._answer()
        return AgentStopReply(state="unknown")

    async def inventory(self, epoch: int) -> Inventory:
        await self._answer()
        return Inventory(seq=1, epoch=epoch, workers=[])

    async def acknowledge(self, worker_ids: Sequence[str]) -> None:
        await self._answer()

    async def renew(self, sent_at: float | None = None) -> None:
        await self._answer()
        self.renewals += 1

    async def output(self, worker_id: str, *, since: int, max_bytes: int) -> OutputTail:
        return OutputTail(data=b"", offset=0)

    async def reports(self) -> AsyncIterator[InventoryRow]:
        for row in self.ends:
            yield row
        await self.gone.wait()

    async def close(self) -> None:
        self.closed += 1
        self.gone.set()


class Yard:
    """Gives out supervisors one after the other, each with the ``ends`` it will report;
    connecting takes ``connect_s``."""

    def __init__(self) -> None:
        self.made: list[FakeSupervisor] = []
        self.ends: list[InventoryRow] = []
        self.connect_s = 0.0
        self.error: Exception | None = None
        self.attempts = 0
        self.launcher = ProcessLauncher(self.connect, HERE)

    async def connect(self) -> Supervisor:
        self.attempts += 1
        await asyncio.sleep(self.connect_s)
        if self.error is not None:
            raise self.error
        self.made.append(FakeSupervisor(list(self.ends)))
        return self.made[-1]

    async def launch(
        self, worker_id: str, timeout_s: float = 3.0, command: tuple[str, ...] = ("true",)
    ) -> None:
        await self.launcher.launch(
            Assignment(
                worker_id=worker_id,
                job_id="j",
                run_id=1,
                slots=1,
                node_id="local",
                incarnation=HERE,
                epoch=1,
                stamp=Stamp(cluster="test", epoch=1, position=1),
                command=list(command),
            ),
            timeout_s,
        )


@pytest.fixture
async def yard() -> AsyncIterator[Yard]:
    made = Yard()
    yield made
    await made.launcher.close()
    assert len(asyncio.all_tasks()) == 1
    assert [s.closed for s in made.made] == [1] * len(made.made)


async def test_a_worker_without_a_command_may_run_already(yard: Yard) -> None:
    """An earlier controller named one, and its answer was lost: the supervisor knows."""
    await yard.launch("w1", command=())
    assert yard.made[0].launched == ["w1"]


async def test_a_supervisor_that_does_not_say_what_was_leaves_a_launch_in_doubt(
    yard: Yard,
) -> None:
    await yard.launch("w1")
    yard.made[0].error = SpawnRefused("it ended")
    with pytest.raises(LaunchDoubtful):
        await yard.launch("w1")
    yard.made[0].error = SpawnRefused("no such program", ran=False)
    with pytest.raises(LaunchRefused):
        await yard.launch("w1")


async def test_all_who_ask_share_one_connection(yard: Yard) -> None:
    yard.connect_s = 1.0
    await asyncio.gather(*(yard.launch(f"w{i}") for i in range(50)))
    assert (yard.attempts, len(yard.made[0].launched)) == (1, 50)


async def test_who_gives_up_does_not_end_a_slow_start(yard: Yard) -> None:
    yard.connect_s = 8.0
    for _ in range(2):
        with pytest.raises(Unreachable):
            await yard.launch("w1", timeout_s=3.0)
    await yard.launch("w1", timeout_s=3.0)
    assert yard.attempts == 1


async def test_a_late_failure_does_not_throw_away_the_successor(yard: Yard) -> None:
    await yard.launch("w1")
    first = yard.made[0]
    first.error, first.delay_s = SupervisorGone("it died"), 2.0
    slow = asyncio.create_task(yard.launch("w2"))
    await asyncio.sleep(1)
    first.delay_s = 0.0
    with pytest.raises(Unreachable):
        await yard.launch("w3")
    await yard.launch("w3")  # on the successor
    with pytest.raises(Unreachable):
        await slow
    await yard.launch("w2")
    assert (len(yard.made), yard.made[1].launched) == (2, ["w3", "w2"])
    assert first.closed == 1


async def test_a_slow_supervisor_is_not_a_gone_one(yard: Yard) -> None:
    await yard.launch("w1")
    yard.made[0].delay_s = 5.0
    with pytest.raises(Unreachable, match="within 3 s"):
        await yard.launch("w2")
    yard.made[0].delay_s = 0.0
    await yard.launch("w2")
    assert len(yard.made) == 1


async def test_a_disk_that_cannot_be_written_is_an_error_of_its_own(yard: Yard) -> None:
    await yard.launch("w1")
    yard.made[0].error = OSError("No space left on device")
    with pytest.raises(Internal, match="No space left"):
        await yard.launch("w2")


async def test_reports_go_on_with_the_next_supervisor(yard: Yard) -> None:
    heard: list[WorkerFinishedReq] = []

    async def listen() -> None:
        heard.extend([report async for report in yard.launcher.reports()])

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0.1)
    yard.error = SupervisorGone("not yet")
    yard.made[0].gone.set()
    await asyncio.sleep(60)
    assert 10 < yard.attempts < 60  # with more and more patience
    yard.error = None
    yard.ends.append(
        InventoryRow(worker_id="w1", job_id="j", run_id=1, slots=1, state=WorkerState.FINISHED)
    )
    await asyncio.sleep(6)
    yard.made[1].gone.set()
    await asyncio.sleep(1)
    await yard.launcher.close()
    await listening
    assert [report.worker_id for report in heard] == ["w1", "w1"]  # not acknowledged, so again


async def test_the_lease_is_renewed_whatever_happens_meanwhile(yard: Yard) -> None:
    await yard.launch("w1")
    assert yard.made[0].renewals == 1
    await asyncio.sleep(5)
    assert yard.made[0].renewals == 3
    yard.made[0].error = OSError("I/O error")
    await asyncio.sleep(10)
    yard.made[0].error = None
    await asyncio.sleep(5)
    assert yard.made[0].renewals >= 5


async def test_a_close_in_the_midst_of_connecting_is_an_answer(yard: Yard) -> None:
    yard.connect_s = 5.0
    launching = asyncio.create_task(yard.launch("w1", timeout_s=60))
    await asyncio.sleep(1)
    await yard.launcher.close()
    with pytest.raises(Unreachable, match="closed"):
        await launching
    with pytest.raises(Unreachable, match="closed"):
        await yard.launch("w2")
