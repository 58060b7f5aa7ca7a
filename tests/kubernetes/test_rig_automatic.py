"""The rig's nodes when they work by themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tests.support.kube.apiserver import KubeServer, make_namespace
from tests.support.kube.automatic import Automatic, Behaviour
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.rest import Pod
from tests.support.waiting import until


def all_in(phase: str) -> Callable[[list[Pod]], bool]:
    return lambda pods: all(pod.status.phase == phase for pod in pods)


def none_left(pods: list[Pod]) -> bool:
    return not pods


async def test_every_new_pod_runs_on_the_nodes_in_turn(kubelet: Kubelet) -> None:
    kubelet.nodes = ["a", "b"]
    await kubelet.create("before")
    async with Automatic(kubelet):
        for name in ("one", "two", "three"):
            await kubelet.create(name)
        pods = await kubelet.until(all_in("Running"))
        assert len(pods) == 4
        nodes = sorted(pod.spec.node_name for pod in pods)
        assert nodes == [kubelet.api_name(n) for n in ("a", "a", "b", "b")]


async def test_pods_behave_as_told(kubelet: Kubelet) -> None:
    behaviours = {
        "crashes": Behaviour(end_after_s=0, exit_code=4),
        "waits": Behaviour(waiting="ImagePullBackOff"),
        "stays": Behaviour(schedule=False),
    }
    async with Automatic(kubelet, lambda pod: behaviours[pod.name]):
        for name in behaviours:
            await kubelet.create(name)

        def settled(pods: list[Pod]) -> bool:
            by_name = {pod.name: pod.status for pod in pods}
            return by_name["crashes"].phase == "Failed" and bool(
                by_name["waits"].container_statuses
            )

        pods = {pod.name: pod for pod in await kubelet.until(settled)}
        assert "ImagePullBackOff" in str(pods["waits"].status.container_statuses)
        assert not pods["stays"].spec.node_name


async def test_a_deleted_pod_goes_when_its_processes_have_ended(kubelet: Kubelet) -> None:
    async with Automatic(kubelet, lambda pod: Behaviour(stop_after_s=0.3)):
        await kubelet.create("one")
        await kubelet.until(all_in("Running"))
        await kubelet.delete("one", grace_s=30)
        assert (await kubelet.pod("one")).terminating
        began = time.monotonic()
        await kubelet.until(none_left)
        assert 0.2 <= time.monotonic() - began < 10
        assert not kubelet.containers


async def test_processes_that_ignore_the_signal_get_their_whole_grace(kubelet: Kubelet) -> None:
    async with Automatic(kubelet, lambda pod: Behaviour(ignores_term=True)):
        await kubelet.create("one")
        await kubelet.until(all_in("Running"))
        await kubelet.delete("one", grace_s=600)
        began = time.monotonic()
        await kubelet.delete("one", grace_s=1)  # somebody loses patience
        await kubelet.until(none_left)
        assert 0.8 <= time.monotonic() - began < 10


async def test_a_pod_deleted_before_it_ran_just_goes(kubelet: Kubelet) -> None:
    async with Automatic(kubelet, lambda pod: Behaviour(run_after_s=3600)):
        await kubelet.create("one")
        await kubelet.until(lambda pods: bool(pods[0].spec.node_name))
        await kubelet.delete("one", grace_s=3600)
        await kubelet.until(none_left)


async def test_processes_outlive_a_deletion_by_force_until_the_node_notices(
    kubelet: Kubelet,
) -> None:
    async with Automatic(kubelet, lambda pod: Behaviour(stop_after_s=0.5)):
        await kubelet.create("one")
        await kubelet.until(all_in("Running"))
        await kubelet.delete("one", grace_s=0)
        assert await kubelet.pods() == []
        assert kubelet.containers
        await until(lambda: not kubelet.containers)


async def test_a_lost_node_confirms_nothing_until_it_is_back(kubelet: Kubelet) -> None:
    async with Automatic(kubelet):
        await kubelet.create("one")
        await kubelet.until(all_in("Running"))
        await kubelet.lose("node-1")
        await kubelet.delete("one", grace_s=0 + 1)
        await asyncio.sleep(1.2)  # longer than the grace
        assert (await kubelet.pod("one")).terminating
        assert kubelet.containers
        await kubelet.find("node-1")
        await kubelet.until(none_left)
        assert not kubelet.containers


async def test_nodes_go_on_after_the_server_was_away(own_kube_server: KubeServer) -> None:
    async with own_kube_server.admin() as admin:
        kubelet = Kubelet(admin, await make_namespace(admin))
        async with Automatic(kubelet):
            await kubelet.create("one")
            await kubelet.until(all_in("Running"))
            await own_kube_server.restart()
            await kubelet.create("two")
            pods = await kubelet.until(all_in("Running"))
            assert [pod.name for pod in pods] == ["one", "two"]
