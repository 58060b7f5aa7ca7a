"""The demo's own recording, played again while its cluster still runs.

What lives here: the comparison. What may not: how a replay works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from controller.demo.stage import DemoFailed, Stage
from events.facts import Record
from events.log import encode_record
from schedulers.files import replay_file
from schedulers.replaying import Replayed

FOLDER: Final = "recordings"
WRITTEN_S: Final = 10.0
"""What was recorded is in the file a moment later; on a busy machine, some moments."""


async def recording_is_the_log(stage: Stage, records: Sequence[Record]) -> None:
    """Plays what the leader recorded up to the end of ``records``, and compares."""
    show = stage.show
    show.step("What came in was recorded, and is played again")

    async def played() -> Replayed | None:
        files = sorted((stage.folder / FOLDER).iterdir())
        found = await asyncio.to_thread(replay_file, *files)
        return found if len(found.records) >= len(records) else None

    try:
        again = await stage.until("the recording has all of it", played, WRITTEN_S)
    except DemoFailed as error:
        show.check("the recording leads to the event log", False, str(error))
        return
    wanted = [encode_record(record) for record in records]
    found = [encode_record(record) for record in again.records[: len(records)]]
    show.check(
        "the recording, played again, leads to the event log, byte for byte",
        found == wanted and not again.missing,
        f"{again.lines} messages, {len(wanted)} records",
    )


def recordings(folder: Path) -> str:
    """Where the controller of a demo in this folder records."""
    return str(folder / FOLDER)
