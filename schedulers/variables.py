"""What a worker is told by environment variables, whoever starts it.

What lives here: the names and their values, pure. What may not: what a worker inherits, and
files (a large program is its backend's to store).
"""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import Raw

from events.ids import MAX_INLINE_PROGRAM_BYTES, RESERVED_ENV_PREFIX

PROGRAM: Final = "SLOTBUS_PROGRAM"
PROGRAM_PATH: Final = "SLOTBUS_PROGRAM_FILE"
"""Names the file that holds a program too large for ``SLOTBUS_PROGRAM``."""


class Described(Protocol):
    """A worker to be started: an assignment, or a supervisor's specification."""

    @property
    def worker_id(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def run_id(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def node_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def wasm_path(self) -> str: ...
    @property
    def env_vars(self) -> dict[str, str]: ...


def variables_of(worker: Described) -> dict[str, str]:
    """The job's ``env_vars`` and slotbus's own, all but the program. Ours win."""
    given = {
        name: value
        for name, value in worker.env_vars.items()
        if not name.startswith(RESERVED_ENV_PREFIX)
    }
    return given | {
        "SLOTBUS_JOB_ID": worker.job_id,
        "SLOTBUS_RUN_ID": str(worker.run_id),
        "SLOTBUS_WORKER_ID": worker.worker_id,
        "SLOTBUS_SLOTS": str(worker.slots),
        "SLOTBUS_NODE_ID": worker.node_id,
        "SLOTBUS_NAME": worker.name,
        "SLOTBUS_HASH": worker.hash,
        "SLOTBUS_WASM_PATH": worker.wasm_path,
    }


def fits_inline(program: Raw) -> bool:
    """Whether a program is small enough for ``SLOTBUS_PROGRAM``."""
    return len(bytes(program)) <= MAX_INLINE_PROGRAM_BYTES
