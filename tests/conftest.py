"""What holds for every test, and the fixtures of tests.support that any test may ask for."""

import asyncio

from tests.support.agents import agent_config, node_leader
from tests.support.auditing import laws
from tests.support.binaries.fixtures import (
    nats_cli,
    pytest_collection_modifyitems,
    pytest_terminal_summary,
)
from tests.support.kube.fixtures import (
    fault_proxy,
    kube,
    kube_binaries,
    kube_namespace,
    kube_server,
    kubelet,
    own_kube_server,
)
from tests.support.nats import nats_server, nc, own_nats_server, subjects
from tests.support.supervision import home, local_home, process_home

__all__ = [
    "agent_config",
    "fault_proxy",
    "home",
    "kube",
    "kube_binaries",
    "kube_namespace",
    "kube_server",
    "kubelet",
    "laws",
    "local_home",
    "nats_cli",
    "nats_server",
    "nc",
    "node_leader",
    "own_kube_server",
    "own_nats_server",
    "process_home",
    "pytest_collection_modifyitems",
    "pytest_terminal_summary",
    "subjects",
]


def pytest_configure() -> None:
    # Without this, whoever asks for the main thread's current loop before the first coroutine
    # test (looptime does, around synchronous tests) gets one made that nobody closes.
    asyncio.set_event_loop(None)
