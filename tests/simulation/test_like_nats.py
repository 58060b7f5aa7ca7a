"""The modelled server says what a real one says: the same conversation with both."""

from __future__ import annotations

import asyncio
import contextlib

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from controller.leasebucket import ensure_bucket
from events.jetstream_api import ApiRefused, Deadline, JetStreamApi, StreamInfo
from events.jetstream_messages import MSG_ID, stream_seq
from events.jetstream_read import read_stream
from events.streams import log_stream
from events.subjects import Subjects
from tests.simulation.hub import Hub
from tests.simulation.loop import Proc, SimLoop
from tests.simulation.streams import Stored
from tests.simulation.wire import Pub, SimClient

EXPECTED = "Nats-Expected-Last-Sequence"
EXPECTED_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence"


class Nobody:
    """Looks on and says nothing."""

    def sent(self, proc: Proc, subject: str, data: bytes) -> None:
        return None

    def heard(self, proc: Proc, subject: str, data: bytes) -> None:
        return None

    def passed(self, pub: Pub, count: int) -> None:
        return None

    def stored(self, stream: str, stored: Stored) -> None:
        return None


async def _publish(nc: Client, subject: str, body: bytes, **headers: str) -> str:
    """What became of a message for a stream."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        ack = await nc.jetstream(timeout=2.0).publish(subject, body, headers=named or None)
    except nats.js.errors.APIError as error:
        return f"refused {error.err_code}"
    return f"stored {ack.seq}{' again' if ack.duplicate else ''}"


def _state(info: StreamInfo) -> tuple[int, int, int]:
    """What the model counts as the server does; sizes it only guesses."""
    return info.state.messages, info.state.first_seq, info.state.last_seq


async def _log(nc: Client, subjects: Subjects) -> list[str]:
    """A stream under compare-and-swap, looked into, purged and read."""
    api, deadline = JetStreamApi(nc), Deadline(10.0)
    config = log_stream(subjects)
    said = [f"none {await api.info(config.name, deadline)}"]
    info = await api.ensure(config, deadline)
    said.append(f"made {_state(info)}, again {_state(await api.ensure(config, deadline))}")
    for number, (expected, msg_id) in enumerate(
        [("0", "a"), ("0", "a"), ("0", "b"), ("1", "b"), ("1", "a"), ("2", "c"), ("3", "d")]
    ):
        headers = {"Nats_Expected_Last_Sequence": expected, "Nats_Msg_Id": msg_id}
        said.append(await _publish(nc, subjects.eventlog, b"%d" % number, **headers))
    for seq in (1, 4, 5):
        found = await api.message(config.name, seq, deadline)
        known = found and (found.seq, found.data, found.headers.get(MSG_ID))
        said.append(f"message {seq}: {known}")
    await api.purge(config.name, 3, deadline)
    after = await api.info(config.name, deadline)
    assert after is not None
    said.append(f"purged {_state(after)}, the same stream {after.created == info.created}")
    async for messages in read_stream(api, config.name, 1, 4, stall_s=5.0):
        said += [f"read {stream_seq(message)} {message.data!r}" for message in messages]
    with contextlib.suppress(ApiRefused):
        await api.create_reader(f"{config.name}X", "r", 1, 30.0, deadline)
        said.append("a reader of no stream")
    return said


async def _key(nc: Client, subjects: Subjects) -> list[str]:
    """A key that is free, held, deleted, and held again."""
    js = nc.jetstream(timeout=2.0)
    made = await ensure_bucket(js, subjects.lease_bucket, 1)
    said = [f"bucket {made}, again {await ensure_bucket(js, subjects.lease_bucket, 1)}"]
    stream, subject = f"KV_{subjects.lease_bucket}", f"$KV.{subjects.lease_bucket}.leader"
    for body, expected, more in [
        (b"a", "0", {"Nats_TTL": "60"}),
        (b"b", "0", {"Nats_TTL": "60"}),
        (b"a", "1", {"Nats_TTL": "60"}),
        (b"", "2", {"KV_Operation": "DEL"}),
        (b"c", "3", {"Nats_TTL": "60"}),
    ]:
        headers = {"Nats_Expected_Last_Subject_Sequence": expected, **more}
        said.append(await _publish(nc, subject, body, **headers))
        last = await js.get_last_msg(stream, subject)
        said.append(f"key {last.seq} {last.data!r} {(last.headers or {}).get('KV-Operation')}")
    said.append(await _publish(nc, f"{subject}.other", b"d", Nats_Msg_Id="d"))
    said.append(await _publish(nc, f"{subject}.other", b"d", Nats_Msg_Id="d"))
    try:
        await js.get_last_msg(stream, f"{subject}.none")
    except nats.js.errors.NotFoundError as error:
        said.append(f"no key {error.err_code}")
    return said


async def _talk(nc: Client, subjects: Subjects) -> list[str]:
    """Requests, wildcards, queue groups, and nobody who listens."""
    said: list[str] = []
    heard: list[str] = []
    try:
        await nc.request(f"{subjects.root}.nobody", b"", timeout=2.0)
    except nats.errors.NoRespondersError:
        said.append("nobody listens")

    async def answer(message: Msg) -> None:
        heard.append(message.subject.removeprefix(subjects.root))
        if message.reply:
            await message.respond(b"yes")

    root = subjects.root
    patterns = (f"{root}.node.*.beat", f"{root}.node.>", f"{root}.node.n1.beat")
    subs = [await nc.subscribe(pattern, cb=answer) for pattern in patterns]
    await nc.subscribe(f"{root}.work", queue="q", cb=answer)
    await nc.subscribe(f"{root}.work", queue="q", cb=answer)
    await nc.flush()
    said.append((await nc.request(f"{root}.node.n1.beat", b"", timeout=2.0)).data.decode())
    await nc.publish(f"{root}.node.n1.end", b"")
    await nc.publish(f"{root}.node", b"")
    await nc.publish(f"{root}.work", b"")
    await subs[0].unsubscribe()
    await nc.publish(f"{root}.node.n2.beat", b"")
    await nc.flush()
    await asyncio.sleep(0.2)
    return [*said, *sorted(heard)]


async def conversation(nc: Client, subjects: Subjects) -> list[str]:
    return [*await _talk(nc, subjects), *await _log(nc, subjects), *await _key(nc, subjects)]


def modelled(subjects: Subjects) -> list[str]:
    """The conversation with the model."""
    loop = SimLoop()
    hub = Hub(loop, "seed", Nobody())
    proc = Proc(loop, "p", "p")

    async def talk() -> list[str]:
        nc = SimClient()
        nc.hub = hub
        nc.line = await hub.dial(nc)
        nc._status = Client.CONNECTED
        return await conversation(nc, subjects)

    said = loop.run_until_complete(proc.spawn(talk()))
    for task in loop.tasks.values():
        task.cancel()
    loop.run_until_complete(proc.spawn(asyncio.sleep(0.1)))
    loop.close()
    return said


async def test_a_real_server_says_the_same(nc: Client, subjects: Subjects) -> None:
    said = await conversation(nc, subjects)
    assert await asyncio.to_thread(modelled, subjects) == said
    assert "nobody listens" in said
    assert "stored 5 again" in said
