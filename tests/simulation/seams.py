"""Where the model is put below the real code: clocks, chance, the connection, the kernel.

What lives here: which names of which modules stand for what while a story is told, and putting
them back. What may not: the stand-ins themselves, beyond a line each.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import structlog
from nats.aio.client import Client

from controller.identity import Process
from events import connection
from tests.simulation import kernel
from tests.simulation.loop import State, current
from tests.simulation.wire import SimClient

if TYPE_CHECKING:
    from tests.simulation.world import World

DAWN: Final = datetime(2026, 1, 1, tzinfo=UTC)
OURS: Final = ("events.", "schedulers.", "controller.")

KERNEL: Final = {
    "schedulers.supervisor.spawn": ("spawn", "take_exit", "terminate_group"),
    "schedulers.supervisor.adopt": ("read_table",),
    "schedulers.supervisor.workers": (
        *("boot_id", "read_process", "is_running", "reap_strays"),
        *("Ownership", "ExitWatch", "Sweeper"),
    ),
}


class SimTime:
    """In the place of the module ``time``."""

    CLOCK_BOOTTIME = 7

    def time(self) -> float:
        return self._wall().timestamp()

    def time_ns(self) -> int:
        return int(self._wall().timestamp() * 1_000_000) * 1_000

    def monotonic(self) -> float:
        return current().loop.time()

    perf_counter = monotonic

    def clock_gettime(self, _clock: int) -> float:
        return current().loop.time()

    def _wall(self) -> datetime:
        proc = current()
        return DAWN + timedelta(seconds=proc.loop.time() + proc.wall_offset)


class SimDatetime:
    """In the place of the class ``datetime``, where only ``now`` is used."""

    @staticmethod
    def now(_zone: tzinfo) -> datetime:
        return SimTime()._wall()


class SimRandom:
    """In the place of the module ``random``: each process draws for itself."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current().rng, name)


class SimSecrets:
    """In the place of the module ``secrets``, without any."""

    def token_bytes(self, size: int) -> bytes:
        return current().rng.randbytes(size)

    def token_hex(self, size: int) -> str:
        return self.token_bytes(size).hex()

    def randbelow(self, limit: int) -> int:
        return current().rng.randrange(limit)


class SimUuid:
    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=current().rng.getrandbits(128), version=4)


STANDS_FOR: Final[dict[str, object]] = {
    "time": SimTime(),
    "random": SimRandom(),
    "secrets": SimSecrets(),
    "uuid": SimUuid(),
}
DATETIMES: Final = ("schedulers.clock", "schedulers.leading", "schedulers.node.orders")


@contextmanager
def installed(world: World) -> Iterator[None]:
    """The real code runs on the model of ``world``."""
    with ExitStack() as stack:

        def put(module: str, name: str, value: object) -> None:
            stack.enter_context(patch.object(sys.modules[module], name, value))

        for name, module in list(sys.modules.items()):
            if name.startswith(OURS):
                for attribute, stand_in in STANDS_FOR.items():
                    found = module.__dict__.get(attribute)
                    if found is not None and found is sys.modules.get(attribute):
                        put(name, attribute, stand_in)
        for name in DATETIMES:
            put(name, "datetime", SimDatetime)
        for name, attributes in KERNEL.items():
            for attribute in attributes:
                put(name, attribute, getattr(kernel, attribute))
        put("schedulers.supervisor.output", "OutputStore", kernel.NoOutput)
        for name, kind in list(vars(connection).items()):
            if isinstance(kind, type) and issubclass(kind, Client):
                put("events.connection", name, SimClient)
        put("nats.aio.client", "token_hex", lambda _size: "")
        put("controller.leader", "this_process", world.this_process)
        put("controller.leader", "provably_gone", world.provably_gone)
        put("controller.app", "new_holder_name", lambda: f"{current().name}-{_life()}")
        put("controller.app", "version", lambda: "0.0.0")
        put("schedulers.node.agent", "_version", lambda: "0.0.0")
        put("schedulers.node.agent", "StateDirLock", _NoLock)
        stack.enter_context(patch.object(SimClient, "hub", world.hub, create=True))
        stack.enter_context(_quiet(world))
        yield


def _life() -> str:
    return SimSecrets().token_hex(4)


class _NoLock:
    """There is one agent of a node at a time; the world sees to it."""

    def __init__(self, _state_dir: object) -> None:
        return None

    def __enter__(self) -> _NoLock:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@contextmanager
def _quiet(world: World) -> Iterator[None]:
    """What would be logged goes to the story, or nowhere."""
    before = structlog.get_config()
    structlog.configure(
        processors=[world.log_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        cache_logger_on_first_use=False,
    )
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        structlog.configure(**before)


def process_of(name: str, life: int) -> Process:
    """What a lease says of a process of the story."""
    return Process(space="story", pid=hash_of(name) * 1_000 + life, started=1)


def hash_of(name: str) -> int:
    return sum(name.encode())


__all__ = ["DAWN", "State", "installed", "process_of"]
