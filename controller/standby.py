"""A standby's ledger: kept warm while another controller leads.

What lives here: following the event log, whatever happens to the link, the server and the
log. What may not: the lease, and anything that changes something: all that is asked of
JetStream here is to look and to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import Struct

from events.ids import START, Position
from events.ledger import Ledger
from events.log import EventLog, LogError, NoLog
from events.recall import read_on, recall
from events.snapshots import SnapshotStore
from schedulers.backoff import Backoff

LOOK_S: Final = 0.2
"""Between two looks at the log: what it can grow in this time is read at a take-over."""

RETRY_FIRST_S, RETRY_MOST_S = 0.2, 5.0

_log = structlog.get_logger("slotbus.standby")


class Twins(Struct, frozen=True):
    """Two ledgers that folded the same: one for decisions, which folds ahead of the log, and
    one that follows what is stored, for snapshots."""

    ledger: Ledger
    shadow: Ledger

    @classmethod
    def of(cls, ledger: Ledger) -> Twins:
        """Takes some milliseconds for each thousand workers."""
        return cls(ledger, Ledger.restore(ledger.snapshot()))


class Standby:
    """``run`` follows until it is cancelled; afterwards ``take_over`` gives what it has. Its
    memory is that of the ledgers, and of one batch of records."""

    def __init__(
        self, open_log: Callable[[], EventLog], store: SnapshotStore, *, look_s: float = LOOK_S
    ) -> None:
        self._open_log = open_log
        self._store = store
        self._look_s = look_s
        self._log: EventLog | None = None
        self._twins: Twins | None = None
        self._said = ""
        self.beginnings = 0
        """How often it began anew, from a snapshot or the beginning."""

    @property
    def position(self) -> Position:
        """Up to where the log is folded."""
        return START if self._twins is None else Position(self._twins.ledger.position)

    async def run(self) -> None:
        """Follows the log. What can't be read is said once, and tried again."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while True:
            try:
                await self._follow()
                backoff.reset()
                self._said = ""
            except NoLog:
                await asyncio.sleep(backoff.next())
            except LogError as error:
                self._say(error)
                await asyncio.sleep(backoff.next())
            else:
                await asyncio.sleep(self._look_s)

    async def _follow(self) -> None:
        """Reads up to the log's end. Raises LogError, after which it begins anew where what
        it has can't be trusted."""
        if self._log is None or self._twins is None:
            await self._let_go()
            self.beginnings += 1
            log = self._log = self._open_log()
            self._twins = Twins.of((await recall(log, self._store)).ledger)
            return
        twins = self._twins
        try:
            await read_on(self._log, twins.ledger, twins.shadow)
        except LogError as error:
            if not error.passing:
                await self._let_go()
            raise

    async def take_over(self) -> Twins | None:
        """The ledgers at the log's end, given away; None where there are none. Raises
        LogError where the end can't be read."""
        try:
            if self._twins is not None:
                await self._follow()
            return self._twins
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        log, self._log, self._twins = self._log, None, None
        if log is not None:
            await log.close()

    def _say(self, error: LogError) -> None:
        if error.message != self._said:
            self._said = error.message
            _log.warning("the log can't be followed, trying on", cause=error.message)
