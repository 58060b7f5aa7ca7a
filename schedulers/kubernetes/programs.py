"""Programs too large for the environment: a ConfigMap a run, for all its pods.

What lives here: ``Programs``, which stores one when the first pod of its run needs it, and
removes it when nobody does any more, also one that an earlier controller left behind. What may
not: pods.

Between a ConfigMap and its first pod a controller can die, and a pod can be refused; so what
is stored is looked at now and then, not only when a pod goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NewType, NoReturn

import structlog
from msgspec import Raw, Struct

from schedulers.backoff import Backoff
from schedulers.kubernetes.client import (
    CONFLICT,
    NOT_FOUND,
    ApiRefused,
    ApiUnreachable,
    KubeApi,
    decoded,
)
from schedulers.kubernetes.config import KubernetesConfig, Owner
from schedulers.kubernetes.identity import programs, read_run
from schedulers.kubernetes.manifest import program_manifest
from schedulers.kubernetes.names import program_name
from schedulers.kubernetes.overlay import Json
from schedulers.kubernetes.pods import PodMetadata
from schedulers.launcher import Assignment, LaunchRefused

CONFIG_MAPS: Final = "configmaps"
FIRST_LOOK_S: Final = 60.0
"""After the first request: by then pods of an earlier controller have been seen, and starts of
its were begun again."""

NEXT_LOOK_S: Final = 900.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0

Name = NewType("Name", str)
"""Of a ConfigMap; it follows from cluster, job and run."""

_log = structlog.get_logger("slotbus.kubernetes")


class _Program(Struct, frozen=True):
    """What is read of a ConfigMap."""

    metadata: PodMetadata
    data: dict[str, str] | None = None


class Programs:
    """``connected()`` gives the API; ``seen()`` the runs of which a pod is there."""

    def __init__(
        self,
        config: KubernetesConfig,
        connected: Callable[[], Awaitable[KubeApi]],
        seen: Callable[[], Iterable[tuple[str, int]]],
    ) -> None:
        self._config = config
        self._connected = connected
        self._seen = seen
        self._stored: dict[Name, asyncio.Task[None]] = {}
        self._users: dict[Name, set[str]] = {}
        self._needs: dict[str, Name] = {}
        self._unused: set[Name] = set()
        self._dropping: dict[Name, asyncio.Event] = {}
        self._suspects: dict[Name, str] = {}
        self._wake = asyncio.Event()
        self._said = ""

    def _name(self, job_id: str, run_id: int) -> Name:
        return Name(program_name(self._config.cluster, job_id, run_id))

    async def put(self, assignment: Assignment, owner: Owner | None) -> None:
        """The program of a worker's run is there, for as long as the worker needs it.

        Raises LaunchRefused, ApiRefused, ApiUnreachable.
        """
        name = self._name(assignment.job_id, assignment.run_id)
        self._needs[assignment.worker_id] = name
        self._users.setdefault(name, set()).add(assignment.worker_id)
        if (gone := self._dropping.get(name)) is not None:
            await gone.wait()
        task = self._stored.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            manifest = program_manifest(self._config, assignment, owner)
            task = asyncio.create_task(self._store(name, manifest), name=f"program {name}")
            self._stored[name] = task
        await asyncio.wait({task})
        task.result()

    def release(self, worker_id: str, job_id: str = "", run_id: int = 0) -> None:
        """This worker never runs (again). Job and run: of one that was found."""
        name = self._needs.pop(worker_id, None)
        if name is None and job_id:
            name = self._name(job_id, run_id)
        if name is None:
            return
        users = self._users.get(name, set())
        users.discard(worker_id)
        if not users:
            self._users.pop(name, None)
            self._unused.add(name)
            self._wake.set()

    async def run(self) -> NoReturn:
        """Removes what nobody needs, until it is cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        look_at = loop.time() + FIRST_LOOK_S
        while True:
            self._wake.clear()
            try:
                await self._drop_unused()
                if loop.time() >= look_at:
                    await self._look()
                    # What is suspected is looked at once more, and then removed.
                    look_at = loop.time() + (FIRST_LOOK_S if self._suspects else NEXT_LOOK_S)
                backoff.reset()
                self._said = ""
            except (ApiRefused, ApiUnreachable) as error:
                if str(error) != self._said:
                    self._said = str(error)
                    _log.warning("programs can't be removed, trying again", cause=self._said)
                if isinstance(error, ApiRefused) and not error.passes:
                    look_at = loop.time() + NEXT_LOOK_S
                await asyncio.sleep(backoff.next())
                continue
            try:
                async with asyncio.timeout(max(0.0, look_at - loop.time())):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Gives up waiting for what is under way."""
        tasks = list(self._stored.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- storing ------------------------------------------------------------------------

    async def _store(self, name: Name, manifest: Json) -> None:
        api = await self._connected()
        try:
            await api.create(CONFIG_MAPS, lambda: manifest)
        except ApiRefused as refused:
            if refused.code != CONFLICT or refused.reason != "AlreadyExists":
                raise
            there: _Program = decoded(await api.get(CONFIG_MAPS, name), _Program)
            ours = manifest["metadata"]["labels"].items() <= (there.metadata.labels or {}).items()
            if not ours or there.data != manifest["data"]:
                raise LaunchRefused(f"ConfigMap {name} is there already, and is not ours") from None

    # --- removing -----------------------------------------------------------------------

    def _used(self) -> set[Name]:
        return {self._name(*run) for run in self._seen()} | self._users.keys()

    async def _drop_unused(self) -> None:
        """Raises ApiRefused, ApiUnreachable; what is left is tried again."""
        for name in self._unused & self._used():
            self._unused.discard(name)  # its next worker's end will tell
        while self._unused:
            name = next(iter(self._unused))
            try:
                await self._drop(name)
            except ApiRefused as refused:
                if not refused.passes:  # a look finds it again
                    self._unused.discard(name)
                raise
            self._unused.discard(name)

    async def _drop(self, name: Name, uid: str = "") -> None:
        """Who wants to store it meanwhile waits. Raises ApiRefused, ApiUnreachable."""
        if name in self._users:
            return
        done = self._dropping[name] = asyncio.Event()
        self._stored.pop(name, None)
        try:
            await (await self._connected()).delete(CONFIG_MAPS, name, uid=uid)
        except ApiRefused as refused:
            if refused.code not in (NOT_FOUND, CONFLICT):
                raise
        finally:
            del self._dropping[name]
            done.set()

    async def _look(self) -> None:
        """Removes what nobody has needed for two looks. Raises ApiRefused, ApiUnreachable."""
        api = await self._connected()
        found = await api.list(CONFIG_MAPS, programs(self._config.cluster))
        stored = {name: uid for name, uid in map(self._ours, found.items) if name}
        used = self._used()
        suspects = {name: uid for name, uid in stored.items() if name not in used}
        for name, uid in suspects.items():
            if self._suspects.get(name) == uid:
                _log.info("a program that nobody needs is removed", name=name)
                await self._drop(name, uid)
        self._suspects = {n: u for n, u in suspects.items() if self._suspects.get(n) != u}

    def _ours(self, item: Raw) -> tuple[Name, str]:
        """Name and uid of a ConfigMap that we made; no name where its own is another's."""
        meta = decoded(item, _Program).metadata
        run = read_run(meta.labels or {}, meta.annotations or {})
        if run is None or run.cluster != self._config.cluster:
            return Name(""), ""
        name = self._name(run.job_id, run.run_id)
        return (name, meta.uid) if name == meta.name else (Name(""), "")
