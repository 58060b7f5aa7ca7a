"""Limits at their edges, on a real server: a full log, full queues, thousands of rows."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from controller.embedded import EmbeddedServer
from events.errors import SlotbusError
from events.subjects import Subjects
from tests.support.console import Console
from tests.support.controllers import Caller, config_for, controller, page
from tests.support.waiting import DEADLINE_S

MANY_NODES = 10_000
AT_ONCE = 500
SCREEN_S = 10.0
ANSWER_S = 5.0
"""A leader that loses the lead answers a few at once, and others never."""

MEBIBYTE = 1024 * 1024


@pytest.fixture
def caller(nc: Client, subjects: Subjects) -> Caller:
    return Caller(nc, subjects)


async def register(nc: Client, subjects: Subjects, node_id: str, **fields: object) -> Any:
    body = {"task_slots": 2, "incarnation": "i1", "workers": []} | fields
    subject = subjects.node(node_id, "register")
    reply = await nc.request(subject, json.dumps(body).encode(), timeout=ANSWER_S)
    return json.loads(reply.data)


async def test_a_full_log_is_said_in_the_answer_and_on_readyz(
    nats_server: EmbeddedServer, subjects: Subjects, nc: Client, caller: Caller, tmp_path: Path
) -> None:
    config = config_for(
        nats_server.url, subjects, tmp_path / "state", scheduler="node", log_max_bytes=MEBIBYTE
    )
    async with controller(config) as made:
        info = await made.leading()
        told = await until_full(nc, subjects)
        assert "maximum bytes" in told
        async with asyncio.timeout(DEADLINE_S):
            while "maximum bytes" not in await page(info, "/readyz"):  # noqa: ASYNC110  remote
                await asyncio.sleep(0.05)
        assert not made.task.done()


async def until_full(nc: Client, subjects: Subjects) -> str:
    """Writes ever smaller records, until not even a leader's first one has room; the refusal
    of the first that was too much."""
    told = ""
    for size in (60_000, 4_000, 200, 1):
        for number in itertools.count():
            labels = {"a": f"{size}-{number}-" + "x" * size}
            try:
                reply = await register(nc, subjects, "n1", labels=labels)
            except (NoRespondersError, NatsTimeout):
                break  # nobody leads
            if "error" in reply:
                told = told or str(reply["error"]["message"])
                break
    return told


@pytest.fixture
async def crowded(
    nats_server: EmbeddedServer, subjects: Subjects, nc: Client, tmp_path: Path
) -> AsyncIterator[Subjects]:
    """A controller that knows MANY_NODES nodes."""
    config = config_for(
        nats_server.url,
        subjects,
        tmp_path / "state",
        scheduler="node",
        node_expiry_s=3_600.0,
        lease_ttl_s=30,  # of a debugging loop, on a machine with other things to do
    )
    async with controller(config) as made:
        await made.leading()
        for first in range(0, MANY_NODES, AT_ONCE):
            await asyncio.gather(
                *(register(nc, subjects, f"n{i:05}") for i in range(first, first + AT_ONCE))
            )
        yield subjects


async def test_the_screens_page_through_ten_thousand_nodes_within_seconds(
    crowded: Subjects, nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    console = Console(tmp_path / "home")
    where = ("--server", nats_server.url, "--root", crowded.root)
    for output in ("json", "table"):
        began = time.perf_counter()
        done = await asyncio.to_thread(console.run, "nodes", "-o", output, *where)
        assert time.perf_counter() - began < SCREEN_S
        assert done.code == 0, done.err
        if output == "json":
            rows: Any = done.json()["nodes"]
            assert [row["node_id"] for row in rows] == [f"n{i:05}" for i in range(MANY_NODES)]
        else:
            assert "n00000" in done.out
            assert "n09999" in done.out


async def test_a_page_limit_is_kept_at_its_edges(crowded: Subjects, caller: Caller) -> None:
    for limit, rows in ((1, 1), (5_000, 5_000)):
        reply = await caller.query("nodes", limit=limit)
        assert 0 < len(reply["nodes"]) <= rows
        assert reply["next"] == reply["nodes"][-1]["node_id"]
    for limit in (0, 5_001, -1):
        with pytest.raises(SlotbusError) as caught:
            await caller.query("nodes", limit=limit)
        assert caught.value.code == "invalid"
    assert (await caller.query("nodes", cursor="n09999"))["nodes"] == []
    assert (await caller.query("nodes", cursor="\x00*.>"))["nodes"][0]["node_id"] == "n00000"
