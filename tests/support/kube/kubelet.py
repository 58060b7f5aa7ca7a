"""Plays the nodes of a cluster through the API: what a scheduler and kubelets would write.

What lives here: ``Kubelet``, each of whose methods is one thing that a node does to a pod.
What may not: deciding by itself what happens to pods (``automatic``), how it is written
(``bodies``).

Pods are named by their name, nodes by the short name given here; the API's own name of a
node has the namespace in front, so that tests side by side don't share nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from tests.support.kube import bodies
from tests.support.kube.rest import JsonObject, Pod, PodList, Refused, Rest, pods_path

NODE_CPU: Final = "64"
NODE_MEMORY: Final = "256Gi"
NODE_PODS: Final = 10_000

UNTIL_S: Final = 20.0
UNTIL_POLL_S: Final = 0.02

NOT_FOUND: Final = 404
CONFLICT: Final = 409
INVALID: Final = 422


class Kubelet:
    """The nodes of one namespace. Methods raise what ``Rest`` raises."""

    def __init__(self, admin: Rest, namespace: str, nodes: Sequence[str] = ("node-1",)) -> None:
        self.namespace = namespace
        self.nodes = list(nodes)
        self.lost_nodes: set[str] = set()
        """Nodes that do nothing any more, as when their machine is off."""
        self.containers: dict[str, Pod] = {}
        """Pods, by uid, whose processes run on a node, whatever the API says about them."""
        self.api = admin
        self._registered: list[str] = []

    # --- nodes --------------------------------------------------------------------------------

    def api_name(self, node: str) -> str:
        return f"{self.namespace}-{node}"

    async def register(
        self, node: str, *, cpu: str = NODE_CPU, memory: str = NODE_MEMORY, pods: int = NODE_PODS
    ) -> None:
        """Makes a ready Node object. Binding works without it, real scheduling does not."""
        name = self.api_name(node)
        labels = {"kubernetes.io/hostname": name}
        await self.api.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
        self._registered.append(name)
        # The server taints a new node until a controller, which isn't there, finds it ready.
        await self.api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        status = bodies.node_status("True", now(), cpu, memory, pods)
        await self.api.patch(f"/api/v1/nodes/{name}/status", status)
        if node not in self.nodes:
            self.nodes.append(node)

    async def unregister(self) -> None:
        """Deletes the Node objects again."""
        while self._registered:
            await self.api.delete(f"/api/v1/nodes/{self._registered.pop()}")

    async def lose(self, node: str) -> None:
        """The node falls silent: its containers may run on, its pods stay as they are and,
        once deleted, Terminating."""
        self.lost_nodes.add(node)
        await self._set_ready(node, "Unknown")

    async def find(self, node: str) -> None:
        """The node is back."""
        self.lost_nodes.discard(node)
        await self._set_ready(node, "True")

    async def taint_evict(self, node: str) -> list[str]:
        """What the cluster does about a lost node after some minutes: its pods are deleted,
        with their grace. Returns their names."""
        pods = [pod for pod in await self.pods() if pod.spec.node_name == self.api_name(node)]
        for pod in pods:
            await self.api.delete(pods_path(self.namespace, pod.name), uid=pod.uid)
        return [pod.name for pod in pods]

    async def _set_ready(self, node: str, ready: str) -> None:
        status = bodies.node_status(ready, now(), NODE_CPU, NODE_MEMORY, NODE_PODS)
        try:
            await self.api.patch(f"/api/v1/nodes/{self.api_name(node)}/status", status)
        except Refused as error:
            if error.status != NOT_FOUND:  # it was never registered, which is fine
                raise

    def is_lost(self, pod: Pod) -> bool:
        return pod.spec.node_name in {self.api_name(node) for node in self.lost_nodes}

    # --- reading ------------------------------------------------------------------------------

    async def pod(self, name: str) -> Pod:
        return await self.api.get_as(pods_path(self.namespace, name), Pod)

    async def pods(self, selector: str = "") -> list[Pod]:
        path = pods_path(self.namespace)
        params = {"labelSelector": selector} if selector else {}
        return (await self.api.get_as(path, PodList, **params)).items

    async def until(
        self, condition: Callable[[list[Pod]], bool], deadline_s: float = UNTIL_S
    ) -> list[Pod]:
        """The pods once ``condition`` holds for them. Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            while not condition(pods := await self.pods()):  # noqa: ASYNC110  it is one request
                await asyncio.sleep(UNTIL_POLL_S)
        return pods

    # --- a scheduler --------------------------------------------------------------------------

    async def bind(self, name: str, node: str | None = None) -> Pod:
        """Puts a pod on a node, the first by default. Raises Refused, 409 if it has one."""
        await self.place(await self.pod(name), node or self.nodes[0])
        return await self.pod(name)

    async def place(self, pod: Pod, node: str) -> Pod:
        """Like ``bind``, but for exactly this pod, and in one request."""
        target = {"kind": "Node", "apiVersion": "v1", "name": self.api_name(node)}
        path = pods_path(self.namespace, pod.name, "binding")
        await self.api.post(
            path, {"metadata": {"name": pod.name, "uid": pod.uid}, "target": target}
        )
        spec = msgspec.structs.replace(pod.spec, node_name=self.api_name(node))
        return msgspec.structs.replace(pod, spec=spec)

    async def unschedulable(self, name: str, message: str = "0/1 nodes are available") -> Pod:
        return await self.write(await self.pod(name), bodies.unschedulable(message, now()))

    # --- a kubelet ----------------------------------------------------------------------------

    async def wait(self, name: str, reason: str, message: str = "") -> Pod:
        """Bound, and its containers can't start: ImagePullBackOff and the like."""
        pod = await self._bound(name)
        return await self.write(pod, bodies.waiting(pod, reason, message, now()))

    async def run(self, name: str, node: str | None = None) -> Pod:
        """Binds it if need be; all its containers run and are ready."""
        pod = await self._bound(name, node)
        self.containers[pod.uid] = pod
        return await self.write(pod, bodies.running(pod, now()))

    async def end(
        self, name: str, code: int = 0, *, reason: str | None = None, signal: int = 0
    ) -> Pod:
        """Its containers end by themselves: Succeeded with 0, else Failed."""
        pod = await self._bound(name)
        done = await self.write(pod, bodies.ended(pod, code, now(), reason, signal))
        self.containers.pop(pod.uid, None)
        return done

    async def end_containers(self, name: str, codes: Mapping[str, int]) -> Pod:
        """These containers end, the others run on; the pod ends when all of them have."""
        pod = await self._bound(name)
        at = now()
        states = {
            container.name: bodies.ended_state(codes[container.name], at)
            if container.name in codes
            else bodies.running_state(at)
            for container in pod.spec.containers
        }
        phase = "Running"
        if set(codes) >= set(states):
            phase = "Failed" if any(codes.values()) else "Succeeded"
            self.containers.pop(pod.uid, None)
        return await self.write(pod, bodies.status(pod, phase, states, at))

    async def oom(self, name: str) -> Pod:
        """The kernel kills it for its memory."""
        return await self.end(name, bodies.OOM_EXIT_CODE, reason=bodies.OOM_REASON)

    async def evict(self, name: str, message: str = "The node was low on resource: memory") -> Pod:
        """Under pressure the node ends it: Failed, with no word on its containers."""
        pod = await self._bound(name)
        self.containers.pop(pod.uid, None)
        return await self.write(pod, bodies.evicted(message, now()))

    async def exceed_deadline(self, name: str) -> Pod:
        """Its activeDeadlineSeconds are over."""
        pod = await self._bound(name)
        self.containers.pop(pod.uid, None)
        return await self.write(pod, bodies.deadline_exceeded(now()))

    async def confirm(self, name: str, code: int = 143) -> None:
        """Finishes a graceful deletion: the containers have ended with ``code``, then the
        object goes."""
        pod = await self.pod(name)
        if not pod.ended:
            await self.write(pod, bodies.ended(pod, code, now()))
        self.containers.pop(pod.uid, None)
        await self.remove(pod)

    async def remove(self, pod: Pod) -> None:
        """The object goes, as a kubelet's last call does it."""
        await self.api.delete(pods_path(self.namespace, pod.name), grace_s=0, uid=pod.uid)

    # --- people and other controllers ---------------------------------------------------------

    async def delete(self, name: str, grace_s: int | None = None) -> None:
        """As `kubectl delete pod`; with 0 the object goes at once and the containers may
        run on."""
        await self.api.delete(pods_path(self.namespace, name), grace_s=grace_s)

    async def create(self, name: str, **more: object) -> Pod:
        """A pod of somebody; ``more`` goes into its spec, ``labels`` into its metadata."""
        labels = more.pop("labels", {})
        spec: JsonObject = {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "rig/none"}],
            **more,
        }
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        answer = await self.api.call("POST", pods_path(self.namespace), body)
        return msgspec.json.decode(answer, type=Pod)

    # ------------------------------------------------------------------------------------------

    async def _bound(self, name: str, node: str | None = None) -> Pod:
        pod = await self.pod(name)
        return pod if pod.spec.node_name else await self.bind(name, node)

    async def write(self, pod: Pod, body: JsonObject) -> Pod:
        """Writes a status. Raises Refused, ``is_another`` if another pod has this name by now."""
        whole = body | {"metadata": {"uid": pod.uid}}
        path = pods_path(self.namespace, pod.name, "status")
        answer = await self.api.call(
            "PATCH", path, whole, content_type="application/merge-patch+json"
        )
        return msgspec.json.decode(answer, type=Pod)


def is_another(refused: Refused) -> bool:
    """True if the pod that was meant is gone, and another one has its name."""
    return refused.status == CONFLICT or (
        refused.status == INVALID and "metadata.uid" in refused.message
    )


def now() -> datetime:
    return datetime.now(UTC)
