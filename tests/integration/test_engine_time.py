"""Silence, stalls and idleness through the whole engine, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from events.errors import Internal, Overloaded, UnknownJob
from events.facts import CommandForgotten, NodeExpired
from events.messages import CordonReq
from events.queries import QueryNodes
from schedulers import decide
from schedulers.decide import Rules
from schedulers.decide.messages import Tick
from tests.support.bench import QUIET_S, Bench, Heard, facts_of, running_bench, start
from tests.support.scripted import ScriptedNode

pytestmark = pytest.mark.looptime

EXPIRY_S = 30.0


class Watch:
    """One node, and one heartbeat of it at a known time; nothing else is heard."""

    def __init__(self, bench: Bench, node: ScriptedNode) -> None:
        self.bench = bench
        self.node = node
        self.heard_at = 0.0

    async def hear(self) -> None:
        await self.bench.engine.submit(self.node.beat())
        self.heard_at = asyncio.get_running_loop().time()
        self.node.silent = True

    async def after(self, seconds: float) -> dict[str, str]:
        """The nodes' states so long after the heartbeat."""
        await asyncio.sleep(self.heard_at + seconds - asyncio.get_running_loop().time())
        return await self.bench.states()


@pytest.mark.parametrize(
    ("seconds", "state"),
    [
        (29.999, "ready"),
        (30.0, "ready"),
        (30.000_001, "expired"),
        (30.01, "expired"),
    ],
)
async def test_silence_of_exactly_the_expiry_is_life(seconds: float, state: str) -> None:
    node = ScriptedNode("n1")
    async with running_bench(node, rules=Rules(expiry_s=EXPIRY_S)) as bench:
        watch = Watch(bench, node)
        await watch.hear()
        assert await watch.after(seconds) == {"n1": state}


async def test_expiry_comes_by_itself_and_its_record_says_since_when() -> None:
    node = ScriptedNode("n1")
    async with running_bench(node, rules=Rules(expiry_s=EXPIRY_S)) as bench:
        await bench.start("j", 2)
        watch = Watch(bench, node)
        heard = bench.engine.clock.now()
        await watch.hear()
        await asyncio.sleep(EXPIRY_S + 0.5)  # nothing comes in: it is the timer that looks

        expired = [f for f in await facts_of(bench.log) if isinstance(f, NodeExpired)]
        assert [f.last_seen for f in expired] == [heard]
        assert bench.engine.ledger.state.at is not None
        assert bench.engine.ledger.state.at - heard == pytest.approx(
            timedelta(seconds=EXPIRY_S), abs=timedelta(milliseconds=5)
        )
        assert [str(w.state) for w in await bench.workers()] == ["lost"]


async def test_a_heartbeat_just_before_the_expiry_gives_a_new_term() -> None:
    node = ScriptedNode("n1")
    async with running_bench(node, rules=Rules(expiry_s=EXPIRY_S)) as bench:
        watch = Watch(bench, node)
        await watch.hear()
        assert await watch.after(29.999) == {"n1": "ready"}
        await watch.hear()
        assert await watch.after(30.0) == {"n1": "ready"}
        assert await watch.after(30.1) == {"n1": "expired"}


async def test_what_waits_in_the_inbox_is_read_before_anyone_is_given_up() -> None:
    """A heartbeat that came in time counts, though it is looked at late."""
    node = ScriptedNode("n1")
    async with running_bench(node, rules=Rules(expiry_s=EXPIRY_S)) as bench:
        watch = Watch(bench, node)
        await watch.hear()
        await asyncio.sleep(29.5)
        bench.engine.offer(node.beat())
        assert await watch.after(31) == {"n1": "ready"}


