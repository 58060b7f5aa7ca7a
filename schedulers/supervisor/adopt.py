"""What became of the workers of a supervisor that died.

What lives here: finding each one's main process again, or knowing that it is gone. What
may not: signals, and what follows (``workers``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from schedulers.supervisor.process_tree import Ownership, ProcessId, Table, read_table
from schedulers.supervisor.state import Worker


class Found(Struct, frozen=True):
    """``main`` None: gone, though something that it left behind may still live."""

    worker: Worker
    main: ProcessId | None


def look_for(workers: Iterable[Worker], boot: str, owner_of: Ownership) -> Iterator[Found]:
    """Pid, start time and boot must be those that were written down; a pid that is used
    again is nobody's worker. So is one that carries another worker's name."""
    table = read_table()
    for worker in workers:
        yield Found(worker=worker, main=_main(worker, table, boot, owner_of))


def _main(worker: Worker, table: Table, boot: str, owner_of: Ownership) -> ProcessId | None:
    worker_id = worker.born.worker_id
    known = worker.process
    if known is None:
        # The death came between the fork and the entry: look for the leader by its name.
        for row in table.values():
            if row.alive and row.session == row.id.pid and owner_of(row) == worker_id:
                return row.id
        return None
    row_now = table.get(known.pid)
    if known.boot != boot or row_now is None or not row_now.alive:
        return None
    if row_now.id != ProcessId(known.pid, known.start):
        return None
    return row_now.id if owner_of(row_now) in (worker_id, None) else None
