"""Following the pods: list, then watch from there, over every way in which that can break.

What lives here: the loop, its pauses, and how old its knowledge is. What may not: what a pod
means (``view``).

A watch that is over is begun again where it ended. Only what can't be continued (410, or a
version from the future) and what was continued in vain for long is listed anew. Nothing is
tried twice without a pause between, unless the server sent something useful in between.

A server that has lost data (an etcd restored from a backup) answers a watch from a version that
it has never reached with silence, for ever. So where a watch has said nothing at all, not even
in a bookmark, the server is asked whether it knows that version.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NoReturn

import msgspec
import structlog
from msgspec import Struct

from schedulers.backoff import Backoff
from schedulers.kubernetes.client import (
    UNREACHED,
    ApiRefused,
    ApiUnreachable,
    KubeApi,
    Listed,
    ListMeta,
    Status,
    WatchEvent,
    decoded,
    pod_of,
)
from schedulers.kubernetes.identity import Selector, nobody
from schedulers.kubernetes.pacing import Pacer
from schedulers.kubernetes.pods import Pod

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
LEAST_PAUSE_S: Final = 1.0
"""Of a longer pause, which ends when the server has answered another request."""

SILENCE_S: Final = 5.0
"""Beyond the time that a watch was asked to last, before it is taken for dead."""

LIVED_S: Final = 5.0
"""A watch that lasted so long was of use, even if it said nothing."""

IN_VAIN: Final = 4
"""Failures in a row before all is listed again."""

RESYNC_S: Final = 900.0
"""All is listed again so often anyway, which costs one request and mends what nobody saw."""

LIST_GAP_S: Final = 0.5
"""Between two lists at the least, whoever wants them."""

_log = structlog.get_logger("slotbus.kubernetes")


class WatchStats(Struct):
    """Counts since this watch began, for metrics and tests."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    silent: int = 0
    unreadable: int = 0
    faults: int = 0


class _Marked(Struct, frozen=True):
    """A bookmark's object, which is but a version."""

    metadata: ListMeta = ListMeta()


