"""Leaving a command in the queue: it is done once, when a controller leads.

What lives here: the message that is published, and what can go wrong in words. What may not:
reading the queue (that is the leader's).
"""

from __future__ import annotations

from typing import ClassVar, Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from events.asking import link_error
from events.codec import encode
from events.errors import Invalid, SlotbusError
from events.jetstream_messages import MSG_ID
from events.messages import COMMANDS, Command
from events.subjects import Subjects

STORE_TIMEOUT_S: Final = 5.0


class NotQueued(SlotbusError):
    """JetStream did not take the command: nothing will be done."""

    code: ClassVar[str] = "not_queued"
    status: ClassVar[int] = 503
    retriable: ClassVar[bool] = True


async def leave(nc: Client, subjects: Subjects, command: Command) -> int:
    """Stores a command that has an id; the place it got in the queue. Under one id it is
    stored once within two minutes, and done once for as long as it is remembered.

    Raises NotQueued, LinkDown, Denied.
    """
    verb = next(verb for verb, kind in COMMANDS.items() if kind is type(command))
    if command.command_id is None:
        raise Invalid("a queued command needs an id", path="$.command_id")
    try:
        ack = await nc.jetstream(timeout=STORE_TIMEOUT_S).publish(
            subjects.queue(verb), encode(command), headers={MSG_ID: command.command_id}
        )
    except nats.js.errors.NoStreamResponseError as error:
        raise NotQueued(
            f"there is no stream {subjects.queue_stream} yet: `slotbus init` makes it, and so "
            "does a controller that leads"
        ) from error
    except nats.js.errors.APIError as error:
        raise NotQueued(f"the queue does not take it: {error.description}") from error
    except nats.errors.TimeoutError as error:
        text = "JetStream did not say that it is stored: leave it again under the same id"
        raise NotQueued(text, command_id=command.command_id) from error
    except nats.errors.Error as error:
        raise link_error(error) from error
    return ack.seq
