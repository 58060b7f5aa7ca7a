"""The real kube-scheduler, for tests that want its verdict.

What lives here: the process. What may not: nodes, which a ``Kubelet`` registers.

It schedules the pods of every namespace, so it belongs in front of a server of one's own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.support.kube.apiserver import KubeServer
from tests.support.kube.program import Program


@asynccontextmanager
async def kube_scheduler(server: KubeServer) -> AsyncGenerator[Program]:
    """Runs for a block of code; it may take a second until it looks at pods."""
    kubeconfig = server.kubeconfig(
        server.folder / "scheduler.kubeconfig", server.admin_token, "default"
    )
    config = server.folder / "scheduler.json"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {"kubeconfig": str(kubeconfig)},
                "leaderElection": {"leaderElect": False},
                "podInitialBackoffSeconds": 1,
                "podMaxBackoffSeconds": 1,
            }
        )
    )
    program = Program("kube-scheduler", server.folder / "kube-scheduler.log")
    # Port 0: it serves nothing, so nothing can be in its way.
    program.spawn([str(server.binaries.kube_scheduler), f"--config={config}", "--secure-port=0"])
    try:
        yield program
        program.check()
    finally:
        program.kill()
