"""What time itself brings: pods that don't start, stops that take too long.

What lives here: a look at what is due, once a second while anything is. What may not: what
comes from the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import structlog

from schedulers.backoff import Backoff
from schedulers.kubernetes.client import ApiRefused, ApiUnreachable
from schedulers.kubernetes.config import KubernetesConfig
from schedulers.kubernetes.phases import Asked
from schedulers.kubernetes.view import PodView, Tracked

LOOK_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
OVERDUE_S: Final = 10.0
"""Beyond its grace, before it is said that a pod is still terminating."""

FORCE_GRACE_S: Final = 1
"""The least with which a kubelet still confirms the end; it never kills faster anyway."""

FORCE_PATIENCE_S: Final = 5.0
"""How long a kubelet has for that, before the object is removed without it."""

_log = structlog.get_logger("slotbus.kubernetes")


class Keeper:
    """Runs until it is cancelled. ``delete(tracked, grace_s)`` asks for a pod's end;
    ``until_back(seconds)`` waits so long, or until a server that was away answers."""

    def __init__(
        self,
        config: KubernetesConfig,
        view: PodView,
        delete: Callable[[Tracked, int], Awaitable[None]],
        until_back: Callable[[float], Awaitable[None]],
    ) -> None:
        self._config = config
        self._view = view
        self._delete = delete
        self._until_back = until_back

    async def run(self) -> NoReturn:
        """Looks, and looks again; requests that fail are made again at the next look."""
        backoff = Backoff(LOOK_S, LONGEST_PAUSE_S)
        while True:
            for tracked in list(self._view.unsettled.values()):
                try:
                    await self._look(tracked)
                except (ApiRefused, ApiUnreachable) as error:
                    _log.info("will be tried again", pod=tracked.name, cause=str(error))
                    if isinstance(error, ApiUnreachable):
                        await self._until_back(backoff.next())
                    else:
                        await asyncio.sleep(backoff.next())
                    break  # the others would fare no better
                except Exception:  # noqa: BLE001  the edge: one pod's fault is not the others'
                    _log.exception("looking after a pod failed", pod=tracked.name)
                    self._view.unsettled.pop(tracked.uid, None)
            else:
                backoff.reset()
            await asyncio.sleep(LOOK_S)

    async def _look(self, tracked: Tracked) -> None:
        now = asyncio.get_running_loop().time()
        if not tracked.there or tracked.end is not None:
            self._view.unsettled.pop(tracked.uid, None)
            return
        if tracked.asked is not Asked.NO:
            self._stopping(tracked, now)
        elif not tracked.started and now - tracked.since > self._config.start_deadline_s:
            self._give_up(tracked, now)
        if tracked.deleting is not None:
            await self._delete(tracked, tracked.deleting)
            tracked.deleting = None

    def _give_up(self, tracked: Tracked, now: float) -> None:
        """It does not run, and its deletion is what makes sure that it never will."""
        limit_s = self._config.start_deadline_s
        tracked.verdict = f"did not run within {limit_s:g} s: {tracked.sight.reason}"
        tracked.deleting = max(1, self._config.termination_grace_s)
        tracked.asked = Asked.GRACEFULLY
        self._view.ask(tracked, due=now + tracked.deleting + OVERDUE_S)

    def _stopping(self, tracked: Tracked, now: float) -> None:
        if tracked.forced is not None and now > tracked.forced:
            tracked.forced, tracked.deleting = None, 0
        if tracked.due is not None and now > tracked.due:
            tracked.due = None
            self._view.say_still_there(tracked)