async def test_a_stalled_loop_gives_everybody_a_new_term(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ScriptedNode("n1")
    async with running_bench(node, rules=Rules(expiry_s=EXPIRY_S)) as bench:
        await Watch(bench, node).hear()
        await asyncio.sleep(25)
        loop = asyncio.get_running_loop()
        time, stood_still = loop.time, 60.0
        monkeypatch.setattr(loop, "time", lambda: time() + stood_still)

        assert await bench.states() == {"n1": "ready"}
        assert bench.engine.stats.messages["Grace"] == 1
        await asyncio.sleep(29.9)
        assert await bench.states() == {"n1": "ready"}
        await asyncio.sleep(0.2)
        assert await bench.states() == {"n1": "expired"}


async def test_a_loop_that_only_idles_has_not_stalled() -> None:
    async with running_bench(ScriptedNode("n1")) as bench:
        await asyncio.sleep(600)
        assert bench.engine.stats.messages["Grace"] == 0
        assert await bench.states() == {"n1": "ready"}


async def test_a_frozen_node_that_returns_serves_again() -> None:
    node = ScriptedNode("n1")
    async with running_bench(node) as bench:
        reply = await bench.start("j", 3)
        node.silent = True
        await asyncio.sleep(40)
        assert await bench.states() == {"n1": "expired"}
        node.silent = False
        await asyncio.sleep(bench.rules.heartbeat_s + QUIET_S)

        assert await bench.states() == {"n1": "ready"}
        assert [(w.worker_id, str(w.state)) for w in await bench.workers()] == [
            (reply.workers[0].worker_id, "running")
        ]
        await bench.check()


async def test_a_replaced_run_is_stopped_when_its_node_returns() -> None:
    """Never two runs of a job on nodes that answer (law 2), the old one goes."""
    old, other = ScriptedNode("n1"), ScriptedNode("n2", slots=3)
    async with running_bench(old, other) as bench:
        first = await bench.start("j", 4)
        assert first.workers[0].node_id == "n1"
        old.silent = True
        await asyncio.sleep(40)
        second = await bench.start("j", 3)
        assert (second.run_id, second.workers[0].node_id) == (2, "n2")

        old.silent = False
        await asyncio.sleep(bench.rules.heartbeat_s + QUIET_S)
        assert bench.running() == [second.workers[0].worker_id]
        await bench.check()


async def test_a_flood_is_refused_before_it_is_taken() -> None:
    node = ScriptedNode("n1")
    async with running_bench(node, queue_limit=5) as bench:
        heard = [Heard() for _ in range(6)]
        for answer in heard[:5]:
            bench.engine.offer(QueryNodes(), answer.as_answer())
        with pytest.raises(Overloaded):
            bench.engine.offer(QueryNodes(), heard[5].as_answer())
        await asyncio.sleep(QUIET_S)
        assert [len(answer.answers) for answer in heard] == [1, 1, 1, 1, 1, 0]
        assert (await bench.start("j", 1)).workers


async def test_old_commands_are_forgotten_in_a_busy_engine_too() -> None:
    """Something comes in all the time, so that the loop is never idle."""
    rules = Rules(remembered_commands=3, heartbeat_s=1)
    async with running_bench(ScriptedNode("n1"), rules=rules) as bench:
        for number in range(10):
            await bench.engine.submit(CordonReq(node_id="n1", command_id=f"c-{number}"))
        await asyncio.sleep(70)
        forgotten = [f for f in await facts_of(bench.log) if isinstance(f, CommandForgotten)]
        assert [len(f.command_ids) for f in forgotten] == [7]
        await bench.check()


class Broken:
    """Makes the decision on one kind of message fail, after it has folded something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, times: int) -> None:
        self.left = times
        self.failed_at: list[float] = []
        self._rule = decide._RULES[kind]
        monkeypatch.setitem(decide._RULES, kind, self)

    def __call__(self, draft: Any, message: Any) -> None:
        self._rule(draft, message)
        if self.left:
            self.left -= 1
            self.failed_at.append(asyncio.get_running_loop().time())
            raise ZeroDivisionError("a fault of ours")


async def test_a_decision_that_fails_costs_its_sender_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = ScriptedNode("n1", slots=9)
    async with running_bench(node) as bench:
        kept, view = await bench.start("kept", 2), bench.engine.ledger
        Broken(monkeypatch, type(start("x", 1)), times=1)
        outcomes = await asyncio.gather(
            bench.start("a", 2), bench.start("b", 2), bench.stop("nobody"), return_exceptions=True
        )

        assert isinstance(outcomes[0], Internal)
        assert outcomes[1].workers[0].slots == 2  # type: ignore[union-attr]
        assert isinstance(outcomes[2], UnknownJob)
        assert bench.engine.stats.loop_errors == 1
        assert "a" not in view.jobs  # folded, and unfolded, for all who look at it
        assert bench.engine.ledger.free_slots("n1") == 5
        assert kept.workers[0].worker_id in bench.running()
        await bench.check()


async def test_a_failed_expiry_is_tried_again_and_not_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = ScriptedNode("n1")
    async with running_bench(node, rules=Rules(expiry_s=EXPIRY_S)) as bench:
        watch = Watch(bench, node)
        await watch.hear()
        broken = Broken(monkeypatch, Tick, times=3)
        await asyncio.sleep(5 * EXPIRY_S)

        assert broken.left == 0
        pauses = [b - a for a, b in zip(broken.failed_at, broken.failed_at[1:], strict=False)]
        assert all(pause >= 1.0 for pause in pauses)
        assert await bench.states() == {"n1": "expired"}
        await bench.check()
