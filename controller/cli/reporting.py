"""What a person reports: the end of a worker that they alone can know of.

What lives here: ``ended``. What may not: anything heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import (
    Output,
    OutputOption,
)

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from events.client import SlotbusClient
    from events.queries import WorkerRow

REPORT_TIMEOUT_S: Final = 10.0


@with_nats
def ended(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Id of the worker.")],
    exit_code: Annotated[
        int | None, typer.Option("--exit-code", metavar="N", help="What it ended with [0].")
    ] = None,
    signal: Annotated[
        int | None, typer.Option("--signal", metavar="N", help="The signal that ended it.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="In your words.")] = "",
    output: OutputOption = Output.TABLE,
    nats: Nats = NOTHING_SAID,
) -> None:
    """Report that a worker has ended, where nobody else can know.

    That is a worker of the manual scheduler, one on a node that has expired and does not come
    back, or a pod that is lost or does not stop, for its node is gone or its object was removed
    by force. Its slots are free then. Make sure first: a worker that runs on would run beside
    its successor.
    """
    from controller.cli.output import write
    from controller.cli.running import DONE
    from controller.cli.session import Where, converse, print_reply

    code = 0 if exit_code is None and signal is None else exit_code
    where = Where(nats, output)

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        body = await _report(bus, await _row(bus, worker), code, signal, reason)
        print_reply(where, shown, body, lambda: write(f"worker {worker} has ended"))
        return DONE

    converse(where, f"reporting the end of {worker}", work)


async def _row(bus: SlotbusClient, worker_id: str) -> WorkerRow:
    """Raises UsageProblem where that worker is nobody's to report."""
    from controller.cli.running import UsageProblem
    from events.errors import Invalid
    from events.states import WorkerState
    from schedulers import manual

    doubtful = (WorkerState.LOST, WorkerState.STOPPING)
    for row in await bus.workers(include_ended=True):
        if row.worker_id != worker_id:
            continue
        if row.node_id != manual.NODE and not (
            row.state in doubtful and await _silent(bus, row.node_id)
        ):
            raise UsageProblem(
                Invalid(
                    f"worker {worker_id} is on node {row.node_id}, which reports its end itself"
                )
            )
        return row
    raise UsageProblem(Invalid(f"no worker {worker_id} is known"))


async def _silent(bus: SlotbusClient, node_id: str) -> bool:
    """Whether a node can't be asked: it has expired, or what runs there has no agent."""
    from events.states import NodeState
    from schedulers.kubernetes import manifest

    if node_id == manifest.NODE:
        return True
    return any(n.node_id == node_id and n.state is NodeState.EXPIRED for n in await bus.nodes())


async def _report(
    bus: SlotbusClient, row: WorkerRow, code: int | None, signal: int | None, reason: str
) -> bytes:
    """The body of the leader's answer. Raises SlotbusError."""
    import nats.errors

    from events.asking import NoAnswer, NoController, link_error
    from events.codec import encode, error_from_body
    from events.traffic import WorkerFinishedReq

    request = WorkerFinishedReq(
        node_id=row.node_id,
        worker_id=row.worker_id,
        job_id=row.job_id,
        run_id=row.run_id,
        slots=row.slots,
        exit_code=code,
        signal=signal,
        reason=reason,
    )
    subject = bus.subjects.node(row.node_id, "finished")
    try:
        reply = await bus.nc.request(subject, encode(request), timeout=REPORT_TIMEOUT_S)
    except nats.errors.NoRespondersError as error:
        raise NoController(f"no controller answers on {subject}", subject=subject) from error
    except nats.errors.TimeoutError as error:
        raise NoAnswer(
            f"no answer on {subject} within {REPORT_TIMEOUT_S:g} s: report it again",
            subject=subject,
        ) from error
    except nats.errors.Error as error:
        raise link_error(error) from error
    refusal = error_from_body(reply.data)
    if refusal is not None:
        raise refusal
    return reply.data
