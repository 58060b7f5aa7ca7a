"""One deployment for all tests of this folder, and what happens where there can be none."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from testcontainers.compose import DockerCompose

from tests.compose.deployment import Deployment
from tests.compose.images import CHECKOUT, make_bases, run, why_no_engine

LEFT_OUT = "NO DOCKER: the tests of the compose deployment were left out"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses now."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in taken]
    for server in taken:
        server.close()
    return ports


def left_of(project: str) -> str:
    """Containers, networks and volumes of a project, one a line."""
    label = f"label=com.docker.compose.project={project}"
    return "".join(
        run(["docker", *words, "--quiet", "--filter", label])
        for words in (["ps", "--all"], ["network", "ls"], ["volume", "ls"])
    )


@pytest.fixture(scope="session")
def engine() -> None:
    """An engine that answers. Without one, tests are left out loudly, and in CI they fail."""
    why = why_no_engine()
    if why and os.environ.get("CI"):
        pytest.fail(f"{LEFT_OUT}, which CI must not do: {why}", pytrace=False)
    if why:
        pytest.skip(f"{LEFT_OUT}: {why}")


def come_up(compose: DockerCompose) -> None:
    """Builds and starts; fails with what the engine and the programs said."""
    try:
        compose.start()
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace")[-3000:]
        logs = "".join(compose.get_logs())[-6000:]
        pytest.fail(f"the deployment does not come up: {said}\n{logs}", pytrace=False)


@pytest.fixture(scope="session")
def deployment(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """compose/compose.yaml, up; at the end it is down, and nothing of it is left."""
    project = f"slotbus-test-{secrets.token_hex(4)}"
    bases = make_bases()
    nats_port, *http_ports = free_ports(3)
    settings = {
        "COMPOSE_PROJECT_NAME": project,
        "SLOTBUS_IMAGE": "slotbus:test",
        "SLOTBUS_NATS_IMAGE": bases.nats,
        "SLOTBUS_NATS_PORT": str(nats_port),
        "SLOTBUS_HTTP_PORT_1": str(http_ports[0]),
        "SLOTBUS_HTTP_PORT_2": str(http_ports[1]),
    }
    if bases.python:
        settings["SLOTBUS_BASE_IMAGE"] = bases.python
    env_file = tmp_path_factory.mktemp("compose") / "env"
    env_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    compose = DockerCompose(
        CHECKOUT,
        compose_file_name=["compose/compose.yaml", str(Path(__file__).with_name("fast.yaml"))],
        build=True,
        wait=True,
        env_file=str(env_file),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
        try:
            come_up(compose)
            yield Deployment(compose, project, f"nats://127.0.0.1:{nats_port}")
        finally:
            run([*compose.docker_compose_command(), "--profile", "demo", "down", "--volumes"])
            left = left_of(project)
    assert not left, f"left of {project}: {left}"
