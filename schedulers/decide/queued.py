"""Commands from the queue: each taken once, in order, by a cursor that the log moves.

What lives here: the rule of the cursor, and what becomes of a message that is no command.
What may not: reading the queue (that is the controller's) and what a command means
(``commands``).

A message is taken in the record that moves the cursor to it, so it is done once whoever
leads, and without acknowledgements to JetStream.
"""

from __future__ import annotations

from events import codec
from events.errors import Invalid, Overloaded
from events.facts import QueueSetAside, QueueTaken
from events.messages import COMMANDS
from schedulers.decide import commands
from schedulers.decide.draft import Draft
from schedulers.decide.messages import Queued, QueueMoved


def queued(draft: Draft, message: Queued) -> None:
    """Takes the next message of the queue. Raises Overloaded for one out of turn (read on
    from the cursor), Invalid for a command that can't be (set it aside, with that reason)."""
    cursor = draft.ledger.state.queue
    done = cursor.sequence if cursor is not None and cursor.stream == message.stream else 0
    if message.sequence <= done:
        draft.answer = QueueMoved(done)
        return
    if message.previous != done:
        raise Overloaded(f"message {message.sequence} of the queue is not the one after {done}")
    if message.code:
        draft.emit(
            QueueSetAside(
                stream=message.stream,
                sequence=message.sequence,
                stored=message.stored,
                verb=message.verb,
                code=message.code,
                reason=message.reason,
            )
        )
    else:
        kind = COMMANDS.get(message.verb)
        if kind is None:
            raise Invalid(f"{message.verb} is no command that can be queued", path="subject")
        request = codec.decode(bytes(message.body), kind)
        command_id = request.command_id
        if command_id is None:
            raise Invalid("a queued command needs an id", path="$.command_id")
        commands.command(draft, request)
        draft.joined = None
        draft.emit(
            QueueTaken(
                stream=message.stream,
                sequence=message.sequence,
                command_id=command_id,
                stored=message.stored,
            )
        )
    draft.answer = QueueMoved(message.sequence)