class PodWatch:
    """Runs until it is cancelled. ``connected()`` gives the API; ``listed(items, begun)`` gets
    whole lists, ``changed(pod)`` and ``deleted(pod)`` single pods."""

    def __init__(
        self,
        connected: Callable[[], Awaitable[KubeApi]],
        selector: Selector,
        *,
        listed: Callable[[list[Pod], float], None],
        changed: Callable[[Pod], None],
        deleted: Callable[[Pod], None],
        timeout_s: float,
    ) -> None:
        self.stats = WatchStats()
        self._connected = connected
        self._selector = selector
        self._listed = listed
        self._changed = changed
        self._deleted = deleted
        self._timeout_s = timeout_s
        self._version = ""
        self._heard_at: float | None = None
        self._listed_at = 0.0
        self._wanted = asyncio.Event()
        self._in_vain = 0
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._said = ""
        self._pacer: Pacer | None = None

    def age(self) -> float | None:
        """Seconds since the server was last heard of the pods; None: never."""
        if self._heard_at is None:
            return None
        return asyncio.get_running_loop().time() - self._heard_at

    def list_again(self) -> None:
        """Something was seen that only a whole list can explain."""
        self._wanted.set()

    def go_on_from(self, version: str) -> None:
        """Somebody else has listed all; used only where nothing is known yet."""
        if not self._version:
            self._version, self._listed_at = version, asyncio.get_running_loop().time()
            self._hear(useful=False)

    async def run(self) -> NoReturn:
        """Follows for ever; its own faults are logged and begun again like any other."""
        while True:
            try:
                await self._round()
            except ApiRefused as refused:
                await self._failed(refused, refused.retry_after_s or 0.0)
            except ApiUnreachable as error:
                await self._failed(error)
            except Exception as error:  # noqa: BLE001  the edge: nothing may end the watch
                self.stats.faults += 1
                _log.exception("watching failed")
                self._version = ""
                await self._failed(error)

    async def _round(self) -> None:
        api = await self._connected()
        self._pacer = api.pacer
        age_s = asyncio.get_running_loop().time() - self._listed_at
        if not self._version or self._wanted.is_set() or age_s > RESYNC_S:
            if self._listed_at:
                await asyncio.sleep(max(0.0, LIST_GAP_S - age_s))
            await self._list(api)
        watching = asyncio.create_task(self._watch(api), name="pods watch")
        wanted = asyncio.create_task(self._wanted.wait(), name="pods list wanted")
        try:
            await asyncio.wait({watching, wanted}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await watching
        finally:
            for task in (watching, wanted):
                task.cancel()
            await asyncio.gather(watching, wanted, return_exceptions=True)

    # --- list ---------------------------------------------------------------------------

    async def _list(self, api: KubeApi) -> None:
        begun = asyncio.get_running_loop().time()
        self._wanted.clear()
        self.stats.lists += 1
        try:
            found: Listed = await api.list("pods", self._selector)
        except (ApiRefused, ApiUnreachable):
            self._wanted.set()
            raise
        self._listed(self.readable(found.items), begun)
        self._version, self._listed_at = found.version, begun
        self._hear(useful=False)

    # --- watch --------------------------------------------------------------------------

    async def _watch(self, api: KubeApi) -> None:
        """One watch, to its end. Raises ApiRefused, ApiUnreachable."""
        loop = asyncio.get_running_loop()
        began, events, spoken = loop.time(), self.stats.events, False
        self.stats.watches += 1
        # Not all controllers of a cluster at the same moment.
        lasts_s = self._timeout_s * random.uniform(0.9, 1.0)
        try:
            async with api.watch(
                "pods", self._selector, self._version, lasts_s, self._timeout_s + SILENCE_S
            ) as stream:
                self._hear(useful=False)
                async for event in stream:
                    spoken = True
                    self._take(event)
        except ApiRefused as refused:
            if refused.code in UNREACHED:
                self._version = ""
            raise
        lived = loop.time() - began >= min(LIVED_S, 0.8 * lasts_s)
        if not lived and events == self.stats.events:
            raise ApiUnreachable("a watch ended at once, and empty")
        if not spoken:
            self.stats.silent += 1
            if not await api.knows("pods", nobody(self._selector), self._version):
                _log.warning("the API server has lost data: all pods are listed again")
                self._version = ""
        if lived:
            self._hear(useful=True)

    def _take(self, event: WatchEvent) -> None:
        """Raises ApiRefused for an error told within the stream."""
        match event.type:
            case "BOOKMARK":
                self._version = decoded(event.object, _Marked).metadata.resource_version
            case "ADDED" | "MODIFIED" | "DELETED":
                pod = self._pod(event.object)
                if pod is not None:
                    handle = self._deleted if event.type == "DELETED" else self._changed
                    handle(pod)
                    self._version = pod.metadata.resource_version
                self.stats.events += 1
            case _:
                status = decoded(event.object, Status)
                raise ApiRefused(status.code, status.reason, status.message, None)
        self._hear(useful=event.type != "BOOKMARK")

    def readable(self, items: Iterable[msgspec.Raw]) -> list[Pod]:
        """What of these can be read."""
        return [pod for pod in map(self._pod, items) if pod is not None]

    def _pod(self, item: msgspec.Raw) -> Pod | None:
        """One pod that can't be read must not hide the others."""
        try:
            return pod_of(item)
        except ApiUnreachable as error:
            self.stats.unreadable += 1
            _log.error("a pod can't be read", cause=str(error))
            return None

    # --- pauses -------------------------------------------------------------------------

    def _hear(self, *, useful: bool) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if useful:
            self._in_vain, self._said = 0, ""
            self._backoff.reset()

    async def _failed(self, error: Exception, at_least_s: float = 0.0) -> None:
        self.stats.failures += 1
        self._in_vain += 1
        if self._in_vain % IN_VAIN == 0:
            self._version = ""
        if str(error) != self._said:
            self._said = str(error)
            _log.warning("watching the pods failed, trying again", cause=self._said)
        pause_s = max(self._backoff.next(), min(at_least_s, LONGEST_PAUSE_S))
        least_s = min(pause_s, LEAST_PAUSE_S)
        was_away = self._pacer is not None and self._pacer.was_away()
        await asyncio.sleep(least_s)
        if self._pacer is not None and was_away:  # it may be back by now
            await self._pacer.until_back(pause_s - least_s)
        else:
            await asyncio.sleep(pause_s - least_s)
