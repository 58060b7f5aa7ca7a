"""JetStream's own subjects: making streams, looking into them, reading them by pulls.

What lives here: answers to ``$JS.API`` as slotbus and nats-py need them, acknowledgements,
and consumers without acknowledgements. What may not: what a stream keeps (``streams``).
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from tests.simulation.streams import Stored, Stream
from tests.simulation.wire import Pub

if TYPE_CHECKING:
    from tests.simulation.hub import Hub

API: Final = "$JS.API."
NOT_FOUND: Final = {"code": 404, "err_code": 10059, "description": "stream not found"}
NO_MESSAGE: Final = {"code": 404, "err_code": 10037, "description": "no message found"}
IN_USE: Final = {"code": 400, "err_code": 10058, "description": "stream name already in use"}
FAMILY_CHARACTERS: Final = 8
PULL_OVER: Final = {"Status": "408", "Description": "Request Timeout"}


class Pull(Struct):
    """A request for messages, and when it ends."""

    reply: str
    left: int
    until: float


class Consumer(Struct):
    """``following``: the sequence that is due; ``given``: how many were handed out."""

    name: str
    following: int
    given: int = 0
    pull: Pull | None = None


class JetStream:
    """All streams and consumers of the server."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.streams: dict[str, Stream] = {}
        self._consumers: dict[str, dict[str, Consumer]] = {}
        self._made = 0
        self._families: dict[str, list[Stream]] = {}
        """Streams that may take subjects which begin so."""

    def restarted(self) -> None:
        """Consumers are kept in memory."""
        self._consumers.clear()

    # --- messages -----------------------------------------------------------------------

    def take(self, pub: Pub) -> bool:
        """Whether JetStream is who was meant."""
        if pub.subject.startswith(API):
            return self._serve(pub)
        family = pub.subject[:FAMILY_CHARACTERS]
        if family not in self._families:
            self._families[family] = [s for s in self.streams.values() if s.may_cover(family)]
        found = [stream for stream in self._families[family] if stream.covers(pub.subject)]
        for stream in found:
            self._store(stream, pub)
        return bool(found)

    def _store(self, stream: Stream, pub: Pub) -> None:
        hub = self._hub
        taken = stream.take(pub.subject, pub.data, pub.headers or {}, hub.now())
        ack: dict[str, Any] = {"stream": stream.name, "seq": taken.seq}
        if taken.duplicate:
            ack["duplicate"] = True
        if taken.err_code:
            ack["error"] = {
                "code": 400,
                "err_code": taken.err_code,
                "description": taken.description,
            }
        elif not taken.duplicate:
            hub.watch.stored(stream.name, stream.messages[taken.seq])
            for consumer in self._consumers.get(stream.name, {}).values():
                self._pump(stream, consumer)
        if pub.reply:
            if hub.weather.acks_lost and hub.rng.random() < hub.weather.acks_lost:
                hub.counts["acknowledgement lost"] += 1
                return
            at = hub.now() + hub.rng.uniform(0.0001, hub.weather.disk_s)
            hub.proc.post_at(at, self._answer, pub.reply, ack)

    def _answer(self, reply: str, body: dict[str, Any]) -> None:
        if not self._hub.down:
            self._hub.route(Pub(reply, "", json.dumps(body).encode(), None))

    # --- requests -----------------------------------------------------------------------

    def _serve(self, pub: Pub) -> bool:
        verb, _, rest = pub.subject.removeprefix(API).partition(".")
        what, _, names = rest.partition(".")
        body: dict[str, Any] = json.loads(pub.data) if pub.data else {}
        answer: dict[str, Any] | None
        if verb == "STREAM" and what == "MSG":
            answer = self._message(names.removeprefix("GET."), body)
        elif verb == "STREAM":
            answer = self._stream_request(what, names, body)
        elif verb == "CONSUMER" and what == "MSG":
            stream, _, name = names.removeprefix("NEXT.").partition(".")
            return self._next(stream, name, pub.reply, body)
        elif verb == "CONSUMER":
            answer = self._consumer_request(what, names, body)
        else:
            return False
        if answer is None:
            return False
        at = self._hub.now() + self._hub.rng.uniform(0.0001, 0.0005)
        self._hub.proc.post_at(at, self._answer, pub.reply, answer)
        return True

    def _stream_request(self, what: str, name: str, body: dict[str, Any]) -> dict[str, Any] | None:
        stream = self.streams.get(name)
        if what == "CREATE":
            if stream is not None:
                same = stream.config == body
                return self._info(stream) if same else {"error": IN_USE}
            self._made += 1
            stream = Stream(name, body, _created(self._hub.now(), self._made))
            self.streams[name] = stream
            self._families.clear()
            return self._info(stream)
        if stream is None:
            return {"error": NOT_FOUND}
        stream.expire(self._hub.now())
        if what == "UPDATE":
            stream.config = body
        elif what == "PURGE":
            stream.purge(int(body.get("seq", stream.last_seq + 1)))
            return {"success": True, "purged": 0}
        elif what != "INFO":
            return None
        return self._info(stream)

    def _info(self, stream: Stream) -> dict[str, Any]:
        return {
            "type": "io.nats.jetstream.api.v1.stream_info_response",
            "config": stream.config,
            "created": stream.created,
            "state": {
                "messages": len(stream.messages),
                "bytes": stream.size,
                "first_seq": stream.first_seq,
                "last_seq": stream.last_seq,
                "last_ts": str(stream.last_at),
                "consumer_count": len(self._consumers.get(stream.name, {})),
            },
        }

    def _message(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        stream = self.streams.get(name)
        if stream is None:
            return {"error": NOT_FOUND}
        now = self._hub.now()
        if "last_by_subj" in body:
            stored = stream.last(str(body["last_by_subj"]), now)
        else:
            stream.expire(now)
            stored = stream.messages.get(int(body["seq"]))
        if stored is None:
            return {"error": NO_MESSAGE}
        message: dict[str, Any] = {
            "subject": stored.subject,
            "seq": stored.seq,
            "time": stream.created,
            "data": base64.b64encode(stored.data).decode(),
        }
        if stored.headers:
            lines = "".join(f"{key}: {value}\r\n" for key, value in stored.headers.items())
            message["hdrs"] = base64.b64encode(f"NATS/1.0\r\n{lines}\r\n".encode()).decode()
        return {"message": message}

    # --- consumers ----------------------------------------------------------------------

    def _consumer_request(
        self, what: str, names: str, body: dict[str, Any]
    ) -> dict[str, Any] | None:
        stream, _, name = names.partition(".")
        if stream not in self.streams:
            return {"error": NOT_FOUND}
        consumers = self._consumers.setdefault(stream, {})
        if what == "DELETE":
            consumers.pop(name, None)
            return {"success": True}
        if what != "CREATE":
            return None
        name = name.partition(".")[0]
        config = body.get("config", {})
        consumers[name] = Consumer(name, int(config.get("opt_start_seq", 1)))
        return {"stream_name": stream, "name": name, "config": config}

    def _next(self, stream: str, name: str, reply: str, body: dict[str, Any]) -> bool:
        consumer = self._consumers.get(stream, {}).get(name)
        if consumer is None:
            return False
        until = self._hub.now() + int(body.get("expires", 0)) / 1e9
        consumer.pull = pull = Pull(reply, int(body.get("batch", 1)), until)
        self._pump(self.streams[stream], consumer)
        self._hub.proc.post_at(until, self._end_pull, consumer, pull)
        return True

    def _pump(self, stream: Stream, consumer: Consumer) -> None:
        pull = consumer.pull
        while pull is not None and pull.left > 0 and consumer.following <= stream.last_seq:
            stored = stream.messages.get(consumer.following)
            consumer.following += 1
            if stored is not None:
                pull.left -= 1
                consumer.given += 1
                self._hand_out(stream, consumer, pull, stored)
        if pull is not None and pull.left <= 0:
            consumer.pull = None

    def _hand_out(self, stream: Stream, consumer: Consumer, pull: Pull, stored: Stored) -> None:
        given = consumer.given
        ack = f"$JS.ACK.{stream.name}.{consumer.name}.1.{stored.seq}.{given}.{stored.at}.0"
        self._hub.send(pull.reply, Pub(stored.subject, ack, stored.data, stored.headers))

    def _end_pull(self, consumer: Consumer, pull: Pull) -> None:
        if consumer.pull is pull:
            consumer.pull = None
            self._hub.send(pull.reply, Pub(pull.reply, "", b"", PULL_OVER))


def _created(now: float, number: int) -> str:
    """As JetStream writes times; different for each stream that is made."""
    whole = int(now)
    return (
        f"2026-01-01T{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{number:09d}Z"
    )
