"""The one hierarchy of errors: a stable code, a sentence a person can act on, facts.

What lives here: the codes of the wire format, their HTTP-like status and their way to
and from the body ``{"error": {"code", "message", facts}}``. What may not: deciding when
to raise one.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

Fact: TypeAlias = "str | int | float | bool | list[str] | dict[str, str] | None"


class SlotbusError(Exception):
    """Base of every refusal and failure. ``facts`` become fields of the error body."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False
    """Whether a client may send the same ``command_id`` again and expect better."""

    def __init__(self, message: str, **facts: Fact) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, Fact] = facts

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, dict[str, Fact]]:
        """The wire form of this error."""
        return {"error": {"code": self.code, "message": self.message, **self.facts}}


class Invalid(SlotbusError):
    """The message itself is wrong. ``path`` names the field, as in ``$.slots``."""

    code = "invalid"
    status = 400

    def __init__(self, message: str, path: str = "$", **facts: Fact) -> None:
        super().__init__(message, path=path, **facts)
        self.path = path


class UnknownJob(SlotbusError):
    """No job of this id was ever seen."""

    code = "unknown_job"
    status = 404


class UnknownNode(SlotbusError):
    """The leader does not know this node: its agent registers (again)."""

    code = "unknown_node"
    status = 404


class UnknownWorker(SlotbusError):
    """No worker of this id is remembered."""

    code = "unknown_worker"
    status = 404


class NotEnoughSlots(SlotbusError):
    """Too few free slots. ``slots_needed`` is the shortage: asked minus free (Arroyo)."""

    code = "not_enough_slots"
    status = 409

    def __init__(
        self, slots_needed: int, slots_free: int, message: str = "", **facts: Fact
    ) -> None:
        text = message or (
            f"{slots_needed} more slots are needed and {slots_free} are free: "
            "add a node, or stop something"
        )
        super().__init__(text, slots_needed=slots_needed, slots_free=slots_free, **facts)
        self.slots_needed = slots_needed
        self.slots_free = slots_free


class TooLate(SlotbusError):
    """``not_after`` has passed: nothing was done, and nothing will be."""

    code = "too_late"
    status = 409


class StaleRun(SlotbusError):
    """The run_id is not above the highest that was seen for this job."""

    code = "stale_run"
    status = 409


class RunActive(SlotbusError):
    """Another run of this job still has workers: stop it first."""

    code = "run_active"
    status = 409


class DuplicateNode(SlotbusError):
    """Another agent holds this node_id and is alive."""

    code = "duplicate_node"
    status = 409


class NodeAlive(SlotbusError):
    """The node has not expired: only of one that is silent can a person say that it is dead."""

    code = "node_alive"
    status = 409


class NotLeader(SlotbusError):
    """This controller does not lead (any more): ask again, the leader will answer."""

    code = "not_leader"
    status = 503
    retriable = True


class CommandTimeout(SlotbusError):
    """``wait_s`` is over while the work goes on under the same ``command_id``."""

    code = "timeout"
    status = 503
    retriable = True


class Overloaded(SlotbusError):
    """The leader's queue is full: nothing was taken, ask again a little later."""

    code = "overloaded"
    status = 503
    retriable = True


class StartFailed(SlotbusError):
    """A start could not be completed and what it had started was stopped.

    ``reasons`` maps each node that failed to why.
    """

    code = "start_failed"
    status = 500


class TooLarge(SlotbusError):
    """The message or a part of it is over a stated limit (``limit``, in ``unit``)."""

    code = "too_large"
    status = 500


class Internal(SlotbusError):
    """A fault of slotbus itself; it is counted and in the controller's log."""


_BY_CODE: dict[str, type[SlotbusError]] = {
    cls.code: cls
    for cls in (
        Invalid, UnknownJob, UnknownNode, UnknownWorker, NotEnoughSlots, TooLate, StaleRun,
        RunActive, DuplicateNode, NodeAlive, NotLeader, CommandTimeout, Overloaded, StartFailed,
        TooLarge, Internal,
    )
}  # fmt: skip

CODES: tuple[str, ...] = tuple(_BY_CODE)


def error_from_wire(code: str, message: str, facts: dict[str, Fact]) -> SlotbusError:
    """Builds the error that a reply's body describes; an unknown code is ``Internal``."""
    cls = _BY_CODE.get(code, Internal)
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.message, error.facts = message, dict(facts)
    for name in ("slots_needed", "slots_free", "path"):
        if name in facts:
            setattr(error, name, facts[name])
    return error
