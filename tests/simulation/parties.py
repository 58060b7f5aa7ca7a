"""Controllers and agents over their lives: started, killed, frozen, ended in order.

What lives here: the real programs in processes of the story, under something that starts them
again. What may not: when that happens (``troubles``).
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from controller.app import run_controller
from controller.config import ControllerConfig
from events.errors import SlotbusError
from schedulers.node.agent import run_agent
from schedulers.node.config import AgentConfig
from tests.simulation.loop import Proc, State
from tests.simulation.machine import Machine
from tests.simulation.supervision import SupervisorHost

if TYPE_CHECKING:
    from tests.simulation.world import World

AGAIN_S: Final = (0.5, 2.0)
"""After which a program that ended is started again, as by systemd."""

SERVER: Final = "nats://simulated:4222"


class Party:
    """A program that is kept running. ``wanted``: whether it is to be started again."""

    def __init__(self, world: World, name: str, machine: Machine | None) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.wanted = True
        self.proc: Proc | None = None
        self._lives = 0
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    @property
    def there(self) -> bool:
        return self.proc is not None and self.proc.state is not State.DEAD

    def start(self) -> None:
        """Unless it runs."""
        if self.there:
            return
        self._lives += 1
        self.wanted = True
        self._stop = asyncio.Event()
        self.proc = self.world.proc(self.name, self.machine, life=self._lives)
        self._life = self.proc.spawn(self._live(self.proc, self._stop))

    def kill(self) -> None:
        """KILL: nothing more is done; its connections break."""
        if self.proc is None or not self.there:
            return
        self.proc.kill()
        for line in self.world.hub.lines_of(self.name):
            line.close_here()

    def terminate(self) -> None:
        """TERM: it may end in order."""
        if self.proc is not None and self.there:
            self.proc.post(self._stop.set)

    def freeze(self) -> None:
        if self.proc is not None:
            self.proc.freeze()

    def thaw(self) -> None:
        if self.proc is not None:
            self.proc.thaw()

    async def _live(self, proc: Proc, stop: asyncio.Event) -> None:
        try:
            await self._run(stop)
        except SlotbusError as error:
            self.world.note(f"{self.name} ends: {error.message}")
        except Exception as error:  # noqa: BLE001  a fault of the program is what we look for
            self.world.laws.say(f"{self.name} failed: {error!r} {_where(error)}")
        proc.kill()
        if self.wanted:
            self.world.later(self.world.rng.uniform(*AGAIN_S), self._again)

    def _again(self) -> None:
        if self.wanted:
            self.start()

    def _run(self, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
        raise NotImplementedError


def _where(error: BaseException) -> str:
    """The last lines of code on the way to an error."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))


class Controller(Party):
    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, None)
        setup = world.story.setup
        self._config = ControllerConfig(
            server=SERVER,
            scheduler="node",
            http="off",
            cluster="story",
            audit=False,
            heartbeat_s=setup.heartbeat_s,
            node_expiry_s=setup.expiry_s,
            start_timeout_s=setup.start_timeout_s,
            launch_timeout_s=setup.launch_timeout_s,
            stop_timeout_s=setup.stop_timeout_s,
            lease_ttl_s=setup.lease_ttl_s,
            shutdown_timeout_s=2.0,
        )

    def _run(self, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
        return run_controller(self._config, stop=stop)


class Agent(Party):
    """The agent of a machine, with the machine's supervisor beside it."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine.node_id, machine)
        self.node = machine
        self.state_dir = world.folder / machine.node_id
        self.host = SupervisorHost(world, machine, self.state_dir)
        self._config = AgentConfig(
            server=SERVER,
            node_id=machine.node_id,
            slots=machine.slots,
            machine_id=f"machine of {machine.node_id}",
            addr=machine.node_id,
            state_dir=str(self.state_dir),
            worker_command=["program"],
            request_timeout_s=2.0,
        )

    def _run(self, stop: asyncio.Event) -> Coroutine[Any, Any, None]:
        return run_agent(self._config, stop=stop, ensure=self.host.ensure)
