"""``slotbus doctor``.

What lives here: its arguments, its look and its exit code. What may not: the examinations
(``controller.doctor``), and anything heavy at the top; see ``controller.cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.cli.nats_options import NOTHING_SAID, Nats, with_nats
from controller.cli.options import Output, OutputOption

if TYPE_CHECKING:
    from controller.cli.output import Progress
    from controller.doctor.finding import Finding
    from events.client import SlotbusClient


@with_nats
def doctor(output: OutputOption = Output.TABLE, nats: Nats = NOTHING_SAID) -> None:
    """Look whether all is as it should be, and say what to do where it is not.

    Server and JetStream, streams, who leads, nodes, clocks. The exit code is 1 if something
    is bad, 3 if no NATS server was reached; warnings alone are 0.
    """
    from controller.cli.running import DONE, REFUSED
    from controller.cli.session import Where, converse
    from controller.doctor.rounds import examine

    async def work(bus: SlotbusClient, shown: Progress) -> int:
        bad = False
        async for finding in examine(bus):
            shown.pause()
            _show(finding, output)
            bad = bad or finding.level == "bad"
        return REFUSED if bad else DONE

    converse(Where(nats, output), "looking at the cluster", work)


def _show(finding: Finding, output: Output) -> None:
    from controller.cli.output import clean, coloured, write, write_body
    from events.codec import encode

    if output is Output.JSON:
        write_body(encode(finding))
        return
    level = coloured(finding.level.ljust(7), finding.level)
    write(f"{level}  {clean(finding.what)}: {clean(finding.text)}")
    if finding.advice:
        write(f"         -> {clean(finding.advice)}")
