"""What holds for every test, and the fixtures of tests.support that any test may ask for."""

import asyncio

from tests.support.agents import agent_config, node_leader
from tests.support.nats import nats_server, nc, own_nats_server, subjects
from tests.support.supervision import home, local_home, process_home

__all__ = [
    "agent_config",
    "home",
    "local_home",
    "nats_server",
    "nc",
    "node_leader",
    "own_nats_server",
    "process_home",
    "subjects",
]


def pytest_configure() -> None:
    # Without this, whoever asks for the main thread's current loop before the first coroutine
    # test (looptime does, around synchronous tests) gets one made that nobody closes.
    asyncio.set_event_loop(None)
